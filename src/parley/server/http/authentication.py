"""Authentication of HTTP requests by bearer tokens, and limits on wrong tokens and on the rate of requests."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from parley.ports.http import HttpRequest
from parley.server.context import Principal

__all__ = ["Authenticator", "RateLimit", "new_token"]

FAILURES_PER_MINUTE: Final = 10
"""After this many wrong tokens within a minute, answers to further wrong tokens are delayed."""
DELAY_SECONDS: Final = 1.0
BURST_SECONDS: Final = 10.0
"""A principal may send as many requests at once as its rate allows in this time."""

_SCHEME: Final = "bearer "


def new_token() -> str:
    """Return a new token: 256 random bits."""
    return secrets.token_urlsafe(32)


class Authenticator:
    """Checks tokens. Holds the valid tokens as hashes."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._principals: dict[bytes, Principal] = {}
        self._failures: deque[float] = deque(maxlen=FAILURES_PER_MINUTE)

    def add(self, token: str, principal: Principal) -> None:
        self._principals[_digest(token)] = principal

    def principal(self, request: HttpRequest) -> Principal | None:
        """Return the sender of a request, or None. Takes the same time for every wrong token."""
        values = request.header("Authorization")
        given = values[0] if len(values) == 1 else ""
        token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""
        digest, found = _digest(token), None
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found if token else None

    def failed(self) -> float:
        """Count a wrong token; return for how many seconds its answer must be delayed."""
        now = self._now()
        is_often = len(self._failures) == FAILURES_PER_MINUTE and now - self._failures[0] < 60
        self._failures.append(now)
        return DELAY_SECONDS if is_often else 0.0


class RateLimit:
    """Limits the messages of each principal. A request without messages counts as one."""

    def __init__(self, per_second: int, *, now: Callable[[], float] = time.monotonic) -> None:
        """Create the limits. `per_second` 0 means no limit."""
        self._per_second, self._now = per_second, now
        self._allowed: dict[str, tuple[float, float]] = {}
        """By principal: how many messages it may send at once, and when that was computed."""

    def admits(self, principal: Principal, count: int = 1) -> bool:
        """Count some messages; return False, and count none, if the principal has sent too many."""
        if not self._per_second:
            return True
        most, now = self._per_second * BURST_SECONDS, self._now()
        allowed, then = self._allowed.get(principal.name, (most, now))
        allowed = min(most, allowed + (now - then) * self._per_second)
        self._allowed[principal.name] = (allowed - count if allowed >= count else allowed, now)
        return allowed >= count


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
