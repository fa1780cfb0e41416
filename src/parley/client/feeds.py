"""Receives the events of each conversation once, and delivers them to any number of readers.

The server sends at most one stream of a conversation over each connection; a new stream replaces the previous one.
Therefore all streams and turns of a conversation in one client read from one feed. If a reader needs earlier
events, the feed opens a new stream from that reader's position, and the other readers skip events that they already
have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from parley.client.connection import Call, Connection, typed_value
from parley.client.errors import (
    CallLost,
    CallTimedOut,
    ClientError,
    Disconnected,
    RequestFailed,
    StreamEnded,
    ToolFailed,
    UnreadableResult,
)
from parley.client.turn_result import Event
from parley.wire.events import (
    AgentMessageDelta,
    AgentReasoningDelta,
    AgentReasoningRawContentDelta,
    ErrorEvent,
    EventMsg,
    ExecCommandOutputDelta,
    TaskComplete,
    decode_event,
)
from parley.wire.ids import START, ConversationId, EventId, ItemId, Seq
from parley.wire.jsonrpc import RequestId, decode_lenient
from parley.wire.notifications import EventMeta, InitialState, StreamDisconnected
from parley.wire.tools import ConversationReadResult, StreamStarted

__all__ = ["Feed", "Feeds", "Reader", "StreamEvent"]

TOOL: Final = "conversationStream"
BEYOND_END: Final = 2**53 - 1
"""A position that is after every event, for reading the latest events."""


class StreamEvent(Struct, frozen=True):
    """An event with its position in the conversation."""

    msg: Event
    meta: EventMeta
    live: bool
    """True for a live event; False for an event that happened before the stream was opened."""


class Reader:
    """Reads one feed for a `Stream` or a `Turn`, and stores the events that have arrived but have not been read."""

    def __init__(self, after: Seq, *, last: int | None = None, exclusive: bool = False) -> None:
        self.after = after
        """The position after which the reader needs all events."""
        self.last = last
        """The number of latest events that the reader gets first; None if the reader begins after the position
        `after`.
        """
        self.exclusive = exclusive
        """True if opening a stream for this reader ends the streams of other clients."""
        self.unread: deque[StreamEvent] = deque()
        self.request: RequestId | None = None
        """The id of the request that opened a stream for the reader, while the reader is waiting for the snapshot
        of this stream; None at any other time.
        """
        self.has_joined = False
        self.closed = False
        """True if no more events will arrive."""
        self.disconnected: str | None = None
        """The reason why the server ended the stream; None if the server did not end it."""
        self.disconnected_code: str | None = None
        """The stable name of the reason in `disconnected`; None if there is no reason, or if the server sent no
        name.
        """
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    async def next(self) -> StreamEvent | None:
        """Return the next event, or None after the last event of a stream that has ended.

        Raises:
            Disconnected: the connection to the server has ended.
            ServerRefused: the server did not continue the stream after a reconnection.
        """
        while not self.unread:
            if self._error is not None:
                raise self._error
            if self.closed:
                return None
            await self._wait()
        return self.unread.popleft()

    async def wait_until_joined(self, request: RequestId) -> None:
        """Wait for the snapshot of the stream that was opened with `request`.

        Raises:
            CallLost: the connection was lost; the stream has to be requested again.
            StreamEnded, Disconnected: the stream or the connection ended before the snapshot arrived.
        """
        while not self.has_joined:
            if self.closed:
                raise self._error or self.ended_early()
            if self.request != request:
                raise CallLost(TOOL)
            await self._wait()

    def ended_early(self) -> StreamEnded:
        """Return the error for a caller that waits for an event after the stream has ended."""
        return StreamEnded(self.disconnected, code=self.disconnected_code)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- called by the feed --------------------------------------------------------------

    def begin_at(self, after: Seq) -> None:
        """Set the position of this reader, which was created with a number of latest events (`last`) instead of a
        position. The reader gets the events after the position `after`.
        """
        self.after, self.last = after, None

    def join(self, events: Iterable[StreamEvent]) -> None:
        self.unread.extend(events)
        self.has_joined = True
        self._changed.set()

    def deliver(self, event: StreamEvent) -> None:
        self.unread.append(event)
        self._changed.set()

    def lose_request(self) -> None:
        """Make `wait_until_joined` raise `CallLost`, because the requested snapshot will not arrive."""
        self.request = None
        self._changed.set()

    def end(self) -> None:
        self.closed = True
        self._changed.set()

    def disconnect(self, reason: str, code: str | None) -> None:
        """End the reader because the server has ended the stream."""
        self.disconnected, self.disconnected_code = reason, code
        self.end()

    def fail(self, error: Exception) -> None:
        """End the reader with an error, which is raised after the last event has been read."""
        self._error = error
        self.end()


class Feed:
    """Delivers the events of one conversation to all readers of the conversation in this client.

    A stream from the server is open while there are readers. After a reconnection, a new stream continues after the
    last known position (`seq`), and the readers skip events that they already have.
    """

    def __init__(self, conversation_id: ConversationId, feeds: Feeds, connection: Connection) -> None:
        self.conversation_id = conversation_id
        self.seq: Seq | None = None
        """The newest known position; None if no position is known. While a stream is open, its readers have all
        events up to this position.
        """
        self._feeds, self._connection = feeds, connection
        self._readers: list[Reader] = []
        self._joining: Reader | None = None
        """The reader for which the newest stream was requested; None after the snapshot of this stream has arrived.
        """
        self._opening = asyncio.Lock()
        self._request: RequestId | None = None
        """The request id of the open stream; None if no stream is open."""
        self._pending: set[RequestId] = set()
        """The request ids of streams that the server has not confirmed yet."""
        self._snapshot_due = False
        """True between the confirmation of a stream and its snapshot."""
        self._items: dict[ItemId | UnsetType, StreamEvent] = {}
        """The last received delta of each unfinished item, by item id. The deltas are needed to recognise text that
        the server sends again.
        """

    def note(self, seq: Seq) -> None:
        """Store a position that the server reported outside a stream, if this position is newer than the known
        position.

        Do nothing while a stream is open or has readers, because the events of the stream then determine the
        position.
        """
        if self._request is None and not self._readers and (self.seq is None or seq > self.seq):
            self.seq = seq

    # --- readers -------------------------------------------------------------------------

    async def join(self, reader: Reader, *, only_newer: bool = False, timeout_seconds: float | None = None) -> None:
        """Deliver all events after the reader's position to the reader, until `leave` is called.

        By default, the reader also gets the text so far of each unfinished item. If `only_newer` is True and the
        open stream is at the reader's position, the reader gets only the text that arrives later.

        Raises:
            ToolFailed: the conversation or the position does not exist.
            StreamEnded: the server ended the stream before its snapshot.
            CallTimedOut, Disconnected: as for any call.
        """
        seconds = self._connection.time_limit(timeout_seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._join(reader, only_newer=only_newer)
        except TimeoutError:
            self.leave(reader)
            raise CallTimedOut(TOOL, seconds or 0) from None
        except BaseException:
            self.leave(reader)
            raise

    async def _join(self, reader: Reader, *, only_newer: bool) -> None:
        async with self._opening:
            if only_newer and self._readers and not self._snapshot_due and reader.after == self.seq:
                self._readers.append(reader)
                reader.join(())
                return
            self._joining = reader
            try:
                while not reader.has_joined:
                    try:
                        if reader.last is not None and self._readers:
                            await self._find_last(reader)
                        call = self._open(**self._arguments_for(reader))
                        reader.request = call.request_id
                        typed_value(TOOL, await call.result, StreamStarted)
                        await reader.wait_until_joined(call.request_id)
                    except CallLost:
                        pass  # the loop sends the next request, which waits until the connection is restored
            finally:
                self._joining = None

    def _arguments_for(self, reader: Reader) -> dict[str, int]:
        """Return the arguments of `conversationStream` for a stream that begins early enough for `reader` and for
        the readers that have already joined.
        """
        arguments = {"exclusive": True} if reader.exclusive else {}
        if reader.last is not None:
            return {"last": reader.last, **arguments}
        # Other readers must also get everything after their positions.
        after = min(reader.after, self.seq or START) if self._readers else reader.after
        return {"after": after, **arguments}

    async def _find_last(self, reader: Reader) -> None:
        """Find the position before the latest events that `reader` requests, and store this position in `reader`.

        The position is needed to open a new stream that begins early enough for `reader` and for the other readers.
        """
        assert reader.last is not None
        arguments = {"conversation_id": self.conversation_id, "before": BEYOND_END, "limit": max(1, reader.last)}
        page = await self._connection.call_typed("conversationRead", arguments, ConversationReadResult, None)
        if reader.last == 0:
            reader.begin_at(page.seq)
        else:
            reader.begin_at(START if isinstance(page.before, UnsetType) else Seq(page.before - 1))

    def _open(self, **more: int) -> Call:
        """Send a `conversationStream` request, whose arguments include `more`, and return the call."""
        arguments = {"conversation_id": self.conversation_id, "event_meta": True, **more}
        call = self._connection.call_tool(TOOL, arguments, on_result=lambda result: self._confirmed(call, result))
        self._pending.add(call.request_id)

        def done(result: asyncio.Future[Raw]) -> None:
            if not result.cancelled() and result.exception() is not None:
                self._pending.discard(call.request_id)

        call.result.add_done_callback(done)
        return call

    def leave(self, reader: Reader) -> None:
        """Stop delivering events to a reader. Close the stream from the server if this was the last reader."""
        reader.end()
        if self._joining is reader:
            self._joining = None
        if reader in self._readers:
            self._readers.remove(reader)
        if not self._readers and self._joining is None:
            for request_id in self._pending if self._request is None else {self._request, *self._pending}:
                self._connection.cancel(request_id)
            self._pending.clear()
            self._close()
        elif self._readers and not self._is_open:
            self.resume()  # the reader that has left would have opened the stream for all readers

    def _close(self) -> None:
        self._request = None
        self._items.clear()
        self._feeds.remove(self)

    # --- a lost connection ---------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return self._request is not None or bool(self._pending)

    def suspend(self) -> None:
        """Record that the connection was lost. Readers get no events until the connection is restored."""
        self._request, self._snapshot_due = None, False
        self._pending.clear()
        if self._joining is not None:
            self._joining.lose_request()

    def resume(self) -> None:
        """Open a stream that continues after the last known position, unless a stream is open or a joining reader
        opens one.
        """
        if not self._readers or self._joining is not None or self._is_open:
            return
        call = self._open(after=self.seq or START)

        def failed(result: asyncio.Future[Raw]) -> None:
            error = result.exception()
            if isinstance(error, RequestFailed):
                self._disconnect_readers(error.message, error.code)
            elif isinstance(error, CallLost):
                self.resume()  # over HTTP, a single request can be lost while the connection is usable
            elif isinstance(error, ClientError) and not isinstance(error, Disconnected):
                self._end_readers(partial(Reader.fail, error=error))

        call.result.add_done_callback(failed)

    def _reopen(self) -> None:
        """Request the stream again, because the server no longer has a stream of the conversation. Do nothing if a
        stream has already been requested.
        """
        if self._pending:
            return
        self._request, self._snapshot_due = None, False
        self._feeds.remove(self)
        if self._joining is not None:
            self._joining.lose_request()
        else:
            self.resume()

    # --- from the server -----------------------------------------------------------------

    def _confirmed(self, call: Call, result: Raw) -> None:
        """Read the result of a stream request. If the server has accepted the request, replace the previous stream
        with the new stream. If the server has rejected the request, end the readers. But do not end the readers if
        an earlier stream is still open, or if `join` is waiting for the new stream and raises the error.
        """
        self._pending.discard(call.request_id)
        try:
            typed_value(TOOL, result, StreamStarted)
        except (ToolFailed, UnreadableResult) as error:
            if self._request is None and self._joining is None:  # `join` raises the errors of this request
                message, code = (error.message, error.code) if isinstance(error, ToolFailed) else (str(error), None)
                self._disconnect_readers(message, code)
            return
        self._request, self._snapshot_due = call.request_id, True
        self._feeds.add(self)

    def receive_snapshot(self, state: InitialState) -> None:
        try:
            events = [
                StreamEvent(
                    decode_event(one.msg), EventMeta() if isinstance(one.meta, UnsetType) else one.meta, False
                )
                for one in state.initial_state.events
            ]
        except msgspec.DecodeError as error:
            unreadable = UnreadableResult(TOOL, str(error))
            if self._request is not None:
                self._connection.cancel(self._request)
            self._snapshot_due = False
            self._end_readers(lambda reader: reader.fail(unreadable))
            return
        if self._readers:
            for event in self._unseen(_after(events, self.seq or START)):
                for reader in self._readers:
                    reader.deliver(event)
        for event in events:
            self._remember(event)
        self.seq = START if isinstance(state.meta.seq, UnsetType) else state.meta.seq
        self._snapshot_due = False
        joining = self._joining
        if joining is not None and joining.request == self._request:
            self._joining = None
            if joining.last is not None:
                before = state.meta.before
                joining.begin_at(START if isinstance(before, UnsetType) else Seq(before - 1))
            if joining.after > self.seq:
                beyond = f"position {joining.after} is beyond the end, {self.seq}"
                joining.fail(ToolFailed(TOOL, beyond, code="position_beyond_end"))
                return
            self._readers.append(joining)
            joining.join(_after(events, joining.after))

    def receive(self, event: StreamEvent) -> None:
        if self._connection.texts_may_repeat:
            unseen = next(iter(self._unseen((event,))), None)
            if unseen is None:
                return
            event = unseen
        self._remember(event)
        for reader in self._readers:
            reader.deliver(event)

    def receive_end(self, reason: str, code: str | None) -> None:
        # When a new stream of this client replaces the previous one, the server sends the notice after it has
        # confirmed the new stream, and before the snapshot.
        if reason == StreamDisconnected.TAKEN_OVER and self._snapshot_due:
            return
        if reason == StreamDisconnected.SHUTTING_DOWN and self._connection.reconnects:
            return  # the server is ending, and the stream continues after the reconnection
        if reason == StreamDisconnected.NOT_OPEN and self._connection.reconnects:
            self._reopen()
            return
        self._disconnect_readers(reason, code)

    def receive_loss(self, error: Disconnected) -> None:
        self._end_readers(lambda reader: reader.fail(error))

    def _disconnect_readers(self, reason: str, code: str | None) -> None:
        self._end_readers(lambda reader: reader.disconnect(reason, code))

    def _end_readers(self, end: Callable[[Reader], None]) -> None:
        readers, self._readers = self._readers, []
        if self._joining is not None and self._joining.request == self._request:
            readers.append(self._joining)
        for reader in readers:
            end(reader)
        self._close()

    # --- deltas --------------------------------------------------------------------------

    def _remember(self, event: StreamEvent) -> None:
        meta = event.meta
        if isinstance(meta.seq, UnsetType):
            self._items[meta.item] = event
        else:
            self.seq = meta.seq
            if isinstance(event.msg, TaskComplete | ErrorEvent):
                self._items.clear()

    def _unseen(self, events: Iterable[StreamEvent]) -> Iterable[StreamEvent]:
        """Yield the events that the readers do not have yet, as live events. If the readers already have the
        beginning of a delta, yield only the remaining part of the delta.
        """
        for event in events:
            start, last = event.meta.offset, self._items.get(event.meta.item)
            if last is None or isinstance(start, UnsetType) or isinstance(last.meta.offset, UnsetType):
                yield replace(event, live=True)
                continue
            seen = max(last.meta.offset + _length(last.msg) - start, 0)
            if seen < _length(event.msg):
                meta = replace(event.meta, offset=start + seen)
                yield StreamEvent(_without_beginning(event.msg, seen), meta, True)


def _after(events: Sequence[StreamEvent], seq: Seq) -> Sequence[StreamEvent]:
    """Return the events after a position. A delta has no position and belongs to the next event with a position."""
    count = 0
    for number, event in enumerate(events, 1):
        if not isinstance(event.meta.seq, UnsetType):
            if event.meta.seq > seq:
                break
            count = number
    return events[count:]


def _length(event: Event) -> int:
    """Return the length of a delta: the number of bytes of command output, or the number of characters of other
    text. Return 0 if the event is not a delta.
    """
    match event:
        case ExecCommandOutputDelta(chunk=chunk):
            return len(chunk)
        case AgentMessageDelta(delta=delta) | AgentReasoningDelta(delta=delta):
            return len(delta)
        case AgentReasoningRawContentDelta(delta=delta):
            return len(delta)
        case _:
            return 0


def _without_beginning(event: Event, length: int) -> Event:
    match event:
        case ExecCommandOutputDelta(chunk=chunk):
            return replace(event, chunk=chunk[length:])
        case AgentMessageDelta() | AgentReasoningDelta() | AgentReasoningRawContentDelta():
            return replace(event, delta=event.delta[length:])
        case _:
            return event


# --- all feeds of a client -----------------------------------------------------------------


class _KnownEvent(Struct, frozen=True, kw_only=True):
    """The params of a live event of a known type, which are decoded in one step together with the event."""

    meta: EventMeta = msgspec.field(default=EventMeta(), name="_meta")
    id: EventId | UnsetType = UNSET
    """The id of an event of a `codex` call; unset for an event of a stream."""
    msg: EventMsg


class _AnyEvent(Struct, frozen=True, kw_only=True):
    """The params of a live event of a type that this version of the client does not know."""

    meta: EventMeta = msgspec.field(default=EventMeta(), name="_meta")
    id: EventId | UnsetType = UNSET
    msg: Raw


_known_event_decoder: Final = msgspec.json.Decoder(_KnownEvent)
_any_event_decoder: Final = msgspec.json.Decoder(_AnyEvent)
_initial_state_decoder: Final = msgspec.json.Decoder(InitialState)
_disconnected_decoder: Final = msgspec.json.Decoder(StreamDisconnected)


class Feeds:
    """The feeds of one client: one feed for each conversation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._feeds: WeakValueDictionary[ConversationId, Feed] = WeakValueDictionary()
        self._open: dict[ConversationId | UnsetType, Feed] = {}
        """The feeds with an open stream, by conversation."""

    def feed(self, conversation_id: ConversationId) -> Feed:
        """Return the feed of a conversation. All handles of a conversation share one feed."""
        if (feed := self._feeds.get(conversation_id)) is None:
            feed = self._feeds[conversation_id] = Feed(conversation_id, self, self._connection)
        return feed

    def add(self, feed: Feed) -> None:
        self._open[feed.conversation_id] = feed

    def remove(self, feed: Feed) -> None:
        self._open.pop(feed.conversation_id, None)

    # --- from the server -----------------------------------------------------------------

    def receive_initial_state(self, params: Raw) -> None:
        state = decode_lenient(_initial_state_decoder, params)
        if (feed := self._open.get(state.meta.conversation_id)) is not None:
            feed.receive_snapshot(state)

    def receive_disconnected(self, params: Raw) -> None:
        notice = decode_lenient(_disconnected_decoder, params)
        if (feed := self._open.get(notice.meta.conversation_id)) is not None:
            feed.receive_end(notice.reason, None if isinstance(notice.code, UnsetType) else notice.code)

    def receive_event(self, params: Raw) -> None:
        """Deliver a live event to the readers of its conversation.

        Raises:
            msgspec.DecodeError: the params do not contain an event.
        """
        msg: Event
        try:
            known = decode_lenient(_known_event_decoder, params)
            meta, of_call, msg = known.meta, known.id, known.msg
        except msgspec.ValidationError:
            unknown = decode_lenient(_any_event_decoder, params)
            meta, of_call, msg = unknown.meta, unknown.id, decode_event(unknown.msg)
        if isinstance(of_call, UnsetType) and (feed := self._open.get(meta.conversation_id)) is not None:
            feed.receive(StreamEvent(msg, meta, True))

    def suspend(self) -> None:
        """Record in all feeds that the connection was lost."""
        for feed in self._all():
            feed.suspend()

    def resume(self) -> None:
        """Open the streams again after the connection has been restored."""
        for feed in self._all():
            feed.resume()

    def receive_loss(self, error: Disconnected) -> None:
        for feed in self._all():
            feed.receive_loss(error)

    def _all(self) -> list[Feed]:
        return list(self._feeds.values())
