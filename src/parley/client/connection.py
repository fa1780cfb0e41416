"""JSON-RPC requests and results over one transport.

Matches results to requests. Passes notifications and requests of the server on without knowing their methods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.client.errors import CallCancelled, CallTimedOut, ClientError, Disconnected, RequestFailed, ToolFailed
from parley.client.transport import Transport
from parley.wire.jsonrpc import (
    Message,
    RequestId,
    decode_lenient,
    decode_message,
    encode,
    error_of,
    notification,
    request,
)
from parley.wire.mcp import CallToolParams, Cancelled, RequestMeta, TextContent

__all__ = ["Call", "Connection", "typed_value"]

T = TypeVar("T")

log: Final = logging.getLogger("parley.client")

_NO_PARAMS: Final = Raw(b"{}")


class Call(NamedTuple):
    """A request that was sent, and the future of its result."""

    request_id: RequestId
    name: str
    """The method or the tool."""
    result: asyncio.Future[Raw]


class _Pending(NamedTuple):
    result: asyncio.Future[Raw]
    on_result: Callable[[Raw], None] | None


class Connection:
    """The client's side of the protocol. All waits end with `Disconnected` when the server has ended."""

    def __init__(
        self,
        transport: Transport,
        *,
        on_notification: Callable[[str, Raw], None],
        on_request: Callable[[RequestId, str, Raw], None],
        on_frame: Callable[[bytes], None] | None,
        on_end: Callable[[Disconnected], None],
        timeout_seconds: float | None,
    ) -> None:
        self._transport = transport
        self._on_notification, self._on_request = on_notification, on_request
        self._on_frame, self._on_end = on_frame, on_end
        self._timeout_seconds = timeout_seconds
        self._pending: dict[RequestId, _Pending] = {}
        self._last_id = 0
        self._ended: Disconnected | None = None

    async def start(self) -> None:
        await self._transport.start(on_message=self._receive, on_end=self._end)

    async def close(self) -> None:
        await self._transport.close()

    # --- to the server -------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: object = None,
        *,
        name: str | None = None,
        on_result: Callable[[Raw], None] | None = None,
    ) -> Call:
        """Send a request. `on_result` is called before the next message of the server is read.

        Raises:
            Disconnected: the server has ended.
        """
        self._last_id += 1
        request_id = self._last_id
        self.send(request(request_id, method, _encoded(params)))
        result: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = _Pending(result, on_result)
        return Call(request_id, name or method, result)

    def call_tool(
        self,
        tool: str,
        arguments: object,
        *,
        progress_token: RequestId | None = None,
        on_result: Callable[[Raw], None] | None = None,
    ) -> Call:
        """Send a `tools/call`. Its result is not decoded."""
        meta = UNSET if progress_token is None else RequestMeta(progress_token=progress_token)
        params = CallToolParams(name=tool, arguments=Raw(encode(arguments)), meta=meta)
        return self.request(CallToolParams.METHOD, params, name=tool, on_result=on_result)

    async def result_of(self, call: Call, timeout_seconds: float | None = None) -> Raw:
        """Wait for the result of a call, by default as long as the connection allows.

        Raises:
            CallTimedOut: there was no result in time.
            RequestFailed: the result is a JSON-RPC error.
            Disconnected: the server has ended.
        """
        seconds = self.time_limit(timeout_seconds)
        if seconds is None:
            return await call.result
        try:
            async with asyncio.timeout(seconds):
                return await call.result
        except TimeoutError:
            self._pending.pop(call.request_id, None)
            raise CallTimedOut(call.name, seconds) from None

    def time_limit(self, timeout_seconds: float | None) -> float | None:
        """Return the time limit of a call: its own, else that of the connection."""
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds

    async def call_typed(
        self, tool: str, arguments: object, kind: type[T], timeout_seconds: float | None = None
    ) -> T:
        """Call a tool and return the value of its typed result.

        Raises:
            ToolFailed: the tool failed.
            CallTimedOut, RequestFailed, Disconnected: as for `result_of`.
        """
        return typed_value(tool, await self.result_of(self.call_tool(tool, arguments), timeout_seconds), kind)

    def notify(self, method: str, params: object = None) -> None:
        self.send(notification(method, _encoded(params)))

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request on the server; do nothing if the server has ended."""
        self._pending.pop(request_id, None)
        if self._ended is None:
            self.notify(Cancelled.METHOD, Cancelled(request_id=request_id))

    def cancel_call(self, call: Call) -> None:
        """Cancel a request that has no result yet; waiting for it then raises `CallCancelled`."""
        if call.request_id in self._pending:
            self.cancel(call.request_id)
            _fail(call.result, CallCancelled())

    def send(self, frame: bytes) -> None:
        """Send one message, without its line end."""
        self.send_raw(frame + b"\n")

    def send_raw(self, data: bytes) -> None:
        if self._ended is not None:
            raise Disconnected(self._ended.exit_code)
        self._transport.send(data)

    # --- from the server -----------------------------------------------------------------

    def _receive(self, frame: bytes) -> None:
        """Handle one message. An error in it affects this message only."""
        try:
            if self._on_frame is not None:
                self._on_frame(frame)
            self._dispatch(decode_message(frame))
        except msgspec.DecodeError as error:
            log.warning("ignored a message of the server: %s", error)
        except Exception:
            log.exception("failed to handle a message of the server")

    def _dispatch(self, message: Message) -> None:
        if isinstance(message.method, str):
            params = _NO_PARAMS if isinstance(message.params, UnsetType) else message.params
            if isinstance(message.id, UnsetType):
                self._on_notification(message.method, params)
            else:
                self._on_request(message.id, message.method, params)
        elif not isinstance(message.id, UnsetType) and (pending := self._pending.pop(message.id, None)):
            self._complete(pending, message)

    def _complete(self, pending: _Pending, message: Message) -> None:
        if (error := error_of(message)) is not None:
            _fail(pending.result, RequestFailed(error.code, error.message, code=error.name))
            return
        result = _NO_PARAMS if isinstance(message.result, UnsetType) else message.result
        # Called also if the caller has stopped waiting: the stream that the result confirms has other readers.
        if pending.on_result is not None:
            pending.on_result(result)
        if not pending.result.done():
            pending.result.set_result(result)

    def _end(self, exit_code: int | None) -> None:
        """Fail all pending requests: the server has ended."""
        self._ended = Disconnected(exit_code)
        pending, self._pending = self._pending, {}
        for one in pending.values():
            _fail(one.result, Disconnected(exit_code))
        self._on_end(self._ended)


def _encoded(params: object) -> bytes:
    return encode({} if params is None else params)


def _fail(result: asyncio.Future[Raw], error: ClientError) -> None:
    if not result.done():
        result.set_exception(error)
        result.exception()  # marks the exception as retrieved: the caller may never await this call


# --- results of tools ------------------------------------------------------------------


class _ToolResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool's result whose value is not decoded yet."""

    content: tuple[TextContent, ...] = ()
    is_error: bool = False
    structured_content: Raw | UnsetType = UNSET


class _Failure(Struct, frozen=True):
    message: str = ""
    code: str | None = None


_result_decoder: Final = msgspec.json.Decoder(_ToolResult)
_failure_decoder: Final = msgspec.json.Decoder(_Failure)


def typed_value(tool: str, result: Raw, kind: type[T]) -> T:
    """Return the value of a typed result.

    Raises:
        ToolFailed: the tool failed.
    """
    decoded = decode_lenient(_result_decoder, result)
    value = decoded.structured_content
    if decoded.is_error:
        failure = _Failure() if isinstance(value, UnsetType) else decode_lenient(_failure_decoder, value)
        text = failure.message or "".join(part.text for part in decoded.content)
        raise ToolFailed(tool, text, code=failure.code)
    return decode_lenient(msgspec.json.Decoder(kind), b"{}" if isinstance(value, UnsetType) else value)
