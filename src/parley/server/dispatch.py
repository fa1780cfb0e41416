"""Requests in, answers out: ids, concurrency, cancellation. Knows no method.

What a client says takes effect in the order of arrival; every request runs as a task of its own, and
reading goes on meanwhile. A request is answered exactly once, or dropped when a cancellation has ended it. It can
be cancelled for as long as something of it goes on, which may be long after its answer: a stream, a turn. An
answer of the client goes to the part of the server that asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.common.os_errors import OUT_OF_MEMORY, limit_reached
from parley.ports.outbox import Outbox
from parley.server.error_mapping import RequestRefused
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, Overlong
from parley.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
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

    def __init__(self, request_id: RequestId, params: Raw | UnsetType, dispatch: Dispatch) -> None:
        self.id, self.params = request_id, params
        self.closed = False
        """True when the request was answered or dropped."""
        self.cancelled = False
        """True when the client has cancelled the request, whether or not that had an effect."""
        self.cancel_reason: str | None = None
        """The reason that the client gave with its cancellation."""
        self._dispatch = dispatch
        self._on_cancel: Callable[[], None] | None = None

    def answer(self, result: bytes) -> None:
        """Send the one answer."""
        self._settle(response(self.id, result))

    def fail(self, code: int, message: str) -> None:
        """Send the one answer, a JSON-RPC error."""
        self._settle(error_response(self.id, code, message))

    def on_cancel(self, do: Callable[[], None]) -> None:
        """What a cancellation does from now on; it may have come already."""
        self._on_cancel = do
        self._dispatch.remember(self)  # its answer may have left before
        if self.cancelled:
            self.cancel()

    def stop_on_cancel(self) -> None:
        """From now on a cancellation stops the current task, which handles the request, and drops the request."""
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            self.drop()
            task.cancel()

        self.on_cancel(stop)

    def cancel(self, reason: str | None = None) -> None:
        """The client does not want it any more; works once."""
        if not self.cancelled:
            self.cancelled, self.cancel_reason = True, reason
        if (do := self._on_cancel) is not None:
            self.finished()
            do()

    def finished(self) -> None:
        """Nothing of this request goes on: its id is inert."""
        self._on_cancel = None
        if self.closed:
            self._dispatch.forget(self)

    def drop(self) -> None:
        """Close the request without an answer: a cancellation has ended it, and the client waits for none."""
        self.closed = True
        self._on_cancel = None
        self._dispatch.drop(self)

    def _settle(self, frame: bytes) -> None:
        if self.closed:
            raise RuntimeError(f"request {self.id!r} is answered already")
        self.closed = True
        self._dispatch.settle(frame)
        if self._on_cancel is None:
            self._dispatch.forget(self)


Handler = Callable[[Call], Awaitable[None]]
Notice = Callable[[Raw], None]
"""Takes the parameters of a notification."""


class Dispatch:
    """One connection's requests."""

    def __init__(
        self,
        out: Outbox,
        requests: Mapping[str, Handler],
        *,
        own: OutgoingRequests,
        tasks: asyncio.TaskGroup,
        notices: Mapping[str, Notice] = MappingProxyType({}),
    ) -> None:
        """`own` is what the client is asked, and given every answer of it."""
        self._notices = notices
        self.out = out
        self._own = own
        self._requests = requests
        self._tasks = tasks
        self._calls: dict[RequestId, Call] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()

    def take(self, frame: bytes | Overlong) -> None:
        """One frame of the client. Whatever it holds, the next one is taken as well."""
        if isinstance(frame, Overlong):
            self._skip(read_outline(frame.prefix, frame.suffix), frame.why)
            return
        try:
            self._take(frame)
        except MemoryError:
            self._skip(_outline(frame), OUT_OF_MEMORY)

    def _take(self, frame: bytes) -> None:
        try:
            message = decode_message(frame)
        except NestedTooDeeply:
            self._skip(_outline(frame), "message is nested too deeply")
            return
        except msgspec.DecodeError as error:
            log.warning("a line is no message and was ignored: %s", error)
            outline = _outline(frame)
            if outline.id is not None and outline.is_answer:
                self._refuse(outline.id)
            return
        if not isinstance(message.method, str):
            self._in_turn(self._own.take, message)
        elif message.id is UNSET:
            self._in_turn(self._notice, message)
        else:
            self._request(message.id, message.method, message.params)

    def _skip(self, outline: Outline, why: str) -> None:
        """A message that cannot be taken; whoever waits for it is told, if its outline says who that is."""
        log.warning("%s: it was skipped", why)
        request_id, is_answer = outline
        if request_id is None:
            return
        if is_answer or (is_answer is None and request_id in self._own):
            self._refuse(request_id)
        else:
            self.out.send(error_response(request_id, INVALID_REQUEST, why))

    def _refuse(self, request_id: RequestId) -> None:
        """An answer that cannot be read is a failure, for whoever waits for it."""
        self._in_turn(self._own.take, Message(id=request_id, error=Raw(b"{}")))

    def _in_turn(self, do: Callable[[Message], None], message: Message) -> None:
        """Behind the requests that came before: their tasks begin with the next turn of the loop, in order."""
        asyncio.get_running_loop().call_soon(self._do, do, message)

    def _do(self, do: Callable[[Message], None], message: Message) -> None:
        try:
            do(message)
        except Exception:
            log.exception("a message was taken in vain")

    def settle(self, frame: bytes) -> None:
        """Send the answer to a request."""
        self.out.send(frame)
        self._settled.set()

    def drop(self, call: Call) -> None:
        """A request gets no answer."""
        self.forget(call)
        self._settled.set()

    def remember(self, call: Call) -> None:
        """The id can be cancelled until it is forgotten."""
        self._calls[call.id] = call

    def forget(self, call: Call) -> None:
        """The id means nothing any more."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]

    async def all_answered(self) -> None:
        """Return when every request is answered or dropped."""
        while any(not call.closed for call in self._calls.values()):
            self._settled.clear()
            await self._settled.wait()

    def abandon(self) -> None:
        """Stop working on what was not answered."""
        for task in self._handling:
            task.cancel()

    def _request(self, request_id: RequestId, method: str, params: Raw | UnsetType) -> None:
        before = self._calls.get(request_id)
        if before is not None and not before.closed:
            log.warning("request id %r is in use and was refused", request_id)
            self.out.send(error_response(request_id, INVALID_REQUEST, "request id is in use"))
            return
        handler = self._requests.get(method)
        if handler is None:
            self.out.send(error_response(request_id, METHOD_NOT_FOUND, f"method not found: {method}"))
            return
        call = self._calls[request_id] = Call(request_id, params, self)
        try:
            task = self._tasks.create_task(self._run(handler, call))
        except MemoryError:
            self.forget(call)
            raise
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _run(self, handler: Handler, call: Call) -> None:
        try:
            await handler(call)
        except RequestRefused as refused:
            call.fail(refused.code, refused.message)
        except Exception as error:
            why = limit_reached(error)
            log.error("request %r failed: %s", call.id, why or error, exc_info=why is None)
            if not call.closed:
                call.fail(INTERNAL_ERROR, why or "internal error")

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
            log.warning("a cancellation names no request and was ignored")
            return
        if (call := self._calls.get(cancelled.request_id)) is not None:
            reason = cancelled.reason
            call.cancel(reason if isinstance(reason, str) else None)


def _outline(frame: bytes) -> Outline:
    return read_outline(frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:])
