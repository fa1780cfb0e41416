"""Dispatches requests to handlers, and manages the ids, concurrency, cancellation and responses of requests.

Messages from a client take effect in the order in which they arrive. The handler of each request runs in its own
asyncio task, so that reading never waits for a handler. Each request gets exactly one response, or none if the
client has cancelled the request. While the stream or the turn that a request has begun is active, the client can
cancel the request, even after the response.

A response from the client is passed to `OutgoingRequests`, which calls the callback of the corresponding request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from parley.common.limited_log import LimitedLog
from parley.common.os_errors import OUT_OF_MEMORY, limit_reached
from parley.common.spelling import shortened
from parley.common.telemetry import Operation, telemetry
from parley.ports.outbox import Outbox
from parley.server.context import OutboxReply, Reply, RequestContext
from parley.server.errors import (
    MAX_SHOWN,
    InternalError,
    MessageNestedTooDeeply,
    MessageTooLarge,
    RequestIdInUse,
    RequestRefused,
    ResourceLimitReached,
    UnknownMethod,
)
from parley.server.modern.results import ResultType, completed
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, Overlong
from parley.wire.jsonrpc import (
    Message,
    NestedTooDeeply,
    Outline,
    RequestId,
    TooManySurrogates,
    decode_lenient,
    decode_message,
    error_response,
    read_outline,
    response,
)
from parley.wire.mcp import Cancelled
from parley.wire.modern import ModernMeta

__all__ = ["Call", "Dispatch", "Handler", "Notice"]

log = logging.getLogger(__name__)

_cancelled_decoder: Final = msgspec.json.Decoder(Cancelled)


class Call:
    """One request from the client, with its response and its cancellation."""

    context: RequestContext
    """The context of the request. The field is set immediately before the handler begins, because an earlier
    `initialize` may change the features of the client.
    """

    def __init__(
        self, request_id: RequestId, method: str, params: Raw | UnsetType, dispatch: Dispatch, reply: Reply
    ) -> None:
        self.id, self.method, self.params = request_id, method, params
        self.closed = False
        """True if the response has been sent, or if the request was cancelled and gets no response."""
        self.cancelled = False
        """True if the client has cancelled the request, even if the cancellation arrived too late to have an
        effect.
        """
        self.cancel_reason: str | None = None
        """The reason that the client gave with its cancellation; None if the client gave no reason."""
        self._dispatch, self._reply = dispatch, reply
        self._on_cancel: Callable[[], None] | None = None

    def answer(self, result: bytes, result_type: ResultType = "complete") -> None:
        """Send the encoded result as the response. At protocol version 2026-07-28, `result_type` is added to the
        result.

        Raises:
            RuntimeError: the request already has a response.
        """
        if self.context.meta is not None:
            result = completed(self.method, self.id, result, result_type)
        self._settle(response(self.id, result))

    def fail(self, refused: RequestRefused) -> None:
        """Send `refused` as the response, in the form of a JSON-RPC error."""
        self._settle(_encode_error(self.id, refused, self.context))

    def on_cancel(self, do: Callable[[], None]) -> None:
        """Call `do` when the client cancels the request, or immediately if the request is already cancelled."""
        self._on_cancel = do
        self._dispatch.remember(self)  # the response may already have been sent
        if self.cancelled:
            self.cancel()

    def stop_on_cancel(self) -> None:
        """If the client cancels the request, stop the current task and send no response.

        The current task must be the handler of the request.
        """
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            self.drop()
            task.cancel()

        self.on_cancel(stop)

    def hold(self, end: Callable[[], None]) -> None:
        """Keep the request open after its handler has returned, for example while a stream is open.

        `end` is called when the server shuts down, and must send the response.
        """
        self._dispatch.hold(self, end)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context manager for a handler that only waits, for example for the end of a turn. If the client
        disconnects while the context manager is active, the handler is stopped.
        """
        task = asyncio.current_task()
        assert task is not None
        with self._dispatch.waiting(task):
            yield

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the request for the reason that the client gave. Further cancellations have no effect."""
        if not self.cancelled:
            self.cancelled, self.cancel_reason = True, reason
        if (do := self._on_cancel) is not None:
            self.finished()
            do()

    def finished(self) -> None:
        """Record that the stream or turn that the request began has ended. Later cancellations have no effect."""
        self._on_cancel = None
        if self.closed:
            self._dispatch.forget(self)

    def drop(self) -> None:
        """Close the request without a response, because the client has cancelled it."""
        is_open, self.closed = not self.closed, True
        self._on_cancel = None
        self._dispatch.drop(self)
        if is_open:
            self._reply.answer(None)

    def _settle(self, frame: bytes) -> None:
        if self.closed:
            raise RuntimeError(f"request {self.id!r} already has a response")
        self.closed = True
        self._reply.answer(frame)
        self._dispatch.settled()
        if self._on_cancel is None:
            self._dispatch.forget(self)


Handler = Callable[[Call], Awaitable[None]]
Notice = Callable[[Raw], None]
"""A function that handles a notification. Its argument is the encoded parameters of the notification."""


class Dispatch:
    """Handles the requests of one client."""

    def __init__(
        self,
        out: Outbox,
        requests: Mapping[str, Handler],
        *,
        context: Callable[[Reply, ModernMeta | None], RequestContext],
        own: OutgoingRequests,
        tasks: asyncio.TaskGroup,
        notices: Mapping[str, Notice] = MappingProxyType({}),
        modern_requests: Mapping[str, Handler] = MappingProxyType({}),
        meta_of: Callable[[Raw | UnsetType], ModernMeta | None] = lambda params: None,
        client_id: str = "",
    ) -> None:
        """Create the dispatcher.

        `requests` maps methods to the handlers of requests, and `modern_requests` contains the handlers of requests
        at protocol version 2026-07-28. `notices` maps the methods of notifications to handlers. `context` is called
        with the reply channel and the `_meta` of a request, and returns the context of the request. `own` tracks
        the requests that the server sends to the client. `meta_of` is called with the parameters of a request. It
        returns the `_meta` if the request is at version 2026-07-28, and None otherwise. It may raise
        `RequestRefused`. `tasks` runs the handlers. `client_id` names the client in logs and traces.
        """
        self._reply, self._context, self._own = OutboxReply(out), context, own
        self._requests, self._notices = requests, notices
        self._modern_requests, self._meta_of = modern_requests, meta_of
        self._client_id = client_id
        self._tasks, self._log = tasks, LimitedLog(log)
        self._calls: dict[RequestId, Call] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._held: dict[Call, Callable[[], None]] = {}
        """The requests that stay open after their handlers have returned, each with the function that ends the
        request.
        """

    def take(self, frame: bytes | Overlong, reply: Reply | None = None) -> None:
        """Handle one frame from the client. An invalid frame does not affect later frames.

        The response is sent to `reply`, by default to the outbox of the client.
        """
        reply = reply or self._reply
        if isinstance(frame, Overlong):
            self._skip(read_outline(frame.prefix, frame.suffix), MessageTooLarge(frame.why), reply)
            return
        try:
            self._take(frame, reply)
        except MemoryError:
            self._skip(_outline(frame), MessageTooLarge(OUT_OF_MEMORY), reply)

    def _take(self, frame: bytes, reply: Reply) -> None:
        try:
            message = decode_message(frame)
        except NestedTooDeeply:
            self._skip(_outline(frame), MessageNestedTooDeeply(), reply)
            return
        except TooManySurrogates as error:
            self._skip(_outline(frame), MessageTooLarge(f"message {error}"), reply)
            return
        except msgspec.DecodeError as error:
            self._log.warning("ignored a line that is not a message: %s", shortened(str(error), MAX_SHOWN))
            outline = _outline(frame)
            if outline.id is not None and outline.is_answer:
                self._refuse_answer(outline.id)
            return
        if not isinstance(message.method, str):
            self._in_order(self._own.take, message)
        elif message.id is UNSET:
            self._in_order(self._notice, message)
        else:
            self._request(message.id, message.method, message.params, reply)

    def resume(self, request_id: RequestId, reply: Reply) -> Call:
        """Return a call that continues the earlier request with the id `request_id`. The response is sent to
        `reply`.
        """
        call = self._calls[request_id] = Call(request_id, "", UNSET, self, reply)
        call.context = self._context(reply, None)
        return call

    def resume_answered(self, request_id: RequestId) -> Call:
        """Return a call for the earlier request `request_id`, which has begun a stream and already has its
        response. If the client cancels this request, the stream ends.
        """
        call = self.resume(request_id, self._reply)
        call.closed = True
        return call

    def _skip(self, outline: Outline, refused: RequestRefused, reply: Reply) -> None:
        """Handle a message that cannot be decoded. `refused` is the error, and `outline` contains the id and the
        kind of the message.

        If the message is a request, send the error as its response. If the message is a response, the corresponding
        request of the server fails. A notification is ignored.
        """
        self._log.warning("%s: it was skipped", shortened(str(refused), MAX_SHOWN))
        request_id, is_answer = outline
        if request_id is None:
            return
        if is_answer or (is_answer is None and request_id in self._own):
            self._refuse_answer(request_id)
        else:
            reply.answer(_encode_error(request_id, refused, self._context(reply, None)))

    def _refuse_answer(self, request_id: RequestId) -> None:
        """Treat the client's response to the request `request_id` as an error, because it cannot be decoded."""
        self._in_order(self._own.take, Message(id=request_id, error=Raw(b"{}")))

    def _in_order(self, do: Callable[[Message], None], message: Message) -> None:
        """Schedule `do(message)` for the next iteration of the event loop. The handlers of earlier requests have
        begun by then.
        """
        asyncio.get_running_loop().call_soon(self._do, do, message)

    def _do(self, do: Callable[[Message], None], message: Message) -> None:
        try:
            do(message)
        except Exception:
            log.exception("failed to handle a message")

    def settled(self) -> None:
        """Wake the callers of `all_answered`, so that they check again whether a request is still open."""
        self._settled.set()

    def drop(self, call: Call) -> None:
        """Remove a request that was cancelled and gets no response."""
        self.forget(call)
        self.settled()

    def remember(self, call: Call) -> None:
        """Allow the request to be cancelled by its id until `forget` is called."""
        self._calls[call.id] = call

    def forget(self, call: Call) -> None:
        """Remove a request. The client can then use its id for another request, and can no longer cancel the
        removed request.
        """
        self._held.pop(call, None)
        if self._calls.get(call.id) is call:
            del self._calls[call.id]

    async def all_answered(self) -> None:
        """Wait until every request has its response or is cancelled, except the requests that were passed to
        `hold`.
        """
        while any(not call.closed and call not in self._held for call in self._calls.values()):
            self._settled.clear()
            await self._settled.wait()

    def hold(self, call: Call, end: Callable[[], None]) -> None:
        """Register a request that stays open. `all_answered` does not wait for this request.

        `end_held` calls `end`, which sends the response.
        """
        self._held[call] = end
        self.settled()

    def end_held(self) -> None:
        """For each request that was passed to `hold`, call its function `end`, which sends the response."""
        for end in tuple(self._held.values()):
            end()

    @contextmanager
    def waiting(self, task: asyncio.Task[None]) -> Iterator[None]:
        """Return a context manager. While it is active, `stop_waiting` stops the handler that runs as `task`."""
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    def stop_waiting(self) -> None:
        """Stop each handler that only waits, that is, each handler inside the context manager `waiting`. The other
        handlers finish their requests.
        """
        for task in self._waiting:
            task.cancel()

    def abandon(self) -> None:
        """Stop all handlers. Their requests get no response."""
        for task in self._handling:
            task.cancel()

    def _request(self, request_id: RequestId, method: str, params: Raw | UnsetType, reply: Reply) -> None:
        before = self._calls.get(request_id)
        if before is not None and not before.closed:
            self._log.warning("request id %s is in use and was refused", _shown_id(request_id))
            reply.answer(_encode_error(request_id, RequestIdInUse(), self._context(reply, None)))
            return
        try:
            meta = self._meta_of(params)
        except RequestRefused as refused:
            reply.answer(_encode_error(request_id, refused))
            return
        handler = (self._requests if meta is None else self._modern_requests).get(method)
        if handler is None:
            reply.answer(_encode_error(request_id, UnknownMethod(method), self._context(reply, meta)))
            return
        call = self._calls[request_id] = Call(request_id, method, params, self, reply)
        try:
            task = self._tasks.create_task(self._run(handler, call, reply, meta))
        except MemoryError:
            self.forget(call)
            raise
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _run(self, handler: Handler, call: Call, reply: Reply, meta: ModernMeta | None) -> None:
        call.context = self._context(reply, meta)
        parent = _traceparent(call.params) if telemetry.takes_parents else None
        with telemetry.operation(
            "client_request", method=call.method, client_id=self._client_id, traceparent=parent
        ) as operation:
            await self._handle(handler, call, operation)

    async def _handle(self, handler: Handler, call: Call, operation: Operation | None) -> None:
        try:
            await handler(call)
        except RequestRefused as refused:
            if operation is not None:
                operation.outcome = "refused"
                operation.add(error=refused.code or refused.number)
            if not call.closed:
                call.fail(refused)
        except Exception as error:
            if operation is not None:
                operation.outcome = "failed"
                operation.add(error=type(error).__name__)
            why = limit_reached(error)
            log.error(
                "request %s failed: %s",
                _shown_id(call.id),
                shortened(str(why or error), MAX_SHOWN),
                exc_info=why is None,
            )
            if not call.closed:
                call.fail(InternalError() if why is None else ResourceLimitReached(why))

    def _notice(self, message: Message) -> None:
        if message.params is UNSET or not isinstance(message.method, str):
            return
        if (take := self._notices.get(message.method)) is not None:
            take(message.params)
        if message.method != Cancelled.METHOD:
            return
        try:
            cancelled = decode_lenient(_cancelled_decoder, bytes(message.params))
        except msgspec.DecodeError:
            self._log.warning("ignored a cancellation that names no request")
            return
        if (call := self._calls.get(cancelled.request_id)) is not None:
            reason = cancelled.reason
            call.cancel(reason if isinstance(reason, str) else None)


