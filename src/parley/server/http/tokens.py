"""Keeps the bearer tokens of the store in the memory of the server.

The tokens are loaded when the server starts, and then at least every 30 seconds. Therefore, a change by another
process takes effect soon, even if that process cannot notify the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from parley.common.limited_log import LimitedLog
from parley.errors import StoreError
from parley.ports.store import StoredToken
from parley.server.context import Principal, Role

__all__ = ["StoredTokens", "TokenStore", "token_digest"]

log = LimitedLog(logging.getLogger(__name__))

REFRESH_SECONDS: Final = 30.0
UNKNOWN_SECONDS: Final = 1.0
"""The minimum time in seconds between two reloads of the tokens that are caused by requests with unknown tokens."""
RETRY_SECONDS: Final = 1.0
"""The minimum time in seconds between a failed reload of the tokens and the next attempt."""
USE_SECONDS: Final = 600.0
"""The minimum time in seconds between two writes of the time when a token was last used."""


class TokenStore(Protocol):
    """The part of the store that `StoredTokens` uses."""

    async def tokens(self) -> list[StoredToken]: ...

    async def note_tokens_used(self, used: Mapping[bytes, float]) -> None: ...


def token_digest(token: str) -> bytes:
    """Return the SHA-256 digest of the token. The store contains this digest instead of the token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


class StoredTokens:
    """The valid tokens of the store."""

    def __init__(self, store: TokenStore, *, now: Callable[[], float] = time.time) -> None:
        self._store, self._now = store, now
        self._tokens: dict[bytes, StoredToken] = {}
        self._principals: dict[bytes, Principal] = {}
        self._used: dict[bytes, float] = {}
        """The times of last use that are not stored yet, by the digest of the token, in seconds since the epoch."""
        self._wake = asyncio.Event()
        self._reloading = asyncio.Lock()
        """A lock that is held during a reload. If two reloads ran at the same time, the reload that has read the
        store first could finish last, and make a removed token valid again.
        """
        self._looked_up_at = 0.0
        """The time of the last reload that an unknown token has caused, in seconds since the epoch."""
        self._on_revoked: list[Callable[[Principal], None]] = []

    def __len__(self) -> int:
        return len(self._principals)

    def find(self, digest: bytes) -> Principal | None:
        """Return the principal of the valid token with the digest `digest`; None if no such token is in memory.

        The call takes the same time for every unknown token.
        """
        found: StoredToken | None = None
        for known, token in self._tokens.items():
            if hmac.compare_digest(known, digest):
                found = token
        if found is None or self._has_expired(found):
            return None
        now = self._now()
        if found.digest not in self._used and now - (found.used_at or 0.0) >= USE_SECONDS:
            self._used[found.digest] = now
            self._wake.set()
        return self._principals[found.digest]

    def on_revoked(self, do: Callable[[Principal], None]) -> None:
        """From now on, call `do` with the principal of each token that is removed or expires."""
        self._on_revoked.append(do)

    def is_valid(self, principal: Principal) -> bool:
        """Return whether the token of the principal is still valid."""
        return principal in self._principals.values()

    async def look_up(self, digest: bytes) -> Principal | None:
        """Reload the tokens, and return the principal of the valid token with the digest `digest`; None if there is
        no such token. Call this method if the token is not in memory, because another process may have stored the
        token after the last reload.

        This method reloads the tokens at most once per `UNKNOWN_SECONDS`, so that wrong tokens cause little work.
        """
        if abs(self._now() - self._looked_up_at) >= UNKNOWN_SECONDS:
            self._looked_up_at = self._now()
            await self.reload()
        elif self._reloading.locked():
            async with self._reloading:
                pass
        return self.find(digest)

    async def reload(self) -> None:
        """Load the tokens from the store, and call the callbacks of `on_revoked` for each token that was removed or
        has expired. If the store cannot be read, the tokens in memory stay valid until they expire.
        """
        async with self._reloading:
            try:
                read = await self._store.tokens()
            except StoreError as error:
                log.warning("the tokens of the home cannot be read: %s", error)
                read = list(self._tokens.values())
            self._replace(read)

    def _replace(self, read: Sequence[StoredToken]) -> None:
        self._tokens = {token.digest: token for token in read if not self._has_expired(token)}
        before, self._principals = self._principals, {}
        for digest, token in self._tokens.items():
            self._principals[digest] = before.pop(digest) if digest in before else _principal(token)
        for principal in before.values():
            for do in self._on_revoked:
                do(principal)

    async def keep_current(self) -> None:
        """Call `reload` at least every `REFRESH_SECONDS`, and store the times when the tokens were last used. This
        method never returns.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_reload()):
                    await self._wake.wait()
            self._wake.clear()
            try:
                if self._used:
                    await self._store_uses()
                await self.reload()
            except Exception as error:  # the error is a bug; the loop continues, because removed tokens must end
                log.warning("the tokens cannot be reloaded: %s: %s", type(error).__name__, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _store_uses(self) -> None:
        used = dict(self._used)
        try:
            await self._store.note_tokens_used(used)
        except StoreError as error:
            log.warning("the last use of tokens cannot be stored: %s", error)
            return  # the next reload tries again
        for digest in used:
            self._used.pop(digest, None)

    def _seconds_to_reload(self) -> float:
        ends = [token.expires_at for token in self._tokens.values() if token.expires_at is not None]
        return max(0.0, min([REFRESH_SECONDS, *(end - self._now() for end in ends)]))

    def _has_expired(self, token: StoredToken) -> bool:
        return token.expires_at is not None and token.expires_at <= self._now()


def _principal(token: StoredToken) -> Principal:
    return Principal(
        name=token.name,
        role=Role[token.role.upper()],
        conversation=token.conversation_id,
        token_id=token.token_id,
        since=token.created_at,
    )
