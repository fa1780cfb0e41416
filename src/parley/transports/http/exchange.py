"""One HTTP request and its response."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web
from aiohttp.web_exceptions import HTTPException

from parley.errors import BodyTooLarge, BodyUnreadable
from parley.transports.http.event_stream import EventStream
from parley.transports.websocket import CLOSE_SECONDS, HEARTBEAT_SECONDS, MAX_MESSAGE_BYTES, carry
from parley.wire.http import HEADERS, HttpAnswer

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

    from parley.transports.http.connection import Connection

__all__ = ["HttpExchange", "WebSocketAnswer", "send_answer"]

BODY_SECONDS: Final = 30.0
"""The maximum number of seconds that the body of a request may take to arrive."""
DISCARD_SECONDS: Final = 2.0
"""The maximum number of seconds for which the unread part of a body is read and discarded, so that a client that is
still sending gets the response.
"""


class HttpExchange:
    """One HTTP request. The endpoint returns the response: an `HttpAnswer`, an `EventStream` or a
    `WebSocketAnswer`.
    """

    def __init__(self, request: BaseRequest, connection: Connection, *, body_seconds: float) -> None:
        self.method, self.target = request.method, request.raw_path
        self._request, self._connection, self._body_seconds = request, connection, body_seconds
        self.answer_headers: dict[str, str] = {}
        """Headers that are sent in addition to the headers of the response itself."""

    @property
    def remote(self) -> str:
        """The IP address of the client."""
        return self._request.remote or ""

    @property
    def header_bytes(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._request.raw_headers)

    def header(self, name: str) -> list[str]:
        """Return all values of the request header `name`."""
        return list(self._request.headers.getall(name, ()))

    def mark_authenticated(self, limited_as: str | None = None) -> bool:
        """Record that the client is authenticated, and return True. The connection of an authenticated client is
        not closed when there are too many connections.

        `limited_as` names a principal that may have at most half of all connections; None for no such limit. Return
        False, and record nothing, if the principal already has that many connections.
        """
        if not self._connection.trust(limited_as):
            return False
        self._connection.read_body()
        return True

    def keep_alive_if_no_body(self) -> None:
        """Allow further requests on the connection of an unauthenticated client, if this request has no body. If
        the request has a body, the connection is closed after the response.
        """
        if not self._request.body_exists:
            self._connection.read_body()

    async def body(self, max_bytes: int, why_too_large: Callable[[int], str | None]) -> bytes:
        """Read and return the body. `why_too_large` is called with a number of bytes. It returns the reason why
        there is not enough memory for a body of this size, or None if there is enough memory.

        Raises:
            BodyTooLarge: the body is larger than `max_bytes`, or `why_too_large` returns a reason.
            BodyUnreadable: the body did not arrive completely or in time.
        """
        length = self._request.content_length or 0
        _refuse_too_large(length, max_bytes, why_too_large)
        self._connection.read_body()
        body, size = io.BytesIO(), 0
        try:
            async with asyncio.timeout(self._body_seconds):
                while piece := await self._request.content.readany():
                    size += body.write(piece)
                    _refuse_too_large(size, max_bytes, why_too_large if size > length else lambda size: None)
        except TimeoutError:
            raise BodyUnreadable("it did not arrive in time") from None
        except (OSError, ValueError, HTTPException, web.PayloadAccessError):
            raise BodyUnreadable("it is not complete") from None
        return body.getvalue()  # this call returns the bytes without a copy

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Add `headers` to the `HttpAnswer` or `EventStream` that the endpoint will return. If an `HttpAnswer`
        contains the same header, the value in the `HttpAnswer` is sent.
        """
        self.answer_headers.update(headers)

    def open_stream(self) -> EventStream:
        """Return a new event stream, which the endpoint returns as the response."""
        return EventStream()

    def open_link(self, protocol: str, accept: Callable[[socket.socket], None]) -> WebSocketAnswer:
        """Return a response that opens a WebSocket with the subprotocol `protocol`. When the WebSocket is open,
        `accept` is called with a socket whose bytes the WebSocket carries.
        """
        return WebSocketAnswer(protocol, accept)


class WebSocketAnswer(NamedTuple):
    """The response to a request that opens a WebSocket."""

    protocol: str
    accept: Callable[[socket.socket], None]


async def send_answer(
    request: BaseRequest,
    connection: Connection,
    exchange: HttpExchange,
    answer: HttpAnswer | EventStream | WebSocketAnswer,
    *,
    most_discarded: int,
) -> web.StreamResponse:
    """Send the response to a request, and return the HTTP library's object for the response. For a stream or a
    WebSocket, return when it has ended or the client has disconnected.

    The connection is closed after the response to an unauthenticated client, or to a request whose body was not
    read. At most `most_discarded` bytes of an unread body are read and discarded.
    """
    if isinstance(answer, EventStream):
        return await _send_stream(request, exchange, answer)
    if isinstance(answer, WebSocketAnswer):
        return await _open_websocket(request, answer)
    response = web.Response(
        status=answer.status, body=answer.body, headers={**HEADERS, **exchange.answer_headers, **answer.headers}
    )
    if connection.is_withholding or not request.content.at_eof():
        response.force_close()
    await response.prepare(request)
    await response.write_eof()
    response.body = None  # the body may be large, and an idle connection keeps its last response
    if not request.content.at_eof():
        await _discard(request, connection, most_discarded)
    return response


async def _send_stream(request: BaseRequest, exchange: HttpExchange, stream: EventStream) -> web.StreamResponse:
    headers = {
        **HEADERS,
        "Content-Type": "text/event-stream",
        "X-Accel-Buffering": "no",
        **exchange.answer_headers,
    }
    response = web.StreamResponse(status=200, headers=headers)
    try:
        with suppress(ConnectionError):  # the client has disconnected
            await response.prepare(request)
            await stream.run(response.write)
            await response.write_eof()
    finally:
        stream.close()
    return response


async def _open_websocket(request: BaseRequest, answer: WebSocketAnswer) -> web.StreamResponse:
    opened = web.WebSocketResponse(
        protocols=(answer.protocol,),
        heartbeat=HEARTBEAT_SECONDS,
        max_msg_size=MAX_MESSAGE_BYTES,
        compress=False,
        timeout=CLOSE_SECONDS,
    )
    await opened.prepare(request)
    ours, theirs = socket.socketpair()
    answer.accept(theirs)
    await carry(opened, ours)
    return opened


def _refuse_too_large(size: int, max_bytes: int, why_too_large: Callable[[int], str | None]) -> None:
    """Check the size of the request body. `why_too_large` has the same meaning as for `HttpExchange.body`.

    Raises:
        BodyTooLarge: `size` exceeds the limit `max_bytes`, or `why_too_large` returns a reason.
    """
    if size > max_bytes:
        raise BodyTooLarge(f"it is larger than {max_bytes} bytes (serve.max_body_bytes)")
    if (why := why_too_large(size)) is not None:
        raise BodyTooLarge(why)


async def _discard(request: BaseRequest, connection: Connection, max_bytes: int) -> None:
    """Read and discard up to `max_bytes` bytes of the unread part of a body, for at most `DISCARD_SECONDS`."""
    size = 0
    with suppress(TimeoutError, OSError, ValueError, HTTPException, web.PayloadAccessError):
        async with asyncio.timeout(DISCARD_SECONDS):
            if connection.is_withholding:
                await connection.discard(max_bytes, request.content_length)
                return
            while size < max_bytes and (piece := await request.content.readany()):
                size += len(piece)
