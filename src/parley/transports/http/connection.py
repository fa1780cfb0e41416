"""One connection of an HTTP client, with deadlines and a size limit for headers.

The HTTP library has no deadline for the headers of a request and allows large headers. A connection is closed if
the headers of a request do not arrive within `header_seconds`, or if no further request begins within
`idle_seconds`.

The library does not get the body of a request until the client is authenticated, because parsing a body of many
small chunks takes a long time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from parley.wire.http import HEADERS

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

    from parley.common.limited_log import LimitedLog

__all__ = ["Connection", "Connections"]

MAX_HEADER_BYTES: Final = 32 * 1024
MAX_LINE_BYTES: Final = 8 * 1024
"""The maximum length of a request line, in bytes."""
MAX_HEADERS: Final = 100

_HEADERS_END: Final = b"\r\n\r\n"


class Deadlines(Protocol):
    @property
    def header_seconds(self) -> float: ...

    @property
    def idle_seconds(self) -> float: ...


class Connections(Protocol):
    """The part of the listener that a connection uses."""

    log: LimitedLog

    def opened(self, connection: Connection) -> None: ...

    def ended(self, connection: Connection) -> None: ...

    def may_open(self, limited_as: str) -> bool: ...


class Connection(RequestHandler):
    """The asyncio protocol of one HTTP connection. Adds deadlines and limits to the HTTP library."""

    __slots__ = (
        "_connections",
        "_deadline",
        "_deadlines",
        "_discardable",
        "_discarded",
        "_header_bytes",
        "_in_request",
        "_seen",
        "_unwritten",
        "_withheld",
        "is_trusted",
        "limited_as",
    )

    def __init__(self, server: web.Server, connections: Connections, deadlines: Deadlines) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            # disable the library's timeout, because the deadlines of this class close idle connections
            keepalive_timeout=24 * 3600,
            lingering_time=0,
            access_log=None,  # type: ignore[arg-type] # the library accepts None, its types do not
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            auto_decompress=False,  # a small compressed body could expand to a large one
        )
        self._connections, self._deadlines = connections, deadlines
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._seen = b""
        self._unwritten = 0
        self._in_request = False
        self._withheld: bytes | None = None
        """The bytes after the headers of an unauthenticated request, which are withheld from the HTTP library; None
        if no bytes are withheld.
        """
        self._discardable = 0
        """The number of bytes of an unread body that the connection must still discard before it is closed."""
        self._discarded = asyncio.Event()
        self.is_trusted = False
        """True if a request on this connection was authenticated."""
        self.limited_as: str | None = None
        """The string under which the connections of the principal are counted (`Principal.limited_as`); None for an
        unauthenticated client or an admin.
        """

    # --- the life of a connection ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._close_after(self._deadlines.header_seconds)
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_deadline()
        self._discarded.set()
        self._connections.ended(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._withheld is not None:
            self._withhold(data)
            return
        if data and not self._in_request:
            rest = self._count_headers(data)
            if rest is None:
                self._connections.log.warning(
                    "closed a connection: the headers of a request are larger than %d bytes", MAX_HEADER_BYTES
                )
                self.abort()
                return
            if self._header_bytes < 0:  # the headers are complete
                end = len(data) - rest
                self._withheld = b""
                self._withhold(data[end:])
                data = data[:end]
        super().data_received(data)

    def abort(self) -> None:
        """Close the connection immediately."""
        if (transport := self.transport) is not None:
            transport.abort()

    # --- requests ----------------------------------------------------------------------

    def request_began(self) -> None:
        """Cancel the deadline for the headers. This method is called when the headers of a request have arrived."""
        self._in_request = True
        self._cancel_deadline()

    def request_ended(self) -> None:
        """Start the deadline for the next request. This method is called after the response to a request."""
        self._in_request = False
        self._header_bytes, self._seen, self._unwritten = 0, b"", 0
        self._close_after(self._deadlines.idle_seconds)

    @property
    def is_withholding(self) -> bool:
        """True if the body of the request is withheld from the HTTP library, because the client is not
        authenticated and the endpoint has not begun to read the body.
        """
        return self._withheld is not None

    def trust(self, limited_as: str | None) -> bool:
        """Record that a request was authenticated, and return True. Return False, and record nothing, if the
        principal that is counted under `limited_as` has too many connections. `limited_as` is None if the
        connections of the principal are not limited.
        """
        if limited_as not in (None, self.limited_as) and not self._connections.may_open(limited_as):
            return False
        self.is_trusted, self.limited_as = True, limited_as
        return True

    def read_body(self) -> None:
        """Pass the withheld part of the body, and all later parts, to the HTTP library."""
        if self._withheld is None:
            return
        withheld, self._withheld = self._withheld, None
        if self.transport is not None:
            self.transport.resume_reading()
        if withheld:
            super().data_received(withheld)

    async def discard(self, max_bytes: int, length: int | None) -> None:
        """Discard an unread body of `length` bytes, so that a client that is still sending can read the response.

        Return when the client has disconnected, has sent the whole body, or has sent `max_bytes` bytes. `length` is
        None if the length is unknown.
        """
        left = max_bytes if length is None else min(max_bytes, length)
        self._discardable = left - len(self._withheld or b"")
        self._withheld = b""
        transport = self.transport
        if self._discardable <= 0 or transport is None:
            return
        if transport.can_write_eof():
            transport.write_eof()  # the client may be waiting for the end of the response
        transport.resume_reading()
        await self._discarded.wait()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the error response to a request that the HTTP library could not read or handle. The response and
        the log contain no text from the client.
        """
        if not isinstance(exc, ConnectionError):  # such an error means that the client has disconnected
            why = type(exc).__name__ if exc is not None else "failed"
            self._connections.log.warning("an HTTP request failed with status %d: %s", status, why)
        self.request_began()
        response = web.Response(status=status, headers=HEADERS)
        response.force_close()
        self._close_after(self._deadlines.idle_seconds)  # the client may never read the response
        return response

    # --- limits ------------------------------------------------------------------------

    def _withhold(self, data: bytes) -> None:
        assert self._withheld is not None
        if self._discardable > 0:
            self._discardable -= len(data)
            if self._discardable <= 0:
                self._discarded.set()
            return
        self._withheld += data
        if self.transport is not None:
            self.transport.pause_reading()

    def _count_headers(self, data: bytes) -> int | None:
        """Look for the end of the headers of the next request in `data`, which was just received, and check their
        size. Return the number of bytes in `data` that follow the headers. The result is 0 if `data` does not
        contain the end of the headers, or if no byte follows them. The result is None if the headers are too large.
        """
        if self._header_bytes < 0:
            return 0  # the headers are complete, and the library is about to begin the request
        joined = self._seen + data
        if not self._seen:
            joined = joined.lstrip(b"\r\n")  # empty lines before a request are ignored
        end = joined.find(_HEADERS_END)
        size = self._header_bytes + len(data) - (0 if end < 0 else len(joined) - end)
        if size > MAX_HEADER_BYTES:
            return None
        if end >= 0 or not self._header_bytes:
            self._close_after(self._deadlines.header_seconds)
        self._header_bytes = -1 if end >= 0 else size
        self._seen = joined[-len(_HEADERS_END) + 1 :]
        return 0 if end < 0 else len(joined) - end - len(_HEADERS_END)

    def _close_after(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self._loop.call_later(seconds, self._late)

    def _late(self) -> None:
        unwritten = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if unwritten not in (0, self._unwritten) and not self._header_bytes:
            self._unwritten = unwritten  # the client is still reading a response
            self._close_after(self._deadlines.idle_seconds)
        else:
            self.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
