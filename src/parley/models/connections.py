"""The pool of connections to providers.

Imports the HTTP library, so the first request imports this module.
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
"""How long an idle connection is kept."""

MOST_IDLE: Final = 100
FEWEST_IDLE: Final = 4
IDLE_SHARE: Final = 8
"""The most idle connections: the limit of open files divided by this."""

MOST_CONNECTING: Final = 64
"""The most connections to one provider that are being opened at the same time. If thousands of requests begin
together, most wait and then reuse the connections of requests that have ended.
"""


def connector() -> aiohttp.TCPConnector:
    """Return a pool that opens a connection for every request that needs one, and keeps few idle ones."""
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
        """Return an idle connection, or open one if fewer than `MOST_CONNECTING` are being opened."""
        async with self._connecting[req.connection_key]:
            return await super().connect(req, traces, timeout)

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        """Close the connection if there are enough idle ones. The library has no public limit for them."""
        idle = sum(map(len, self._conns.values()))
        super()._release(key, protocol, should_close=should_close or idle >= self._most_idle)
