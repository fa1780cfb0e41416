"""Connections to providers, kept for the next request: only so many, and only for a while.

Imports the HTTP library, and is itself imported by the first request alone.
"""

from __future__ import annotations

import asyncio
import resource
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp

from parley.models.resolver import DaemonResolver

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

__all__ = ["MOST_CONNECTING", "connector"]

IDLE_SECONDS: Final = 15.0
"""How long a connection without a request is kept."""

MOST_IDLE: Final = 100
FEWEST_IDLE: Final = 4
IDLE_SHARE: Final = 8
"""Of the files that this process may open, one in so many may be an idle connection."""

MOST_CONNECTING: Final = 64
"""Connections to one provider that are made at the same time. Thousands of requests that begin together wait here
for the connections of those that end, instead of making one connection each."""


def connector() -> aiohttp.TCPConnector:
    """As many connections as there are conversations, of which few stay open without a request."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _Connector(most_idle=min(MOST_IDLE, max(FEWEST_IDLE, limit // IDLE_SHARE)))


class _Connector(aiohttp.TCPConnector):
    def __init__(self, *, most_idle: int) -> None:
        super().__init__(
            limit=0,
            resolver=cast("aiohttp.abc.AbstractResolver", DaemonResolver()),
            keepalive_timeout=IDLE_SECONDS,
        )
        self._most_idle = most_idle
        self._connecting = defaultdict[Any, asyncio.Semaphore](lambda: asyncio.Semaphore(MOST_CONNECTING))

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """Return an idle connection, or make one when fewer than `MOST_CONNECTING` are being made."""
        async with self._connecting[req.connection_key]:
            return await super().connect(req, traces, timeout)

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        """The library has no public limit for idle connections."""
        idle = sum(map(len, self._conns.values()))
        super()._release(key, protocol, should_close=should_close or idle >= self._most_idle)
