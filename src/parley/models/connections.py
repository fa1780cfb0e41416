"""The pool of connections to providers. This module imports the HTTP library, which is slow to load, so the module
is imported only when the first request is made.
"""

from __future__ import annotations

import asyncio
import resource
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp

from parley.common.resolver import DaemonResolver

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

__all__ = ["MAX_CONNECTING", "connector", "max_idle"]

IDLE_SECONDS: Final = 15.0
"""The time, in seconds, for which an idle connection is kept."""

MAX_IDLE: Final = 100
MIN_IDLE: Final = 4
IDLE_SHARE: Final = 8
"""The divisor that determines the maximum number of idle connections: the limit on open files divided by this
number, but at least `MIN_IDLE` and at most `MAX_IDLE`.
"""

MAX_CONNECTING: Final = 64
"""The maximum number of connections to one provider that are being opened at the same time. If thousands of
requests begin together, most of them wait and then reuse the connections of completed requests.
"""


def connector() -> aiohttp.TCPConnector:
    """Return a connection pool that opens as many connections as requests need, and keeps only a limited number of
    idle connections.
    """
    return _Connector(max_idle=max_idle(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def max_idle(max_files: int) -> int:
    """Return the maximum number of idle connections for a process that may open `max_files` files.
    `resource.RLIM_INFINITY` means that the number of files is not limited.
    """
    if max_files == resource.RLIM_INFINITY:
        return MAX_IDLE
    return min(MAX_IDLE, max(MIN_IDLE, max_files // IDLE_SHARE))


class _Connector(aiohttp.TCPConnector):
    def __init__(self, *, max_idle: int) -> None:
        super().__init__(
            limit=0,
            resolver=cast("aiohttp.abc.AbstractResolver", DaemonResolver()),
            keepalive_timeout=IDLE_SECONDS,
        )
        self._max_idle = max_idle
        self._connecting = defaultdict[Any, asyncio.Semaphore](lambda: asyncio.Semaphore(MAX_CONNECTING))

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """Return an idle connection, or open a new one. Wait while `MAX_CONNECTING` connections to the same
        provider are being opened.
        """
        async with self._connecting[req.connection_key]:
            return await super().connect(req, traces, timeout)

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        """Return a connection to the pool. Close the connection instead if `should_close` is True or the pool has
        enough idle connections. This method overrides a private method, because the library has no public limit on
        idle connections.
        """
        idle = sum(map(len, self._conns.values()))
        super()._release(key, protocol, should_close=should_close or idle >= self._max_idle)
