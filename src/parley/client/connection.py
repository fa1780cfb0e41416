"""Sends JSON-RPC requests over one transport and matches each response to its request.

The connection reconnects when the transport has ended. The callers of this module handle the notifications and
requests from the server.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.client.errors import (
    CallCancelled,
    CallLost,
    CallTimedOut,
    ClientError,
    Disconnected,
    RequestFailed,
    ServerRefused,
    ToolFailed,
    UnreadableResult,
)
from parley.client.transport import RestartableTransport, SeparateRequests, Transport
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

__all__ = ["Call", "Connection", "read_result", "typed_value"]

T = TypeVar("T")

log: Final = logging.getLogger("parley.client")

_NO_PARAMS: Final = Raw(b"{}")

FIRST_DELAY_SECONDS: Final = 0.05
STABLE_SECONDS: Final = 10.0
"""The time, in seconds, after which a restored connection counts as usable even if the server has sent no result. A
server that only completes the handshake must not keep a client reconnecting forever.
"""
MAX_DELAY_SECONDS: Final = 1.0
"""The maximum delay, in seconds, before an attempt to reconnect. The delays start at `FIRST_DELAY_SECONDS` and
double each time.
"""


class Call(NamedTuple):
    """A request to the server, with the future for its result."""

    request_id: RequestId
    name: str
    """The name of the method, or of the tool for a tool call."""
    result: asyncio.Future[Raw]


class _Pending(NamedTuple):
    name: str
    result: asyncio.Future[Raw]
    on_result: Callable[[Raw], None] | None


class Connection:
    """Sends requests to a server and matches each response to its request. After the connection has ended, every
    call raises `Disconnected`.

    If the transport can be restarted, the connection reconnects after a loss, and ends only if all attempts fail.
    When the connection is lost, calls that are waiting for a result raise `CallLost`. A request that is made while
    the connection is lost is sent when the connection is restored.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        on_notification: Callable[[str, Raw], None],
        on_request: Callable[[RequestId, str, Raw], None],
        on_frame: Callable[[bytes], None] | None,
        on_lost: Callable[[], None],
        on_restored: Callable[[], None],
        on_end: Callable[[Disconnected], None],
        handshake: Callable[[], Awaitable[None]],
        timeout_seconds: float | None,
        reconnect_seconds: float,
    ) -> None:
        """Create a connection. `on_notification` and `on_request` are called with the notifications and requests
        from the server. `on_frame` is called with every message from the server before the message is handled.
        `on_lost` is called when the connection is lost, and `on_end` when the connection cannot be restored. After
        a reconnection, `handshake` is awaited and then `on_restored` is called.

        `timeout_seconds` is the timeout of calls that have no timeout of their own; None means no timeout.
        `reconnect_seconds` limits how long the connection tries to restore itself; 0 disables reconnecting.
        """
        self._transport = transport
        self._separate = transport if isinstance(transport, SeparateRequests) else None
        self._on_notification, self._on_request = on_notification, on_request
        self._on_frame, self._on_end = on_frame, on_end
        self._on_lost, self._on_restored, self._handshake = on_lost, on_restored, handshake
        self._timeout_seconds, self._reconnect_seconds = timeout_seconds, reconnect_seconds
        self._pending: dict[RequestId, _Pending] = {}
        self._last_id = 0
        self._ended: Disconnected | None = None
        self._waiting: dict[RequestId, bytes] = {}
        """Encoded requests that are sent when the connection is restored, keyed by request id."""
        self._is_open = self._is_established = False
        self._restarting: asyncio.Task[None] | None = None
        """The task that restores a lost connection, including the handshake; None while the connection is
        usable.
        """
        self._reconnect_until: float | None = None
        """The time of the event loop at which the attempts to reconnect end; None if the next attempts get
        `reconnect_seconds` again.
        """
        self._restored_at = 0.0
        """The time of the event loop at which the connection was restored."""

    async def start(self) -> None:
        if self._separate is None:
            await self._transport.start(on_message=self._receive, on_end=self._end)
        else:
            await self._separate.start(on_message=self._receive, on_end=self._end, on_failed=self._fail_request)
        self._is_open = True

    async def close(self) -> None:
        self._is_established = False
        if (task := self._restarting) is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._transport.close()

    @property
    def reconnects(self) -> bool:
        """True if a lost connection would be restored. This is possible only with a restartable transport, and only
        from the first handshake until the client closes the connection.
        """
        return self._is_established and isinstance(self._transport, RestartableTransport)

    @property
    def texts_may_repeat(self) -> bool:
        """True if the server may send the text of an unfinished item again from its beginning, because the
        transport sends each request separately over HTTP.
        """
        return self._separate is not None

    def establish(self) -> None:
        """Record that the first handshake is complete. If reconnecting is enabled, a lost connection is restored
        from now on.
        """
        self._is_established = self._reconnect_seconds > 0

    # --- to the server -------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: object = None,
        *,
        name: str | None = None,
        on_result: Callable[[Raw], None] | None = None,
    ) -> Call:
        """Send a request, and return a `Call` with the future for its result. `name` is the name of the call in
        errors; the default is the method. `on_result` is called with the result before the next message from the
        server is handled. `on_result` is not called if the server responds with an error.

        Raises:
            Disconnected: the connection to the server has ended.
        """
        self._last_id += 1
        request_id = self._last_id
        frame = request(request_id, method, _encoded(params))
        result: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        pending = _Pending(name or method, result, on_result)
        if self._is_usable():
            self._send_request(request_id, pending, frame)
        else:
            self._waiting[request_id] = frame
        self._pending[request_id] = pending
        return Call(request_id, name or method, result)

    def _send_request(self, request_id: RequestId, pending: _Pending, frame: bytes) -> None:
        if pending.on_result is not None and self._separate is not None:
            self._separate.deliver_first(request_id)
        self.send(frame)

    def call_tool(
        self,
        tool: str,
        arguments: object,
        *,
        progress_token: RequestId | None = None,
        on_result: Callable[[Raw], None] | None = None,
    ) -> Call:
        """Send a `tools/call` request. The result of the returned call is encoded JSON. With a `progress_token`,
        the server sends progress notifications for the call. `on_result` has the same meaning as for `request`.
        """
        meta = UNSET if progress_token is None else RequestMeta(progress_token=progress_token)
        params = CallToolParams(name=tool, arguments=Raw(encode(arguments)), meta=meta)
        return self.request(CallToolParams.METHOD, params, name=tool, on_result=on_result)

    async def result_of(
        self, call: Call, timeout_seconds: float | None = None, *, keeps_waiting: bool = False
    ) -> Raw:
        """Wait for the result of a call, and return the result as encoded JSON. If `timeout_seconds` is None, the
        default timeout of the connection applies. If `keeps_waiting` is True, the call can be awaited again or
        cancelled after `CallTimedOut`. Otherwise a result that arrives after `CallTimedOut` is discarded.

        Raises:
            CallTimedOut: no response arrived in time.
            RequestFailed: the server responded with a JSON-RPC error.
            CallLost: the connection was lost before the response arrived, and is being restored.
            Disconnected: the connection to the server has ended.
        """
        seconds = self.time_limit(timeout_seconds)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(call.result)
        except TimeoutError:
            if not keeps_waiting:
                self._forget(call.request_id)
            raise CallTimedOut(call.name, seconds or 0) from None

    def time_limit(self, timeout_seconds: float | None) -> float | None:
        """Return the timeout of a call, in seconds; None means no timeout. The default timeout of the connection
        applies if `timeout_seconds` is None.
        """
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds

    async def call_typed(
        self,
        tool: str,
        arguments: object,
        kind: type[T],
        timeout_seconds: float | None = None,
        *,
        is_repeatable: bool = False,
    ) -> T:
        """Call a tool and return the structured content of its result, decoded as a value of the type `kind`.

        If `is_repeatable` is True, the call is sent again if the connection is lost before its result arrives.
        Making such a call twice must have the same effect as making it once.

        Raises:
            ToolFailed: the tool failed.
            CallTimedOut, RequestFailed, CallLost, Disconnected: as for `result_of`. A repeatable call never raises
                `CallLost`.
        """
        seconds = self.time_limit(timeout_seconds)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    call = self.call_tool(tool, arguments)
                    try:
                        return typed_value(tool, await call.result, kind)
                    except CallLost:
                        if not is_repeatable:
                            raise
                    finally:
                        self._forget(call.request_id)
        except TimeoutError:
            raise CallTimedOut(tool, seconds or 0) from None

    def notify(self, method: str, params: object = None) -> None:
        self.send(notification(method, _encoded(params)))

    def cancel(self, request_id: RequestId) -> None:
        """Stop waiting for the response to a request, and ask the server to cancel the request. If the connection
        has ended or is being restored, send nothing.
        """
        self._forget(request_id)
        if self._ended is None and self._restarting is None:
            self.notify(Cancelled.METHOD, Cancelled(request_id=request_id))

    def cancel_call(self, call: Call) -> None:
        """Cancel a call, so that awaiting its result raises `CallCancelled`. Do nothing if the call already has a
        result.
        """
        if call.request_id in self._pending:
            self.cancel(call.request_id)
            _fail(call.result, CallCancelled())

    def _forget(self, request_id: RequestId) -> None:
        self._pending.pop(request_id, None)
        self._waiting.pop(request_id, None)

    def send(self, frame: bytes) -> None:
        """Send one message, given without its final newline.

        Raises:
            Disconnected: the connection has ended or is being restored, so the message was not sent.
        """
        self.send_raw(frame + b"\n")

    def send_raw(self, data: bytes) -> None:
        if self._ended is not None:
            raise Disconnected(self._ended.exit_code, self._ended.reason)
        if not self._is_usable():
            raise Disconnected(None)
        self._transport.send(data)

    def _is_usable(self) -> bool:
        """Return whether the current task may send messages.

        While the connection is being restored, only the handshake may send messages.
        """
        return self._restarting is None or self._restarting is asyncio.current_task()

    # --- from the server -----------------------------------------------------------------

    def _receive(self, frame: bytes) -> None:
        """Pass a notification or request from the server to its callback, and a response to the call that waits for
        it. An invalid message is logged and ignored.
        """
        try:
            if self._on_frame is not None:
                self._on_frame(frame)
            self._dispatch(decode_message(frame))
        except msgspec.DecodeError as error:
            log.warning("ignored an invalid message from the server: %s", error)
        except Exception:
            log.exception("failed to handle a message from the server")

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
        if self._restarting is None:  # otherwise the result belongs to the handshake
            self._reconnect_until = None
        if (error := error_of(message)) is not None:
            _fail(pending.result, RequestFailed(error.code, error.message, code=error.name))
            return
        result = _NO_PARAMS if isinstance(message.result, UnsetType) else message.result
        # `on_result` is called even if the caller has stopped waiting, because the stream that the result confirms
        # may have other readers.
        if pending.on_result is not None:
            pending.on_result(result)
        if not pending.result.done():
            pending.result.set_result(result)

    def _fail_request(self, request_id: RequestId, error: ClientError | None) -> None:
        if (pending := self._pending.pop(request_id, None)) is not None:
            _fail(pending.result, CallLost(pending.name) if error is None else error)

    # --- the end of the connection -------------------------------------------------------

    def _end(self, exit_code: int | None) -> None:
        """Make all requests that have been sent fail, because the transport has ended, and reconnect if the
        transport can be restarted. `exit_code` is the exit code of the server's process; None if it is unknown or
        there is no such process.
        """
        self._is_open = False
        if self._ended is not None:
            return
        if not self.reconnects:
            self._give_up(Disconnected(exit_code))
            return
        for request_id in tuple(self._pending.keys() - self._waiting.keys()):
            pending = self._pending.pop(request_id)
            _fail(pending.result, CallLost(pending.name))
        if self._restarting is None:
            self._on_lost()
            self._restarting = asyncio.get_running_loop().create_task(self._restart())

    def _give_up(self, error: Disconnected) -> None:
        """Make all requests fail with `error`, because the connection cannot be restored."""
        self._ended = error
        pending, self._pending = self._pending, {}
        self._waiting.clear()
        for one in pending.values():
            _fail(one.result, Disconnected(error.exit_code, error.reason))
        self._on_end(error)

    async def _restart(self) -> None:
        """Reconnect. Repeat failed attempts until `reconnect_seconds` have passed, and then end the connection. If
        the server refuses the client permanently, end the connection immediately.

        The period of `reconnect_seconds` begins when the connection is lost. If a restored connection is lost
        again, a new period begins only if the server has responded to a request, or if the connection was restored
        at least `STABLE_SECONDS` ago.
        """
        assert isinstance(self._transport, RestartableTransport)
        now = asyncio.get_running_loop().time()
        delay = MAX_DELAY_SECONDS
        if self._reconnect_until is None or now - self._restored_at >= STABLE_SECONDS:
            self._reconnect_until = now + self._reconnect_seconds
            delay = FIRST_DELAY_SECONDS
        try:
            async with asyncio.timeout_at(self._reconnect_until):
                while not self._is_open:
                    # The delay is random, because many clients may have lost the same server.
                    await asyncio.sleep(delay * random.uniform(0.5, 1))
                    delay = min(2 * delay, MAX_DELAY_SECONDS)
                    try:
                        await self._transport.restart()
                        self._is_open = True
                        await self._handshake()
                    except (OSError, ClientError) as error:
                        if isinstance(error, ServerRefused) and error.is_final:
                            raise
                        self._is_open = False
                        log.debug("cannot reconnect yet: %s", error)
        except (Exception, asyncio.CancelledError) as error:
            self._restarting = None
            self._give_up(Disconnected(None, str(error) if isinstance(error, ServerRefused) else None))
            if not isinstance(error, TimeoutError | ServerRefused | asyncio.CancelledError):
                log.exception("failed to reconnect")
            return
        self._restarting = None
        self._restored_at = asyncio.get_running_loop().time()
        self._on_restored()
        waiting, self._waiting = self._waiting, {}
        for request_id, frame in waiting.items():
            self._send_request(request_id, self._pending[request_id], frame)


