"""Authenticates HTTP requests by bearer tokens. Delays responses to wrong tokens, and limits the rate of
messages.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from parley.ports.http import HttpRequest
from parley.server.context import Principal
from parley.server.http.errors import Unauthorized
from parley.server.http.messages import refusal
from parley.server.http.tokens import StoredTokens, token_digest
from parley.wire.http import HttpAnswer

__all__ = ["UNAUTHORIZED", "Authenticator", "RateLimit", "bearer_token", "new_token"]

FAILURES_PER_MINUTE: Final = 10
"""The number of wrong tokens within a minute after which responses to further wrong tokens are delayed."""
DELAY_SECONDS: Final = 1.0
BURST_SECONDS: Final = 10.0
"""The size of a burst, in seconds at the maximum rate. For example, with a rate of 20 messages per second, an idle
principal may send 200 messages at once.
"""

_REFUSAL: Final = refusal(Unauthorized())
UNAUTHORIZED: Final = HttpAnswer(
    status=_REFUSAL.status, body=_REFUSAL.body, headers={**_REFUSAL.headers, "WWW-Authenticate": "Bearer"}
)
"""The response to a request without a valid token. The response does not reveal whether the token is missing,
wrong, expired or revoked.
"""

_SCHEME: Final = "bearer "


def new_token() -> str:
    """Return a new random token with 256 bits of entropy."""
    return secrets.token_urlsafe(32)


def bearer_token(request: HttpRequest) -> str:
    """Return the bearer token in the header `Authorization` of the request; an empty string if there is none."""
    values = request.header("Authorization")
    given = values[0] if len(values) == 1 else ""
    return given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""


class Authenticator:
    """Finds the principal of a token. The token is either stored, or valid only while this process runs."""

    def __init__(self, stored: StoredTokens | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """Create the authenticator. `stored` contains the tokens in the store; None if tokens are not stored."""
        self._stored, self._now = stored, now
        self._principals: dict[bytes, Principal] = {}
        self._failures: deque[float] = deque(maxlen=FAILURES_PER_MINUTE)

    def add(self, token: str, principal: Principal) -> None:
        self._principals[token_digest(token)] = principal

    def principal(self, request: HttpRequest) -> Principal | None:
        """Return the principal of the token in the request; None if the token is missing, or is not a valid token
        in memory. The check takes the same time for every wrong token.
        """
        token = bearer_token(request)
        found = self.owner(token_digest(token))
        return found if token else None

    def owner(self, digest: bytes) -> Principal | None:
        """Return the principal of the valid token with the digest `digest`; None if no such token is in memory."""
        found = None
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        stored = None if self._stored is None else self._stored.find(digest)
        return found or stored

    async def look_up(self, request: HttpRequest) -> Principal | None:
        """Return the principal of the token in the request; None if the token is missing or wrong. If the token is
        not in memory, read the store.
        """
        token = bearer_token(request)
        return await self.look_up_owner(token_digest(token)) if token else None

    async def look_up_owner(self, digest: bytes) -> Principal | None:
        """Return the principal of the valid token with the digest `digest`; None if there is no such token. If the
        token is not in memory, read the store, because another process may have stored the token.
        """
        if (found := self.owner(digest)) is not None or self._stored is None:
            return found
        return await self._stored.look_up(digest)

    def is_valid(self, principal: Principal) -> bool:
        """Return whether the token of the principal is still valid."""
        is_stored = self._stored is not None and self._stored.is_valid(principal)
        return is_stored or principal in self._principals.values()

    def failed(self) -> float:
        """Count a wrong token. Return the time in seconds for which the caller must delay its response."""
        now = self._now()
        is_often = len(self._failures) == FAILURES_PER_MINUTE and now - self._failures[0] < 60
        self._failures.append(now)
        return DELAY_SECONDS if is_often else 0.0


class RateLimit:
    """Limits the rate of messages with each token. An HTTP request without messages counts as one message."""

    def __init__(self, per_second: int, *, now: Callable[[], float] = time.monotonic) -> None:
        """Create the rate limit. `per_second` is the number of messages that the clients of one token may send per
        second on average; 0 means no limit.
        """
        self._per_second, self._now = per_second, now
        self._allowed: dict[str, tuple[float, float]] = {}
        """For each token, by `Principal.key`: the number of messages that were still allowed after the last
        request, and the time of this request in seconds on the clock `now`. A token without an entry may send a
        full burst.
        """

    def __len__(self) -> int:
        """Return the number of tokens for which the rate of messages is currently tracked."""
        return len(self._allowed)

    def admits(self, principal: Principal, count: int = 1) -> bool:
        """If the rate limit allows `count` more messages from the principal, count these messages and return True.
        Otherwise, return False.
        """
        if not self._per_second:
            return True
        most, now = self._per_second * BURST_SECONDS, self._now()
        if principal.key not in self._allowed:
            self._forget_idle(now)
        allowed, then = self._allowed.get(principal.key, (most, now))
        allowed = min(most, allowed + (now - then) * self._per_second)
        self._allowed[principal.key] = (allowed - count if allowed >= count else allowed, now)
        return allowed >= count

    def _forget_idle(self, now: float) -> None:
        """Forget the bearer tokens whose clients may again send a full burst of messages."""
        self._allowed = {key: one for key, one in self._allowed.items() if now - one[1] < BURST_SECONDS}
