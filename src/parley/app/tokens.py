"""Creates, lists and revokes the bearer tokens of a home directory, for `parley token`."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any, Final

from parley.app.http_urls import server_url
from parley.common.resident_socket import NoResident, Refused, ask, connect
from parley.config.load import Loader
from parley.errors import ParleyError
from parley.ports.store import Query, RoleName, Store, StoredSignIn, StoredToken
from parley.server.context import RESERVED_NAMES
from parley.server.http.endpoint import PATH
from parley.server.http.tokens import token_digest
from parley.wire.ids import ConversationId

__all__ = [
    "BadTokenName",
    "all_conversations",
    "code_sign_ins",
    "create_share_token",
    "create_token",
    "described",
    "end_code_sign_ins",
    "http_address",
    "page_address",
    "reload_resident_tokens",
]

MAX_NAME_CHARACTERS: Final = 64
PAGE: Final = 1000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


class BadTokenName(ParleyError):
    """Raised when the name of a new token is invalid or in use."""


async def create_token(
    store: Store,
    name: str,
    role: RoleName,
    *,
    conversation_id: ConversationId | None = None,
    valid_seconds: float | None = None,
) -> tuple[str, StoredToken]:
    """Create a token and store its digest. Return the token itself, which is not stored, and the stored record.

    If `conversation_id` is given, the token gives access only to this conversation. `valid_seconds` is the time
    until the token expires; None means that the token does not expire.

    Raises:
        BadTokenName: the name is in use or invalid.
        StoreError: the token cannot be stored.
    """
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise BadTokenName(
            f"invalid name {name[:MAX_NAME_CHARACTERS]!r} (use at most {MAX_NAME_CHARACTERS} letters, digits, "
            "and . _ @ - after the first)"
        )
    if name.lower() in RESERVED_NAMES:
        raise BadTokenName(f"the name {name!r} is reserved")
    token, now = secrets.token_urlsafe(32), time.time()
    stored = StoredToken(
        name=name,
        digest=token_digest(token),
        role=role,
        conversation_id=conversation_id,
        created_at=now,
        expires_at=None if valid_seconds is None else now + valid_seconds,
    )
    if not await store.add_token(stored):
        raise BadTokenName(f"there is a token {name!r} already; revoke it first, or choose another name")
    return token, stored


async def create_share_token(
    store: Store, conversation_id: ConversationId, *, valid_seconds: float
) -> tuple[str, StoredToken]:
    """Create a token that allows reading one conversation and expires after `valid_seconds`. Return the token and
    the stored record.

    Raises:
        StoreError: the token cannot be stored.
    """
    while True:
        name = f"share-{conversation_id[:8]}-{secrets.token_hex(2)}"
        try:
            return await create_token(
                store, name, "observer", conversation_id=conversation_id, valid_seconds=valid_seconds
            )
        except BadTokenName:
            pass  # another token has this name


async def code_sign_ins(store: Store) -> list[StoredSignIn]:
    """Return the sign-ins to the web page for which a one-time code was used.

    Raises:
        StoreError: the store cannot be read.
    """
    return [one for one in await store.sign_ins() if not one.token and not one.is_code]


async def end_code_sign_ins(store: Store) -> None:
    """End all sign-ins for which a one-time code was used, and make unused codes invalid.

    Raises:
        StoreError: the store cannot be read or changed.
    """
    # Between the two calls, a browser may sign in and so replace its code with a sign-in.
    while digests := [one.digest for one in await store.sign_ins() if not one.token]:
        await store.remove_sign_ins(digests)


def described(token: StoredToken) -> dict[str, Any]:
    """Return the stored fields of a token as a JSON object, without the digest of the token."""
    return {
        "type": "token",
        "name": token.name,
        "role": token.role,
        "conversation_id": token.conversation_id,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "used_at": token.used_at,
    }


async def all_conversations(store: Store) -> list[ConversationId]:
    """Return the ids of all conversations, including archived ones."""
    found: list[ConversationId] = []
    query = Query(archived=None, limit=PAGE)
    while True:
        page = await store.find(query)
        found += [one.conversation_id for one in page.items]
        if not page.more:
            return found
        query = Query(archived=None, limit=PAGE, after=page.items[-1].cursor)


def reload_resident_tokens(home: str) -> bool:
    """Make the resident server of the home directory reload its tokens, and return True.

    Return False if no server is running, or if the server does not respond or refuses the request. A running server
    reloads its tokens within half a minute in any case.
    """
    try:
        with connect(home) as channel:
            ask(channel, "reload")
    except (NoResident, Refused):
        return False
    return True


def http_address(loader: Loader) -> str | None:
    """Return the URL at which HTTP clients reach the server: the public URL in the settings, otherwise the URL of
    the running server, otherwise the URL with the configured port. Return None if none of these is known.

    Raises:
        ConfigError: the settings cannot be read.
    """
    settings = loader.serve_settings()
    if settings.public_url is not None:
        return server_url(settings, settings.port)
    try:
        with connect(loader.home) as channel:
            url = ask(channel, "status").get("url")
    except (NoResident, Refused):
        url = None
    if url is None and settings.port:
        url = server_url(settings, settings.port)
    return None if url is None else str(url)


def page_address(loader: Loader) -> str | None:
    """Return the URL of the web page; None if the URL of the HTTP server is unknown.

    Raises:
        ConfigError: the settings cannot be read.
    """
    url = http_address(loader)
    return None if url is None else f"{url.removesuffix(PATH)}/"