def _encoded(params: object) -> bytes:
    return encode({} if params is None else params)


def _fail(result: asyncio.Future[Raw], error: ClientError) -> None:
    if not result.done():
        result.set_exception(error)
        result.exception()  # mark the exception as retrieved, because the caller may never await this call


# --- results of tools ------------------------------------------------------------------


class _ToolResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a tool, with its structured content as encoded JSON."""

    content: tuple[TextContent, ...] = ()
    is_error: bool = False
    structured_content: Raw | UnsetType = UNSET


class _Failure(Struct, frozen=True):
    message: str = ""
    code: str | None = None


_result_decoder: Final = msgspec.json.Decoder(_ToolResult)
_failure_decoder: Final = msgspec.json.Decoder(_Failure)


def read_result(decoder: msgspec.json.Decoder[T], result: bytes | Raw, name: str) -> T:
    """Decode and return a result from the server. `name` is the name of the tool or of the method, for errors.

    Raises:
        UnreadableResult: the result does not have the type of the decoder.
    """
    try:
        return decode_lenient(decoder, result)
    except msgspec.DecodeError as error:
        raise UnreadableResult(name, str(error)) from None


def typed_value(tool: str, result: Raw, kind: type[T]) -> T:
    """Return the structured content of a tool result, decoded as a value of the type `kind`.

    Raises:
        ToolFailed: the tool failed.
        UnreadableResult: the result does not have the expected form.
    """
    decoded = read_result(_result_decoder, result, tool)
    value = decoded.structured_content
    if decoded.is_error:
        failure = _Failure() if isinstance(value, UnsetType) else read_result(_failure_decoder, value, tool)
        text = failure.message or "".join(part.text for part in decoded.content)
        raise ToolFailed(tool, text, code=failure.code)
    return read_result(msgspec.json.Decoder(kind), b"{}" if isinstance(value, UnsetType) else value, tool)