def _encode_error(request_id: RequestId, refused: RequestRefused, context: RequestContext | None = None) -> bytes:
    """Encode the error `refused` as the response to the request with the id `request_id`.

    The form of the response depends on the features in `context`. If `context` is None, use the form for clients
    that get Parley's additions to the protocol (`Features.additions`).
    """
    code = refused.code if context is None or context.features.additions else None
    is_modern = context is not None and context.features.modern
    number = refused.modern_number if is_modern and refused.modern_number is not None else refused.number
    return error_response(request_id, number, str(refused), code=code, details=refused.details)


class _Meta(Struct):
    traceparent: str | None = None


class _WithMeta(Struct):
    meta: _Meta = field(default_factory=_Meta, name="_meta")


_meta_decoder: Final = msgspec.json.Decoder(_WithMeta)


def _traceparent(params: Raw | UnsetType) -> str | None:
    """Return the W3C trace context in the `_meta` of a request; None if the `_meta` contains no trace context."""
    try:
        return None if params is UNSET else _meta_decoder.decode(params).meta.traceparent
    except msgspec.DecodeError:
        return None


def _shown_id(request_id: RequestId) -> str:
    return repr(shortened(request_id) if isinstance(request_id, str) else request_id)


def _outline(frame: bytes) -> Outline:
    return read_outline(frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:])
