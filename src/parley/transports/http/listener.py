"""Accepts HTTP connections, limits their number, and passes requests to an endpoint.

A request or a connection that fails does not affect other requests or connections. When there are too many
connections, the oldest connection without an authenticated request is closed. Therefore, unauthenticated
connections cannot prevent clients from connecting.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web
from msgspec import Struct

from parley.common.limited_log import LimitedLog
from parley.transports.http.connection import Connection
from parley.transports.http.event_stream import EventStream
from parley.transports.http.exchange import BODY_SECONDS, HttpExchange, WebSocketAnswer, send_answer
from parley.wire.http import HttpAnswer

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

__all__ = ["Endpoint", "HttpListener", "HttpListenerOptions"]

log = logging.getLogger(__name__)

BACKLOG: Final = 512
ACCEPT_AGAIN_SECONDS: Final = 0.1
"""The delay, in seconds, before connections are accepted again after the process had no free descriptor."""
HANDSHAKE_SECONDS: Final = 10.0

Endpoint = Callable[[HttpExchange], Awaitable[object]]
"""A function that handles a request. It returns an `HttpAnswer`, or the result of `HttpExchange.open_stream` or
`HttpExchange.open_link`.
"""


class HttpListenerOptions(Struct, frozen=True, kw_only=True):
    """The limits and the TLS context of a listener."""

    max_connections: int = 1024
    """The maximum number of open connections."""
    max_unauthenticated_body_bytes: int = 4 * 1024 * 1024
    """The maximum number of bytes of an unread body that are read and discarded after the response, so that a
    client that is still sending gets the response. In most cases, an unread body belongs to an unauthenticated
    request.
    """
    header_seconds: float = 10.0
    """The maximum number of seconds that the headers of a request may take to arrive."""
    idle_seconds: float = 5.0
    """The maximum number of seconds for which a connection may stay open without a request."""
    body_seconds: float = BODY_SECONDS
    tls: ssl.SSLContext | None = None


class HttpListener:
    """Accepts HTTP connections on all addresses of a host."""

    def __init__(self, endpoint: Endpoint, options: HttpListenerOptions) -> None:
        self._endpoint, self._options = endpoint, options
        self.log = LimitedLog(log)
        self._server = web.Server(self._handle, handler_cancellation=True)
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        """The sockets that temporarily accept no connections because the process had no free descriptor. Maps each
        socket to the timer that resumes accepting.
        """
        self._starting: dict[asyncio.Task[None], None] = {}
        """Connections whose TLS handshake is not complete."""
        self._open: dict[Connection, None] = {}
        """The open connections, in the order in which they were opened."""

    def apply(self, options: HttpListenerOptions) -> None:
        """Use the limits and the certificate of `options` for new connections."""
        self._options = options

    # --- listening ---------------------------------------------------------------------

    def listen(self, host: str, port: int) -> int:
        """Listen on all addresses of `host`, and return the port. If `port` is 0, the operating system chooses the
        port.

        Raises:
            OSError: the host has no address, or the operating system cannot listen on an address.
        """
        try:
            for family, _, _, _, address in _addresses(host, port):
                self._sockets.append(_bound(family, (*address[:1], port, *address[2:])))
                port = self._sockets[-1].getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        for one in self._sockets:
            self._begin_accepting(one)
        return port

    def stop_accepting(self) -> None:
        """Accept no more connections. Open connections continue."""
        for one in self._sockets:
            if (pause := self._pauses.pop(one, None)) is not None:
                pause.cancel()
            asyncio.get_running_loop().remove_reader(one)
        self._close_sockets()

    async def close(self, grace_seconds: float) -> None:
        """Stop accepting connections, wait up to `grace_seconds` for the requests in progress, and close all
        connections.
        """
        self.stop_accepting()
        for task in self._starting:
            task.cancel()
        await self._server.shutdown(grace_seconds)

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def _begin_accepting(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            channel, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # the client has disconnected
        except OSError as error:
            self.log.warning("cannot accept an HTTP connection: %s", error)
            loop.remove_reader(listening)
            self._pauses[listening] = loop.call_later(ACCEPT_AGAIN_SECONDS, self._begin_accepting, listening)
            return
        if not self._make_room():
            self.log.warning("refused an HTTP connection: %d are open", len(self._open))
            channel.close()
            return
        task = loop.create_task(self._start(channel))
        self._starting[task] = None
        task.add_done_callback(lambda task: self._starting.pop(task, None))

    async def _start(self, channel: socket.socket) -> None:
        loop, tls = asyncio.get_running_loop(), self._options.tls
        try:
            channel.setblocking(False)
            await loop.connect_accepted_socket(
                lambda: Connection(self._server, self, self._options),
                channel,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls is not None else None,
            )
        except OSError as error:  # the errors include a failed TLS handshake
            log.debug("an HTTP connection could not be opened: %s", type(error).__name__)
            channel.close()
        except asyncio.CancelledError:
            channel.close()
            raise

    # --- connections -------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._open[connection] = None

    def ended(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def may_open(self, limited_as: str) -> bool:
        """Return whether the principal that is counted under `limited_as` may open another connection. Each
        principal may have at most half of `max_connections` open connections.
        """
        limit = self._options.max_connections // 2
        return len(self._open) < limit or sum(one.limited_as == limited_as for one in self._open) < limit

    def _make_room(self) -> bool:
        """If there are too many connections, close the oldest unauthenticated connection. If there are too many TLS
        handshakes, cancel the oldest handshake. Return whether another connection may be opened.
        """
        limit = self._options.max_connections
        if len(self._starting) >= max(1, limit // 4):
            next(iter(self._starting)).cancel()
        unauthenticated = [one for one in self._open if not one.is_trusted] if len(self._open) >= limit // 2 else []
        if unauthenticated and (
            len(self._open) + len(self._starting) >= limit or len(unauthenticated) >= limit // 2
        ):
            unauthenticated[0].abort()
            self._open.pop(unauthenticated[0], None)
        return len(self._open) + len(self._starting) < limit

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.request_began()
        try:
            exchange = HttpExchange(request, connection, body_seconds=self._options.body_seconds)
            try:
                answer = await self._endpoint(exchange) if _can_read(exchange) else HttpAnswer(status=501)
                assert isinstance(answer, HttpAnswer | EventStream | WebSocketAnswer)
            except Exception:
                log.exception("failed to handle an HTTP request")
                answer = HttpAnswer(status=500)
            return await send_answer(
                request, connection, exchange, answer, most_discarded=self._options.max_unauthenticated_body_bytes
            )
        finally:
            connection.request_ended()


def _can_read(exchange: HttpExchange) -> bool:
    """Return whether the server can decode the body of the request. The body must have no transfer coding, or only
    the transfer coding `chunked`.
    """
    return [coding.strip().lower() for coding in exchange.header("Transfer-Encoding")] in ([], ["chunked"])


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, int, int, str, tuple[str, int]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list({one[4][0]: one for one in found}.values())  # type: ignore[arg-type] # an address begins with host and port


def _bound(family: socket.AddressFamily, address: tuple[str | int, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
