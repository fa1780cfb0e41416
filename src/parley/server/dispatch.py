"""Requests in, answers out: ids, concurrency, cancellation. Knows no method.

Messages of a client take effect in the order of arrival. Each request runs as a task of its own, so reading never
waits for a handler. A request is answered exactly once, or dropped when a cancellation has ended it. It can be
cancelled while any part of it, such as a stream or a turn, is active, even long after its answer. Answers of the
client go to the code that sent the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.common.os_errors import OUT_OF_MEMORY, limit_reached
from parley.ports.outbox import Outbox
from parley.server.context import OutboxReply, Reply, RequestContext
from parley.server.errors import (
    InternalError,
    MessageNestedTooDeeply,
    MessageTooLarge,
    RequestIdInUse,
    RequestRefused,
    ResourceLimitReached,
    UnknownMethod,
)
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, Overlong
from parley.wire.jsonrpc import (
    Message,
    NestedTooDeeply,
    Outline,
    RequestId,
    decode_lenient,
    decode_message,
    error_response,
    read_outline,
    response,
)
from parley.wire.mcp import Cancelled

__all__ = ["Call", "Dispatch", "Handler", "Notice"]

log = logging.getLogger(__name__)

_cancelled_decoder: Final = msgspec.json.Decoder(Cancelled)


class Call:
    """One request of the client."""

    context: RequestContext
    """The context; set when the handler begins, because an earlier `initialize` decides the features."""

    def __init__(self, request_id: RequestId, params: Raw | UnsetType, dispatch: Dispatch, reply: Reply) -> None:
        self.id, self.params = request_id, params
        self.closed = False
        """True when the request was answered or dropped."""
        self.cancelled = False
        """True when the client has cancelled the request, whether or not that had an effect."""
        self.cancel_reason: str | None = None
        """The reason that the client gave with its cancellation."""
        self._dispatch, self._reply = dispatch, reply
        self._on_cancel: Callable[[], None] | None = None

    def answer(self, result: bytes) -> None:
        """Send the result. A request has one answer."""
        self._settle(response(self.id, result))

    def fail(self, refused: RequestRefused) -> None:
        """Send a JSON-RPC error as the answer."""
        self._settle(_encode_error(self.id, refused, self.context))

    def on_cancel(self, do: Callable[[], None]) -> None:
        """Call `do` when the client cancels the request, at once if it already has."""
        self._on_cancel = do
        self._dispatch.remember(self)  # its answer may have been sent before
        if self.cancelled:
            self.cancel()

    def stop_on_cancel(self) -> None:
        """Let a cancellation from now on stop the current task, which handles the request, and drop the request."""
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            self.drop()
            task.cancel()

        self.on_cancel(stop)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark that the handler only waits, and is to be stopped when the client leaves."""
        task = asyncio.current_task()
        assert task is not None
        with self._dispatch.waiting(task):
            yield

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the request. The second and later calls have no effect."""
        if not self.cancelled:
            self.cancelled, self.cancel_reason = True, reason
        if (do := self._on_cancel) is not None:
            self.finished()
            do()

    def finished(self) -> None:
        """Record that no part of the request is active: a cancellation has no effect from now on."""
        self._on_cancel = None
        if self.closed:
            self._dispatch.forget(self)

    def drop(self) -> None:
        """Close the request without an answer, because the client has cancelled it."""
        is_open, self.closed = not self.closed, True
        self._on_cancel = None
        self._dispatch.drop(self)
        if is_open:
            self._reply.answer(None)

    def _settle(self, frame: bytes) -> None:
        if self.closed:
            raise RuntimeError(f"request {self.id!r} is answered already")
        self.closed = True
        self._reply.answer(frame)
        self._dispatch.settled()
        if self._on_cancel is None:
            self._dispatch.forget(self)


Handler = Callable[[Call], Awaitable[None]]
Notice = Callable[[Raw], None]
"""Handles the parameters of a notification."""


class Dispatch:
    """The requests of one client."""

    def __init__(
        self,
        out: Outbox,
        requests: Mapping[str, Handler],
        *,
        context: Callable[[Reply], RequestContext],
        own: OutgoingRequests,
        tasks: asyncio.TaskGroup,
        notices: Mapping[str, Notice] = MappingProxyType({}),
    ) -> None:
        """Create the dispatcher. `context` makes the context of a request from its reply; `own` handles answers
        of the client to requests of the server.
        """
        self._reply, self._context, self._own = OutboxReply(out), context, own
        self._requests, self._notices = requests, notices
        self._tasks = tasks
        self._calls: dict[RequestId, Call] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()

    def take(self, frame: bytes | Overlong, reply: Reply | None = None) -> None:
        """Handle one frame of the client; an invalid one does not affect the next.

        The answer goes to `reply`, by default to the outbox of the client.
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
        except msgspec.DecodeError as error:
            log.warning("ignored a line that is not a message: %s", error)
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
        """Return a call that continues an earlier request, whose answer goes to `reply`."""
        call = self._calls[request_id] = Call(request_id, UNSET, self, reply)
        call.context = self._context(reply)
        return call

    def _skip(self, outline: Outline, refused: RequestRefused, reply: Reply) -> None:
        """Refuse a message that cannot be decoded; its outline says whether it is a request, a notification or an
        answer."""
        log.warning("%s: it was skipped", refused)
        request_id, is_answer = outline
        if request_id is None:
            return
        if is_answer or (is_answer is None and request_id in self._own):
            self._refuse_answer(request_id)
        else:
            reply.answer(_encode_error(request_id, refused, self._context(reply)))

    def _refuse_answer(self, request_id: RequestId) -> None:
        """Treat an unreadable answer as a failure of the request that it answers."""
        self._in_order(self._own.take, Message(id=request_id, error=Raw(b"{}")))

    def _in_order(self, do: Callable[[Message], None], message: Message) -> None:
        """Handle a message after the requests that came before it, whose tasks begin in the next loop tick."""
        asyncio.get_running_loop().call_soon(self._do, do, message)

    def _do(self, do: Callable[[Message], None], message: Message) -> None:
        try:
            do(message)
        except Exception:
            log.exception("failed to handle a message")

    def settled(self) -> None:
        """Record that a request was answered or dropped."""
        self._settled.set()

    def drop(self, call: Call) -> None:
        """Record that a request gets no answer."""
        self.forget(call)
        self.settled()

    def remember(self, call: Call) -> None:
        """Let the request be cancelled by its id until `forget`."""
        self._calls[call.id] = call

    def forget(self, call: Call) -> None:
        """Free the id of a request."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]

    async def all_answered(self) -> None:
        """Wait until every request is answered or dropped."""
        while any(not call.closed for call in self._calls.values()):
            self._settled.clear()
            await self._settled.wait()

    @contextmanager
    def waiting(self, task: asyncio.Task[None]) -> Iterator[None]:
        """Mark a task as only waiting during the block, so that `stop_waiting` stops it."""
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    def stop_waiting(self) -> None:
        """Stop the handlers that only wait. The other handlers finish their requests."""
        for task in self._waiting:
            task.cancel()

    def abandon(self) -> None:
        """Stop all handlers."""
        for task in self._handling:
            task.cancel()

    def _request(self, request_id: RequestId, method: str, params: Raw | UnsetType, reply: Reply) -> None:
        before = self._calls.get(request_id)
        if before is not None and not before.closed:
            log.warning("request id %r is in use and was refused", request_id)
            reply.answer(_encode_error(request_id, RequestIdInUse(), self._context(reply)))
            return
        handler = self._requests.get(method)
        if handler is None:
            reply.answer(_encode_error(request_id, UnknownMethod(method), self._context(reply)))
            return
        call = self._calls[request_id] = Call(request_id, params, self, reply)
        try:
            task = self._tasks.create_task(self._run(handler, call, reply))
        except MemoryError:
            self.forget(call)
            raise
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _run(self, handler: Handler, call: Call, reply: Reply) -> None:
        call.context = self._context(reply)
        try:
            await handler(call)
        except RequestRefused as refused:
            call.fail(refused)
        except Exception as error:
            why = limit_reached(error)
            log.error("request %r failed: %s", call.id, why or error, exc_info=why is None)
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
            log.warning("ignored a cancellation that names no request")
            return
        if (call := self._calls.get(cancelled.request_id)) is not None:
            reason = cancelled.reason
            call.cancel(reason if isinstance(reason, str) else None)


def _encode_error(request_id: RequestId, refused: RequestRefused, context: RequestContext) -> bytes:
    code = refused.code if context.features.additions else None
    return error_response(request_id, refused.number, str(refused), code=code)


def _outline(frame: bytes) -> Outline:
    return read_outline(frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:])
