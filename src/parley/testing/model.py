"""A scripted model: an HTTP server on the loopback interface that serves all model APIs.

Each request gets the next reply from a queue, or the reply that the function passed to `set_handler` returns.
`requests` records all requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from types import TracebackType
from typing import Final

from msgspec.structs import replace

from parley.testing.anthropic_requests import refused_by_anthropic
from parley.testing.dialects import DIALECTS, DialectName, refused
from parley.testing.render import Pause, Writer, render, writer_for
from parley.testing.replies import Bulk, Cut, Ending, Failure, RawBody, Reply, Says
from parley.testing.requests import RecordedRequest, read_request
from parley.testing.sending import chunk, end_body, head, send_bulk
from parley.testing.steps import Call, Data, Delay, Step

__all__ = ["ScriptedModel"]

TIMEOUT_SECONDS: Final = 90.0
"""The time limit for each wait in tests, in seconds. The limit is far longer than a wait normally takes."""

_EVENTS: Final = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
_RAW: Final = {"content-type": "text/event-stream", "connection": "close"}


class _Reader(asyncio.StreamReader):
    """A stream reader that detects that the client has disconnected even while nothing is being read."""

    def __init__(self) -> None:
        super().__init__()
        self.disconnected = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.disconnected.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.disconnected.set()


class ScriptedModel:
    """A model with scripted replies, used as `async with ScriptedModel() as model`. Its URL is `model.base_url`."""

    def __init__(self, *, port: int = 0, dialect: DialectName = "openai") -> None:
        self.requests: list[RecordedRequest] = []
        self.default: Reply = Says(("Done",))
        """The reply that is sent if no reply is queued."""
        self.dialect = dialect
        """The name of the provider of Chat Completions that the model imitates."""
        self._port = port
        self._queue: deque[Reply] = deque()
        self._handler: Callable[[RecordedRequest], Reply | None] | None = None
        self._call_ids = count(1)
        self._abandoned = 0
        self._held: set[asyncio.Event] = set()
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedModel:
        self._server = await asyncio.get_running_loop().create_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    # --- the script ----------------------------------------------------------------------

    def says(self, *steps: Step) -> None:
        """Queue a complete reply. A step that is a string is sent as one text delta."""
        self.queue(Says(steps))

    def fails(self, status: int, *, body: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Queue an HTTP error as a reply."""
        self.queue(Failure(status=status, body=body, headers=headers or {}))

    def cuts(self, *steps: Step, at: int | None = None, how: Ending = "close") -> None:
        """Queue a reply that breaks off after its steps, or after `at` bytes of its body.

        After the last byte, the model ends the body too early (`how="end"`), closes the connection (`"close"`),
        resets the connection (`"reset"`), or leaves the connection open without further data (`"hang"`).
        """
        self.queue(Cut(steps=steps, at=at, how=how))

    def sends_raw(self, body: bytes, *, cut_every: int | None = None, how: Ending = "end") -> None:
        """Queue a raw body without chunked encoding, sent in writes of `cut_every` bytes, or in one write by
        default.

        After the last byte, the model ends the body (`how="end"`), closes the connection (`"close"`), resets the
        connection (`"reset"`), or leaves the connection open without further data (`"hang"`).
        """
        self.queue(RawBody(body=body, cut_every=cut_every, how=how))

    def bad_json(self, data: str, *then: Step) -> None:
        """Queue a reply that consists of an event with the invalid JSON `data`, followed by the steps `then`."""
        self.says(Data(data), *then)

    def deltas(self, number: int, text: str = "abcdefgh") -> None:
        """Queue a reply in which the delta `text` is sent `number` times. The deltas are sent as fast as the client
        reads them.
        """
        self.queue(Bulk(deltas=number, text=text))

    def queue(self, reply: Reply) -> None:
        self._queue.append(reply)

    def set_handler(self, handler: Callable[[RecordedRequest], Reply | None]) -> None:
        """From now on, let `handler` choose the reply to each request.

        If `handler` returns None, the reply comes from the queue.
        """
        self._handler = handler

    # --- waiting ---------------------------------------------------------------------------

    async def wait_for_requests(self, number: int = 1) -> None:
        """Wait until `number` requests have arrived in total."""
        await self._until(lambda: len(self.requests) >= number, f"{number} requests have arrived")

    async def wait_until_held(self, number: int = 1) -> None:
        """Wait until `number` replies are waiting at `HOLD` at the same time."""
        await self._until(lambda: len(self._held) >= number, f"{number} replies are held at HOLD")

    async def wait_abandoned(self, number: int = 1) -> None:
        """Wait until clients have disconnected during `number` replies in total."""
        await self._until(lambda: self._abandoned >= number, f"{number} replies were abandoned")

    def release(self) -> None:
        """Continue all replies that are waiting at `HOLD`."""
        if not self._held:
            raise AssertionError("no reply is held at HOLD")
        for held in self._held:
            held.set()
        self._held.clear()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"waited {TIMEOUT_SECONDS:g} s until {what}") from None

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- connections -----------------------------------------------------------------------

    def _connected(self) -> asyncio.StreamReaderProtocol:
        reader = _Reader()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer)

        return asyncio.StreamReaderProtocol(reader, serve)

    async def _serve(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                self._change()
                goes_on = await _unless(reader.disconnected, self._reply(request, writer))
                if goes_on is None:
                    self._abandoned += 1
                    self._change()
                if not goes_on:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected, or this server is being closed
        finally:
            writer.close()
            self._connections.discard(task)

    async def _reply(self, request: RecordedRequest, out: asyncio.StreamWriter) -> bool:
        """Send the reply to a request. Return whether the connection can be used for another request."""
        if request.api is None or not isinstance(request.body, dict):
            return await _send_failure(out, Failure(status=404 if request.api is None else 400))
        options = request.body.get("stream_options") or {}
        dialect = DIALECTS[self.dialect]
        api = writer_for(request.api, wants_usage=bool(options.get("include_usage")), dialect=dialect)
        if request.api == "chat" and (refusal := refused(dialect, request.body)) is not None:
            return await _send_failure(out, refusal)
        if request.api == "anthropic" and (refusal := refused_by_anthropic(request.body)) is not None:
            return await _send_failure(out, refusal)
        reply = self._next_reply(request)
        match reply:
            case Failure():
                return await _send_failure(out, reply)
            case RawBody():
                return await _send_raw(out, reply)
            case Says(steps=steps):
                await self._send_steps(out, api, steps)
                return await end_body(out, "end", chunked=True)
            case Cut(steps=steps, at=None, how=how):
                await self._send_steps(out, api, steps, whole=False)
                return await end_body(out, how, chunked=True)
            case Cut(steps=steps, at=at, how=how):
                await self._send_steps(out, api, steps, at_most=at)
                return await end_body(out, how, chunked=True)
            case Bulk(deltas=deltas, text=text):
                out.write(head(200, _EVENTS))
                for event in api.begin():
                    out.write(chunk(event))
                await send_bulk(out, api, deltas=deltas, text=text)
                return await end_body(out, "end", chunked=True)

    def _next_reply(self, request: RecordedRequest) -> Reply:
        chosen = None if self._handler is None else self._handler(request)
        if chosen is not None:
            return chosen
        return self._queue.popleft() if self._queue else self.default

    async def _send_steps(
        self,
        out: asyncio.StreamWriter,
        api: Writer,
        steps: tuple[Step, ...],
        *,
        whole: bool = True,
        at_most: int | None = None,
    ) -> None:
        out.write(head(200, _EVENTS))
        named = tuple(self._named(step) if isinstance(step, Call) else step for step in steps)
        left = at_most
        for part in render(api, named, whole=whole):
            if not isinstance(part, bytes):
                await self._pause(part)
                continue
            data = part if left is None else part[:left]
            if data:
                out.write(chunk(data))
                await out.drain()
            if left is not None:
                left -= len(data)

    async def _pause(self, pause: Pause) -> None:
        if isinstance(pause, Delay):
            await asyncio.sleep(pause.seconds)
            return
        held = asyncio.Event()
        self._held.add(held)
        self._change()
        try:
            await held.wait()
        finally:
            self._held.discard(held)

    def _named(self, call: Call) -> Call:
        return call if call.call_id is not None else replace(call, call_id=f"call_{next(self._call_ids)}")


async def _send_failure(out: asyncio.StreamWriter, failure: Failure) -> bool:
    body = failure.body.encode()
    out.write(head(failure.status, {"content-length": str(len(body)), **failure.headers}) + body)
    await out.drain()
    return True


async def _send_raw(out: asyncio.StreamWriter, raw: RawBody) -> bool:
    out.write(head(200, _RAW))
    size = raw.cut_every or len(raw.body) or 1
    for at in range(0, len(raw.body), size):
        await asyncio.sleep(0)  # let the event loop send each write separately
        out.write(raw.body[at : at + size])
        await out.drain()
    return await end_body(out, raw.how, chunked=False)


async def _unless(disconnected: asyncio.Event, reply: Coroutine[object, None, bool]) -> bool | None:
    """Return the result of `reply`. If the event `disconnected` is set before the reply has ended, cancel the reply
    and return None.
    """
    replying = asyncio.ensure_future(reply)
    watching = asyncio.ensure_future(disconnected.wait())
    try:
        await asyncio.wait({replying, watching}, return_when=asyncio.FIRST_COMPLETED)
        return await replying if replying.done() else None
    finally:
        replying.cancel()
        watching.cancel()
        await asyncio.gather(replying, watching, return_exceptions=True)
