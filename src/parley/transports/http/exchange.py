"""One HTTP request and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.web_exceptions import HTTPException

from parley.errors import BodyTooLarge, BodyUnreadable
from parley.transports.http.event_stream import EventStream
from parley.wire.http import HttpAnswer

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

    from parley.transports.http.connection import Connection

__all__ = ["HttpExchange", "send_answer"]

BODY_SECONDS: Final = 30.0
"""How long the body of a request may take."""
DISCARD_SECONDS: Final = 2.0
"""How long the rest of a body is read and discarded, so that a client that is still sending gets the answer."""

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Server": "parley",
    "X-Content-Type-Options": "nosniff",
}
"""Sent with every answer."""


class HttpExchange:
    """A request. The endpoint returns its answer: an `HttpAnswer` or an `EventStream`."""

    def __init__(self, request: BaseRequest, connection: Connection, *, body_seconds: float) -> None:
        self.method, self.target = request.method, request.raw_path
        self._request, self._connection, self._body_seconds = request, connection, body_seconds
        self._stream_headers: dict[str, str] = {}

    @property
    def remote(self) -> str:
        """The address of the client."""
        return self._request.remote or ""

    @property
    def header_bytes(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._request.raw_headers)

    def header(self, name: str) -> list[str]:
        """Return all values of a header."""
        return list(self._request.headers.getall(name, ()))

    def authenticated(self) -> None:
        """Record that the client is authenticated: its connection is kept when there are too many connections."""
        self._connection.is_trusted = True
        self._connection.read_body()

    async def body(self, most: int, why_too_large: Callable[[int], str | None]) -> bytes:
        """Read the body.

        Raises:
            BodyTooLarge: it is larger than `most` bytes, or there is no memory for it.
            BodyUnreadable: it did not arrive in time or completely.
        """
        length = self._request.content_length or 0
        if length > most or why_too_large(length) is not None:
            raise BodyTooLarge(most)
        self._connection.read_body()
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self._body_seconds):
                while piece := await self._request.content.readany():
                    pieces.append(piece)
                    size += len(piece)
                    if size > most or (size > length and why_too_large(size) is not None):
                        raise BodyTooLarge(most)
        except TimeoutError:
            raise BodyUnreadable("it did not arrive in time") from None
        except (OSError, ValueError, HTTPException, web.PayloadAccessError):
            raise BodyUnreadable("it is not complete") from None
        return b"".join(pieces)

    def open_stream(self, headers: Mapping[str, str] | None = None) -> EventStream:
        """Return a stream for the answer. `headers` are sent with it."""
        self._stream_headers = dict(headers or {})
        return EventStream()

    @property
    def stream_headers(self) -> Mapping[str, str]:
        return self._stream_headers


async def send_answer(
    request: BaseRequest,
    connection: Connection,
    exchange: HttpExchange,
    answer: HttpAnswer | EventStream,
    *,
    most_discarded: int,
) -> web.StreamResponse:
    """Send the answer; return when the client has read a stream to its end.

    The connection is closed after the answer to a stranger, or to a request whose body was not read.
    """
    if isinstance(answer, EventStream):
        return await _send_stream(request, exchange, answer)
    response = web.Response(status=answer.status, body=answer.body, headers={**HEADERS, **answer.headers})
    if connection.is_withholding or not request.content.at_eof():
        response.force_close()
    await response.prepare(request)
    await response.write_eof()
    if not request.content.at_eof():
        await _discard(request, connection, most_discarded)
    return response


async def _send_stream(request: BaseRequest, exchange: HttpExchange, stream: EventStream) -> web.StreamResponse:
    headers = {
        **HEADERS,
        "Content-Type": "text/event-stream",
        "X-Accel-Buffering": "no",
        **exchange.stream_headers,
    }
    response = web.StreamResponse(status=200, headers=headers)
    try:
        await response.prepare(request)
        await stream.run(response.write)
        with suppress(ConnectionError):
            await response.write_eof()
    finally:
        stream.close()
    return response


async def _discard(request: BaseRequest, connection: Connection, most: int) -> None:
    """Read the rest of a body, within limits."""
    size = 0
    with suppress(TimeoutError, OSError, ValueError, HTTPException, web.PayloadAccessError):
        async with asyncio.timeout(DISCARD_SECONDS):
            if connection.is_withholding:
                await connection.discard(most, request.content_length)
                return
            while size < most and (piece := await request.content.readany()):
                size += len(piece)
