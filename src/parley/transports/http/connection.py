"""One connection of an HTTP client, with deadlines and a limit for headers.

The HTTP library has no deadline for the headers of a request and allows them to be large. A connection is closed if
the headers of a request do not arrive within `HEADER_SECONDS`, or no further request begins within `IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

__all__ = ["Connection", "Connections"]

log = logging.getLogger(__name__)

MOST_HEADER_BYTES: Final = 32 * 1024
MOST_LINE_BYTES: Final = 8 * 1024
"""The longest request line."""
MOST_HEADERS: Final = 100

_HEADERS_END: Final = b"\r\n\r\n"


class Deadlines(Protocol):
    @property
    def header_seconds(self) -> float: ...

    @property
    def idle_seconds(self) -> float: ...


class Connections(Protocol):
    """The interface that a connection reports to."""

    def opened(self, connection: Connection) -> None: ...

    def ended(self, connection: Connection) -> None: ...


class Connection(RequestHandler):
    """The protocol of one connection."""

    __slots__ = (
        "_connections",
        "_deadline",
        "_deadlines",
        "_header_bytes",
        "_in_request",
        "_seen",
        "_unwritten",
        "is_trusted",
    )

    def __init__(self, server: web.Server, connections: Connections, deadlines: Deadlines) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=24 * 3600,  # our own deadlines close idle connections
            lingering_time=0,
            access_log=None,  # type: ignore[arg-type] # the library accepts it, its types do not
            max_line_size=MOST_LINE_BYTES,
            max_field_size=MOST_HEADER_BYTES,
            max_headers=MOST_HEADERS,
            auto_decompress=False,  # a small body could become a large one
        )
        self._connections, self._deadlines = connections, deadlines
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._seen = b""
        self._unwritten = 0
        self._in_request = False
        self.is_trusted = False
        """True when a request on this connection was authenticated."""

    # --- the life of a connection ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._close_after(self._deadlines.header_seconds)
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_deadline()
        self._connections.ended(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and not self._in_request and not self._count_headers(data):
            log.warning("closed a connection: the headers of a request are larger than %d bytes", MOST_HEADER_BYTES)
            self.abort()
            return
        super().data_received(data)

    def abort(self) -> None:
        """Close the connection at once."""
        if (transport := self.transport) is not None:
            transport.abort()

    # --- requests ----------------------------------------------------------------------

    def request_began(self) -> None:
        """Record that the headers of a request have arrived."""
        self._in_request = True
        self._cancel_deadline()

    def request_ended(self) -> None:
        """Record that a request was answered."""
        self._in_request = False
        self._header_bytes, self._seen, self._unwritten = 0, b"", 0
        self._close_after(self._deadlines.idle_seconds)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that the library could not read or handle. Neither the answer nor the log repeats
        text of the client.
        """
        log.warning("answered a request with %d: %s", status, type(exc).__name__ if exc is not None else "failed")
        self.request_began()
        response = web.Response(status=status, headers={"Server": "parley", "Cache-Control": "no-store"})
        response.force_close()
        self._close_after(self._deadlines.idle_seconds)  # the client may not read
        return response

    # --- limits ------------------------------------------------------------------------

    def _count_headers(self, data: bytes) -> bool:
        """Return False if the headers of the next request are too large."""
        if self._header_bytes < 0:
            return True  # they are complete, and the request begins in a moment
        joined = self._seen + data
        if not self._seen:
            joined = joined.lstrip(b"\r\n")  # empty lines before a request are ignored
        end = joined.find(_HEADERS_END)
        size = self._header_bytes + len(data) - (0 if end < 0 else len(joined) - end)
        if size > MOST_HEADER_BYTES:
            return False
        if end >= 0 or not self._header_bytes:
            self._close_after(self._deadlines.header_seconds)
        self._header_bytes = -1 if end >= 0 else size
        self._seen = joined[-len(_HEADERS_END) + 1 :]
        return True

    def _close_after(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self._loop.call_later(seconds, self._late)

    def _late(self) -> None:
        unwritten = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if unwritten not in (0, self._unwritten) and not self._header_bytes:
            self._unwritten = unwritten  # the client is still reading an answer
            self._close_after(self._deadlines.idle_seconds)
        else:
            self.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
