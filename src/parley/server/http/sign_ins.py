"""Manages the sign-ins to the web page.

A person signs in with a one-time code or with a token, once for each browser. The browser then has two secrets: a
cookie, which scripts cannot read, and a secret that the page sends in a header. A request needs both secrets. The
store contains only the hashes of codes, cookies and secrets.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from parley.common.limited_log import LimitedLog
from parley.errors import StoreError
from parley.ports.http import HttpRequest
from parley.ports.store import StoredSignIn
from parley.server.context import PAGE_USER, Principal
from parley.server.http.authentication import Authenticator, RateLimit
from parley.server.http.errors import SignInFailed, SignInNotStored, TooManySignIns
from parley.server.http.tokens import token_digest
from parley.wire.http import PAGE_SECRET

__all__ = ["CODE_SECONDS", "NewSignIn", "SignInStore", "SignIns"]

log = logging.getLogger(__name__)
limited_log = LimitedLog(log)

CODE_SECONDS: Final = 60.0
"""The time in seconds for which a one-time code is valid."""
IDLE_SECONDS: Final = 30 * 86_400.0
"""The time in seconds for which a sign-in can be unused before it ends."""
MAX_SIGN_INS: Final = 256
"""The maximum number of sign-ins. Beyond this number, the sign-in that has been unused for the longest time
ends.
"""
MAX_PER_TOKEN: Final = 16
"""The maximum number of sign-ins with the same token. Beyond this number, the sign-in that has been unused for the
longest time ends.
"""
MAX_CODES: Final = 16
"""The maximum number of unused one-time codes. Beyond this number, the oldest code becomes invalid."""
SIGN_INS_PER_SECOND: Final = 1
"""The maximum number of sign-ins per second with the same token, on average over ten seconds."""
MAX_SECRET_CHARACTERS: Final = 256
REFRESH_SECONDS: Final = 30.0
USE_SECONDS: Final = 600.0
"""The minimum time in seconds between two writes of the time when a sign-in was last used."""
RETRY_SECONDS: Final = 1.0

_COOKIE: Final = "parley-"


class SignInStore(Protocol):
    """The part of the store that `SignIns` uses."""

    async def add_sign_in(self, sign_in: StoredSignIn) -> None: ...

    async def subscribe_sign_in(self, digest: bytes, push: bytes | None) -> bool: ...

    async def sign_in(self, digest: bytes) -> StoredSignIn | None: ...

    async def sign_ins(self) -> list[StoredSignIn]: ...

    async def remove_sign_ins(self, digests: Collection[bytes]) -> int: ...

    async def note_sign_ins_used(self, used: Mapping[bytes, float]) -> None: ...


class NewSignIn(NamedTuple):
    """A new sign-in with its two secrets, which only the browser stores."""

    principal: Principal
    cookie: str
    """The name and the value of the cookie, in the form `NAME=VALUE`."""
    secret: str
    """The secret that the page sends in a header."""


class SignIns:
    """The current sign-ins. All servers with the same store have the same sign-ins."""

    def __init__(
        self, authenticator: Authenticator, store: SignInStore, *, now: Callable[[], float] = time.time
    ) -> None:
        """Create an object without sign-ins; `reload` loads the sign-ins from the store. `authenticator` finds the
        principals of tokens.
        """
        self._authenticator, self._store, self._now = authenticator, store, now
        self._sign_ins: dict[bytes, StoredSignIn] = {}
        self._used: dict[bytes, float] = {}
        """The times of last use that are not stored yet, by the digest of the sign-in, in seconds since the
        epoch.
        """
        self._signed_out: dict[bytes, float] = {}
        """The time at which each sign-in ended in this process, by digest, in seconds since the epoch. A reload
        that began before this time must not restore the sign-in.
        """
        self._reloading = asyncio.Lock()
        """A lock that is held during a reload and during a change to a push subscription. Without the lock, a
        reload that has read the store before such a change could undo the change in memory.
        """
        self._rate = RateLimit(SIGN_INS_PER_SECOND, now=now)
        self._wake = asyncio.Event()
        self._wake.set()  # `keep_current` begins with a reload
        self._on_ended: list[Callable[[Principal], None]] = []

    def on_ended(self, do: Callable[[Principal], None]) -> None:
        """From now on, call `do` with the principal of each sign-in when the sign-in ends."""
        self._on_ended.append(do)

    # --- signing in and out ------------------------------------------------------------

    async def new_code(self) -> str:
        """Create and return a one-time code for signing in to the web page as the user who runs the server.

        Raises:
            StoreError: the code cannot be stored.
        """
        now = self._now()
        code = secrets.token_urlsafe(24)
        codes = sorted((one for one in await self._store.sign_ins() if one.is_code), key=lambda one: one.created_at)
        if surplus := [one.digest for one in codes[: max(0, len(codes) - MAX_CODES + 1)]]:
            await self._store.remove_sign_ins(surplus)
        await self._store.add_sign_in(StoredSignIn(digest=token_digest(code), created_at=now, used_at=now))
        return code

    async def with_code(self, code: str) -> NewSignIn:
        """Sign in with the one-time code, and return the new sign-in. The code can be used only once.

        Raises:
            SignInFailed: the code is wrong, was used or has expired.
            SignInNotStored: the store failed.
        """
        digest = token_digest(code)
        try:
            found = await self._store.sign_in(digest)
            if found is None or not found.is_code or not self._is_valid(found):
                raise SignInFailed
            new = await self._begin(b"", PAGE_USER)
            # The code is removed last, so that a revocation in the meantime finds the code or the sign-in.
            if not await self._store.remove_sign_ins([digest]):
                await self.end(new.principal)
                raise SignInFailed
            return new
        except StoreError as error:
            raise SignInNotStored(error) from error

    async def with_token(self, token: str) -> NewSignIn:
        """Sign in with the token, and return the new sign-in. The sign-in has the permissions of the token, and
        ends when the token becomes invalid.

        Raises:
            SignInFailed: the token is not valid.
            TooManySignIns: the token was used for too many sign-ins within a short time.
            SignInNotStored: the store failed.
        """
        principal = await self._authenticator.look_up_owner(token_digest(token)) if token else None
        if principal is None:
            raise SignInFailed
        if not self._rate.admits(principal):
            raise TooManySignIns
        try:
            return await self._begin(token_digest(token), principal)
        except StoreError as error:
            raise SignInNotStored(error) from error

    async def end(self, principal: Principal) -> None:
        """End the current sign-in of the principal. The browser with this sign-in is then signed out.

        Raises:
            SignInNotStored: the store failed.
        """
        digest = bytes.fromhex(principal.sign_in)
        try:
            await self._store.remove_sign_ins([digest])
        except StoreError as error:
            raise SignInNotStored(error) from error
        self._forget(digest)

    async def _begin(self, token: bytes, principal: Principal) -> NewSignIn:
        now = self._now()
        name, value = secrets.token_hex(4), secrets.token_urlsafe(32)
        secret = f"{name}.{secrets.token_urlsafe(32)}"
        stored = StoredSignIn(
            digest=token_digest(value), secret=token_digest(secret), token=token, created_at=now, used_at=now
        )
        await self._make_room(token)
        await self._store.add_sign_in(stored)
        self._sign_ins[stored.digest] = stored
        log.info("a browser has signed in to the page as %s", principal.name)
        return NewSignIn(_principal(stored, principal), f"{_COOKIE}{name}={value}", secret)

    async def _make_room(self, token: bytes) -> None:
        """End sign-ins until one more sign-in does not exceed `MAX_SIGN_INS` and `MAX_PER_TOKEN`. The sign-in that
        has been unused for the longest time ends first. `token` is the digest of the token for the new sign-in;
        empty for a sign-in with a one-time code.

        Raises:
            StoreError: the store failed.
        """
        await self.reload()
        current = sorted(self._sign_ins.values(), key=lambda one: self._used.get(one.digest, one.used_at))
        of_token = [one for one in current if token and one.token == token]
        surplus = of_token[: max(0, len(of_token) - MAX_PER_TOKEN + 1)]
        surplus += [one for one in current if one not in surplus][: max(0, len(current) - MAX_SIGN_INS + 1)]
        if surplus:
            await self._store.remove_sign_ins([one.digest for one in surplus])
            for one in surplus:
                self._forget(one.digest)

    # --- requests ----------------------------------------------------------------------

    async def principal(self, request: HttpRequest) -> Principal | None:
        """Return the principal that has signed in with the cookie and the secret in the request. Return None if the
        cookie or the secret is missing or wrong, or if the token of the sign-in is no longer valid.
        """
        stored = await self._find(request)
        if stored is None:
            return None
        if stored.token and self._authenticator.owner(stored.token) is None:
            await self._authenticator.look_up_owner(stored.token)
        return self._principal_of(stored)

    def is_current(self, principal: Principal) -> bool:
        """Return True if the sign-in of the principal still exists, and False if the sign-in has ended."""
        return bytes.fromhex(principal.sign_in) in self._sign_ins

    def subscriptions(self) -> list[tuple[Principal, bytes]]:
        """Return the principal and the push subscription of each current sign-in that has a push subscription."""
        found = ((self._principal_of(one), one.push) for one in self._sign_ins.values() if one.push is not None)
        return [(principal, push) for principal, push in found if principal is not None]

    async def subscribe(self, principal: Principal, push: bytes | None) -> bool:
        """Store `push` as the push subscription of the sign-in of the principal. If `push` is None, remove the push
        subscription.

        Return False if the sign-in has ended; otherwise, return True.

        Raises:
            SignInNotStored: the store failed.
        """
        digest = bytes.fromhex(principal.sign_in)
        async with self._reloading:
            try:
                is_current = await self._store.subscribe_sign_in(digest, push)
            except StoreError as error:
                raise SignInNotStored(error) from error
            if not is_current:
                self._forget(digest)
            elif (stored := self._sign_ins.get(digest)) is not None:
                self._sign_ins[digest] = replace(stored, push=push)
        return is_current

    @staticmethod
    def cookie_name(request: HttpRequest) -> str | None:
        """Return the name of the cookie that belongs to the secret in the headers of the request; None if the
        request does not contain exactly one secret.
        """
        given = request.header(PAGE_SECRET)
        return f"{_COOKIE}{given[0].partition('.')[0]}" if len(given) == 1 else None

    async def _find(self, request: HttpRequest) -> StoredSignIn | None:
        given = request.header(PAGE_SECRET)
        secret = given[0] if len(given) == 1 and len(given[0]) <= MAX_SECRET_CHARACTERS else ""
        name = self.cookie_name(request)
        value = _cookie(request, name) if secret and name is not None else None
        if value is None:
            return None
        digest = token_digest(value)
        stored = self._sign_ins.get(digest)
        if stored is None and digest not in self._signed_out:
            stored = await self._load(digest)
        if stored is None or not self._is_valid(stored):
            return None
        if not hmac.compare_digest(stored.secret, token_digest(secret)):
            return None
        now = self._now()
        if digest not in self._used and now - stored.used_at >= USE_SECONDS:
            self._used[digest] = now
            self._wake.set()
        return stored

    async def _load(self, digest: bytes) -> StoredSignIn | None:
        """Load the sign-in with the digest `digest` from the store, because another server may have created it.
        Return the sign-in; None if the store has no such sign-in or cannot be read.
        """
        try:
            stored = await self._store.sign_in(digest)
        except StoreError as error:
            limited_log.warning("a sign-in cannot be read: %s", error)
            return None
        if stored is None or stored.is_code or digest in self._signed_out:
            return None
        self._sign_ins[digest] = stored
        return stored

    def _principal_of(self, stored: StoredSignIn) -> Principal | None:
        owner = self._authenticator.owner(stored.token) if stored.token else PAGE_USER
        return None if owner is None else _principal(stored, owner)

    def _is_valid(self, stored: StoredSignIn) -> bool:
        now = self._now()
        if stored.is_code:
            return now - stored.created_at < CODE_SECONDS
        return now - self._used.get(stored.digest, stored.used_at) < IDLE_SECONDS

    # --- the store ---------------------------------------------------------------------

    async def reload(self) -> None:
        """Load the sign-ins from the store. End the sign-ins that another process has removed from the store, and
        remove expired sign-ins from the store.

        Raises:
            StoreError: the store cannot be read or changed.
        """
        async with self._reloading:
            await self._reload()

    async def _reload(self) -> None:
        began = self._now()
        known = set(self._sign_ins)
        stored = await self._store.sign_ins()
        if outdated := [one.digest for one in stored if not self._is_valid(one)]:
            await self._store.remove_sign_ins(outdated)
        read = {
            one.digest: one
            for one in stored
            if not one.is_code and self._is_valid(one) and one.digest not in self._signed_out
        }
        for digest in known - set(read):
            self._forget(digest)
        for digest, one in read.items():
            if digest in self._sign_ins or digest not in known:  # the sign-in may have ended during the reload
                self._sign_ins[digest] = one
        for digest, ended_at in tuple(self._signed_out.items()):
            if ended_at < began - REFRESH_SECONDS:
                del self._signed_out[digest]

    async def keep_current(self) -> None:
        """Call `reload` every `REFRESH_SECONDS`, and store the times when the sign-ins were last used. This method
        never returns.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._store_uses()
                await self.reload()
            except StoreError as error:
                limited_log.warning("the sign-ins of the page cannot be stored or read: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            # the error is a bug; the loop continues, so that sign-ins that another server ended also end here
            except Exception as error:
                limited_log.warning("the sign-ins cannot be reloaded: %s: %s", type(error).__name__, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _store_uses(self) -> None:
        if not self._used:
            return
        used = dict(self._used)
        await self._store.note_sign_ins_used(used)
        for digest, at in used.items():
            if (stored := self._sign_ins.get(digest)) is not None:
                self._sign_ins[digest] = replace(stored, used_at=at)
            self._used.pop(digest, None)

    def _forget(self, digest: bytes) -> None:
        self._signed_out[digest] = self._now()
        self._used.pop(digest, None)
        stored = self._sign_ins.pop(digest, None)
        if stored is None:
            return
        # The owner is unknown if the token was revoked. Its sessions have ended with it.
        if (principal := self._principal_of(stored)) is not None:
            for do in self._on_ended:
                do(principal)


def _principal(stored: StoredSignIn, owner: Principal) -> Principal:
    return replace(owner, sign_in=stored.digest.hex())


def _cookie(request: HttpRequest, name: str) -> str | None:
    """Return the value of the cookie `name` in the request; None if the cookie is missing or has several values."""
    pairs = (part.strip().partition("=") for header in request.header("Cookie") for part in header.split(";"))
    values = {value for found, _, value in pairs if found == name}
    return values.pop() if len(values) == 1 else None
