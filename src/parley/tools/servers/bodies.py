"""Checks the bodies of HTTP responses before the client library reads them.

The library accepts a body of any length and any content. Here a body has a size limit, is not compressed, and
answers its request. Only `session.py` imports this module, together with the library.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import anyio
import httpx2
import msgspec

from parley.tools.servers.failures import UNREADABLE, refusal
from parley.tools.servers.message_limits import MAX_INITIALIZE_BYTES, EventSize, excess
from parley.wire.jsonrpc import decode_message

__all__ = ["Exchange", "checked_body"]

HTTP_ERROR: Final = 400
EVENT_STREAM: Final = "text/event-stream"

REOPEN_SECONDS: Final = 0.5
"""Time before an event stream that the server has ended is opened again. The library itself would open it again
and again, at the interval that the server asks for.
"""


class Exchange:
    """A request to an HTTP server, and why it failed."""

    def __init__(self) -> None:
        self.why: str | None = None
        """The reason that the HTTP status or the body gives; None: no failure is known."""


def checked_body(response: httpx2.Response, exchange: Exchange, *, max_bytes: int) -> httpx2.AsyncByteStream:
    """Return a stream to read in place of the response's own.

    Reading fails at a message longer than `max_bytes`, in the way in which the library expects a broken stream to
    fail.
    """
    if response.status_code >= HTTP_ERROR and response.request.method == "POST":
        exchange.why = refusal(response.status_code, response.reason_phrase)
    return _Body(response, exchange, max_bytes)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, exchange: Exchange, max_bytes: int) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._response, self._stream, self._exchange = response, response.stream, exchange
        self._max_bytes = min(max_bytes, MAX_INITIALIZE_BYTES) if _is_initialize(response.request) else max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        headers = self._response.headers
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise self._broken(UNREADABLE)  # not requested, and a small body may expand to a large one
        if headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            size = EventSize(self._max_bytes)
            async for data in self._stream:
                if (why := size.add(data)) is not None:
                    self._exchange.why = why
                    raise httpx2.SSEError(why)  # the library retries after any other error
                yield data
            if self._response.request.method == "GET":
                await anyio.sleep(REOPEN_SECONDS)
            return
        body = bytearray()
        async for data in self._stream:
            body += data
            if len(body) > self._max_bytes:
                break
        whole = bytes(body)
        del body
        if (why := excess(whole, self._max_bytes)) is not None:
            raise self._broken(why)
        if self._response.is_success and not self._answers_request(whole):
            raise self._broken(UNREADABLE)
        yield whole

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _answers_request(self, body: bytes) -> bool:
        """Return whether the body answers the request: otherwise the library would wait forever."""
        request = self._response.request
        if request.method != "POST":
            return True
        try:
            asked, answered = decode_message(request.content), decode_message(body)
        except msgspec.DecodeError:
            return False
        return answered.method is msgspec.UNSET and str(answered.id) == str(asked.id)

    def _broken(self, why: str) -> httpx2.StreamError:
        self._exchange.why = self._exchange.why or why
        return httpx2.StreamError(why)


def _is_initialize(request: httpx2.Request) -> bool:
    if request.method != "POST":
        return False
    try:
        return decode_message(request.content).method == "initialize"
    except msgspec.DecodeError:
        return False
