"""Requests and answers over one child process.

Knows ids, answers and errors. Does not know a single method: notifications and requests of the
server go to whoever made the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.client.child import Child
from parley.client.errors import CallCancelled, ClientError, Disconnected, RequestFailed, ToolFailed
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
    """A request that was sent, and its result to come."""

    request_id: RequestId
    result: asyncio.Future[Raw]


class _Pending(NamedTuple):
    result: asyncio.Future[Raw]
    on_result: Callable[[Raw], None] | None


class Connection:
    """The client's end of the wire. All waits end with `Disconnected` when the server is gone."""

    child: Child

    def __init__(
        self,
        *,
        on_notification: Callable[[str, Raw], None],
        on_request: Callable[[RequestId, str, Raw], None],
        on_frame: Callable[[bytes], None] | None,
        on_gone: Callable[[int | None], None],
    ) -> None:
        self._on_notification, self._on_request = on_notification, on_request
        self._on_frame, self._on_gone = on_frame, on_gone
        self._pending: dict[RequestId, _Pending] = {}
        self._last_id = 0

    # --- to the server -------------------------------------------------------------------

    def request(
        self, method: str, params: object = None, *, on_result: Callable[[Raw], None] | None = None
    ) -> Call:
        """Send a request. `on_result` is called before the next message of the server is looked at.

        Raises:
            Disconnected: nobody is there to answer.
        """
        self._last_id += 1
        request_id = self._last_id
        self.write(request(request_id, method, _encoded(params)))
        result: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = _Pending(result, on_result)
        return Call(request_id, result)

    def call_tool(
        self,
        name: str,
        arguments: object,
        *,
        progress_token: RequestId | None = None,
        on_result: Callable[[Raw], None] | None = None,
    ) -> Call:
        """Send a `tools/call`; the result is still undecoded."""
        meta = UNSET if progress_token is None else RequestMeta(progress_token=progress_token)
        params = CallToolParams(name=name, arguments=Raw(encode(arguments)), meta=meta)
        return self.request(CallToolParams.METHOD, params, on_result=on_result)

    def notify(self, method: str, params: object = None) -> None:
        self.write(notification(method, _encoded(params)))

    def cancel(self, request_id: RequestId) -> None:
        """Tell the server that nobody wants the request to go on; nothing happens if it is gone."""
        if not self.child.ended:
            self.notify(Cancelled.METHOD, Cancelled(request_id=request_id))

    def cancel_call(self, call: Call) -> None:
        """Cancel a request that waits for its result; the wait ends with `CallCancelled`."""
        if self._pending.pop(call.request_id, None) is not None:
            self.cancel(call.request_id)
            _fail(call.result, CallCancelled())

    def write(self, frame: bytes) -> None:
        """Send one message, without its line end."""
        self.write_raw(frame + b"\n")

    def write_raw(self, data: bytes) -> None:
        if self.child.ended:
            raise Disconnected(self.child.exit_code)
        self.child.write(data)

    # --- from the server -----------------------------------------------------------------

    def take_line(self, line: bytes) -> None:
        """One line of the server. What goes wrong with it costs this line, not the connection."""
        try:
            if self._on_frame is not None:
                self._on_frame(line)
            self._take(decode_message(line))
        except msgspec.DecodeError as error:
            log.warning("skipped a message of the server: %s", error)
        except Exception:
            log.exception("a callback failed")

    def _take(self, message: Message) -> None:
        if isinstance(message.method, str):
            params = _NO_PARAMS if isinstance(message.params, UnsetType) else message.params
            if isinstance(message.id, UnsetType):
                self._on_notification(message.method, params)
            else:
                self._on_request(message.id, message.method, params)
        elif not isinstance(message.id, UnsetType) and (pending := self._pending.pop(message.id, None)):
            self._settle(pending, message)

    def _settle(self, pending: _Pending, message: Message) -> None:
        if (error := error_of(message)) is not None:
            _fail(pending.result, RequestFailed(error.code, error.message))
            return
        result = _NO_PARAMS if isinstance(message.result, UnsetType) else message.result
        # Also when nobody waits any more: what the answer means for others still holds.
        if pending.on_result is not None:
            pending.on_result(result)
        if not pending.result.done():
            pending.result.set_result(result)

    def take_end(self) -> None:
        """The server is gone: whoever waits hears of it."""
        exit_code = self.child.exit_code
        pending, self._pending = self._pending, {}
        for one in pending.values():
            _fail(one.result, Disconnected(exit_code))
        self._on_gone(exit_code)


def _encoded(params: object) -> bytes:
    return encode({} if params is None else params)


def _fail(result: asyncio.Future[Raw], error: ClientError) -> None:
    if not result.done():
        result.set_exception(error)
        result.exception()  # marks it as seen: perhaps nobody awaits this call


# --- results of tools ------------------------------------------------------------------


class _ToolAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool's result with its value as it came, to be decoded once its type is known."""

    content: tuple[TextContent, ...] = ()
    is_error: bool = False
    structured_content: Raw | UnsetType = UNSET


class _Reason(Struct, frozen=True):
    message: str = ""


_answers: Final = msgspec.json.Decoder(_ToolAnswer)
_reasons: Final = msgspec.json.Decoder(_Reason)


def typed_value(tool: str, result: Raw, kind: type[T]) -> T:
    """The value of a typed result.

    Raises:
        ToolFailed: the tool says that it failed.
    """
    answer = decode_lenient(_answers, result)
    value = answer.structured_content
    if answer.is_error:
        text = "".join(part.text for part in answer.content)
        raise ToolFailed(tool, text if isinstance(value, UnsetType) else decode_lenient(_reasons, value).message)
    return decode_lenient(msgspec.json.Decoder(kind), b"{}" if isinstance(value, UnsetType) else value)
