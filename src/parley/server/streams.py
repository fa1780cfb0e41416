"""The streams of one connection.

A stream first sends the events of one conversation so far, or only the events after a given position. The stream
then sends live events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from parley.conversation.approvals import PendingApproval
from parley.conversation.log import Cursor, Delta, visible
from parley.conversation.output import OutputDelta
from parley.errors import ParleyError, Unreadable
from parley.ports.outbox import FrameOutbox, OpenFrame
from parley.ports.store import PAGE
from parley.runtime.conversation import Conversation
from parley.server.access import may_see
from parley.server.dispatch import Call
from parley.server.encoders import StreamEncoder
from parley.server.modern.rounds import OnAsk, Rounds
from parley.server.positions import Position, begin_frame_at, send_at
from parley.server.session import SILENT, SILENT_FRAME, Session, StreamState
from parley.server.subscription import Subscription
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import encode
from parley.wire.mcp import LogLevel, typed_result
from parley.wire.notifications import StreamDisconnected
from parley.wire.tools import StreamEnded

__all__ = ["StreamStart", "Streams", "stream_end"]

log = logging.getLogger(__name__)

SHORT_ENTRIES: Final = 2000
SHORT_BYTES: Final = 1024 * 1024
"""The maximum size, in bytes, of a snapshot that is sent as a whole. A snapshot with more bytes, or with more than
`SHORT_ENTRIES` entries, is sent in pages.
"""

MAX_ENDS: Final = 256
"""The maximum number of ended streams that are recorded for a client that may reconnect. The limit applies
separately to streams that the server ended and to streams that the client cancelled. Beyond this number, the oldest
records are removed.
"""

_SHOWS_INFO: Final[frozenset[LogLevel]] = frozenset({"debug", "info"})
"""The log levels at which a client gets messages of the level `info`."""


class StreamStart(Struct, frozen=True, kw_only=True):
    """The positions that determine the snapshot and the first live event of a stream."""

    after: Seq
    """The position after which the snapshot begins."""
    before: Seq | None = None
    """The position of the first event of the snapshot; None if the snapshot omits no older events. The client gets
    this position with the snapshot, and can read the older events with `conversationRead` and `before`.
    """
    resumes_at: Seq | None = None
    """The position after which the stream continues without a snapshot, because the client has already received all
    earlier entries; None if the stream begins with a snapshot.
    """


class _LogOutbox:
    """The outbox of a stream that is sent as log messages.

    This outbox discards the messages if the client has set a log level above `info`.
    """

    def __init__(self, session: Session, out: FrameOutbox) -> None:
        """Create the outbox, which forwards messages to `out`."""
        self._session, self._out = session, out

    @property
    def _is_silent(self) -> bool:
        return self._session.log_level not in _SHOWS_INFO

    @property
    def writable(self) -> bool:
        return self._out.writable

    def send(self, frame: bytes) -> None:
        if not self._is_silent:
            self._out.send(frame)

    def send_at(self, frame: bytes, position: Position) -> None:
        if not self._is_silent:
            send_at(self._out, frame, position)

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._out.when_writable(wake)

    def begin_frame(self) -> OpenFrame:
        return SILENT_FRAME if self._is_silent else self._out.begin_frame()

    def begin_frame_at(self, position: Position) -> OpenFrame:
        return SILENT_FRAME if self._is_silent else begin_frame_at(self._out, position)


class _Stream:
    """The stream of one conversation to one client: a snapshot, then live events."""

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        call: Call,
        *,
        encoder: StreamEncoder,
        on_ask: OnAsk | None,
        out: FrameOutbox,
        after: Seq,
        state: StreamState,
        on_dropped: Callable[[Exception], None],
    ) -> None:
        self.state = state
        self.call, self.encoder, self.out = call, encoder, out
        self.session, self.conversation = session, conversation
        self._on_ask = on_ask
        self._after, self._on_dropped = after, on_dropped
        self._subscription = self._subscribe()
        self._ended = False
        self._sending: asyncio.Task[None] | None = None

    def _subscribe(self, skipped: int = 0) -> Subscription:
        return Subscription(
            self.session,
            self.conversation,
            self.out,
            self.encoder,
            on_ask=self._on_ask,
            server_requests=self.session.out,
            on_dropped=self._on_dropped,
            skipped=skipped,
        )

    @property
    def position(self) -> Seq:
        """The position of the last entry that was sent to the client."""
        return max(self._after, self._subscription.position)

    def restart(self, position: Position | None) -> None:
        """Send all entries after `position` again. If `position` is None, begin again with the snapshot."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._subscription.close()
        self._subscription = self._subscribe(0 if position is None else position.messages)
        if position is None:
            self.begin()
        else:
            self._subscription.start(Cursor(Seq(min(position.seq, self.conversation.log.durable))))
            self._subscription.send_now()

    def begin(self) -> None:
        """Send the snapshot as soon as the outbox is writable."""
        if self.out.writable or self._ended:
            self._join()
        else:
            self._subscription.register()
            self._join_when_writable()

    def _join_when_writable(self) -> None:
        subscription = self._subscription
        self.out.when_writable(lambda: self._join() if self._subscription is subscription else None)

    def _join(self) -> None:
        """Send the snapshot, and then live events from the position where the snapshot ends."""
        if self._ended:
            return
        source = self.conversation.log
        if self.out is not SILENT:
            if not self._is_short:
                self._subscription.register()
                self._send_by_page()
                return
            entries = source.events(after=self._after, hidden=self.encoder.hidden)
            try:
                snapshot = self.encoder.snapshot(entries, source.open_deltas(), source.durable)
            except MemoryError as error:
                self._on_dropped(error)
                return
            send_at(self.out, snapshot, Position(source.durable))
        self._subscription.start(Cursor.at_end_of(source))

    @property
    def _is_short(self) -> bool:
        """True if all entries of the snapshot are in memory and the snapshot exceeds neither `SHORT_ENTRIES` nor
        `SHORT_BYTES`.
        """
        source = self.conversation.log
        if self._after < source.base or source.durable - self._after > SHORT_ENTRIES:
            return False
        return sum(entry.size for entry in source.between(self._after, source.durable)) <= SHORT_BYTES

    def _send_by_page(self) -> None:
        """Begin to send a long snapshot in pages, at the speed at which the client reads them.

        The snapshot is one message, and other messages to the client wait until the snapshot is complete. If the
        stream ends first, the snapshot is still sent completely.
        """
        source = self.conversation.log
        frame = begin_frame_at(self.out, Position(source.durable))
        sending = self._send_pages(frame, source.durable, source.open_deltas(), Cursor.after_snapshot(source))
        self._sending = asyncio.create_task(sending)

    async def _send_pages(
        self, frame: OpenFrame, last: Seq, open_deltas: Sequence[Delta | OutputDelta], cursor: Cursor
    ) -> None:
        conversation, encoder = self.conversation, self.encoder
        position, is_first = self._after, True
        try:
            frame.write(encoder.snapshot_begin(last))
            while position < last and not frame.closed:
                page = await conversation.read_after(position, limit=min(PAGE, last - position), visible_only=True)
                if not page:
                    raise Unreadable(conversation.id, f"entry {position + 1} is missing")
                part = encoder.snapshot_part(visible(page, encoder.hidden), is_first=is_first)
                frame.write(part)
                position, is_first = page[-1].seq, is_first and not part
                await frame.room()
            frame.write(encoder.snapshot_part((), open_deltas, is_first=is_first))
            if frame.closed and frame is not SILENT_FRAME:  # over HTTP, the client may open another stream
                self._join_when_writable()
                return
        except Exception as error:  # the frame must end, because all other messages wait for its end
            is_expected = isinstance(error, (ParleyError, MemoryError))
            log.error(
                "only a part of the snapshot of %s was sent: %s",
                conversation.id,
                error,
                exc_info=None if is_expected else error,
            )
            if conversation.is_closing:
                return  # the client notices that the line is incomplete
            if not self._ended:
                self._on_dropped(error)
        frame.write(encoder.snapshot_end())
        frame.end()
        if not self._ended:
            self._subscription.start(cursor)
            self._subscription.send_now()

    def end(self) -> None:
        """End the stream: stop sending, and remove the stream from its conversation."""
        self._ended = True
        self.call.finished()
        self.conversation.cancel_on_deleted(self)
        self.conversation.remove_stream(self)
        self._subscription.close()


def stream_end(conversation: Conversation, seq: Seq) -> StreamEnded:
    """Return the result of a `conversationStream` call whose stream of `conversation` has ended at the position
    `seq`.
    """
    return StreamEnded(seq=seq, state="deleted" if conversation.is_deleted else conversation.phase.value)


class Streams:
    """The streams of one connection.

    A connection has at most one stream of each conversation, because the client could not distinguish the events of
    two streams of the same conversation. This also applies if the streams have different protocol versions.
    """

    def __init__(self) -> None:
        self._streams: dict[ConversationId, _Stream] = {}
        self._ends: dict[ConversationId, tuple[int, FrameOutbox, bytes]] = {}
        """The streams that the server has ended, by conversation: the number of each stream, its outbox, and the
        notice about its end. Notices are stored because a client that reconnects may have missed them. A new stream
        of the conversation removes the notice.
        """
        self._cancelled: deque[int] = deque(maxlen=MAX_ENDS)
        """The numbers of the streams that the client has cancelled. The client gets no notices about their ends."""

    def open(
        self,
        session: Session,
        conversation: Conversation,
        call: Call,
        start: StreamStart,
        *,
        number: int,
        event_meta: bool,
        as_log: bool,
        exclusive: bool = False,
        on_ask: OnAsk | None = None,
    ) -> None:
        """Start a stream of `conversation` to the client. At protocol version 2026-07-28, the stream belongs to one
        request.

        If this connection already has a stream of the conversation, the earlier stream ends. If `exclusive` is
        True, the streams of the conversation on all other connections also end. `number` is the number of the
        stream in the session. If `event_meta` is True, events have a `_meta`. If `as_log` is True, events are sent
        as log messages. At version 2026-07-28, `on_ask` ends the call with an approval request; `on_ask` is None if
        the client cannot be asked.
        """
        conversation_id = conversation.id
        if session.has_left:
            call.finished()
            return
        self._disconnect(conversation_id, StreamDisconnected.TAKEN_OVER)
        self._ends.pop(conversation_id, None)
        session.note_request(conversation_id, call.id)
        encoder = StreamEncoder(
            conversation_id, session.features, event_meta=event_meta, as_log=as_log, before=start.before
        )
        out: FrameOutbox
        if as_log:  # hosts that ignore events still show log messages
            out = _LogOutbox(session, session.stream_outboxes.outbox(conversation_id, number))
        else:
            out = session.stream_out(conversation_id, number)
        stream = _Stream(
            session,
            conversation,
            call,
            encoder=encoder,
            on_ask=on_ask,
            out=out,
            after=start.after,
            state=StreamState(conversation_id, call.id, number, start.after, event_meta, as_log, start.before),
            on_dropped=lambda error: self._disconnect(conversation_id, StreamDisconnected.NOT_SENT),
        )
        self._streams[conversation_id] = stream
        encoder.name_conversation(len(self._streams) > 1)
        self._name_conversations()
        conversation.on_deleted(stream, lambda: self._lose(conversation))
        conversation.add_stream(stream, lambda by: self._taken_over(stream, by))
        if exclusive:
            conversation.take_over_streams(stream, session.principal.name)
        session.on_leave(self, self._close_all)
        # the callback is called immediately if the client has already cancelled the call
        call.on_cancel(lambda: self._cancel(stream))
        if start.resumes_at is None:
            stream.begin()
        else:
            stream.restart(Position(start.resumes_at))
        session.changed()

    def hold(
        self,
        session: Session,
        conversation: Conversation,
        call: Call,
        rounds: Rounds | None,
        start: StreamStart,
        *,
        event_meta: bool,
        exclusive: bool,
    ) -> None:
        """Start a stream of `conversation` that keeps its request open. The response is sent when the stream ends.

        `event_meta` and `exclusive` have the same meaning as for `open`. `rounds` manages the approval requests of
        the call; it is None if the client cannot be asked to decide approvals.
        """

        def ask(approval: PendingApproval, request: str) -> None:
            stream = self._streams.get(conversation.id)
            if stream is None or stream.call is not call or rounds is None:
                return
            seq = stream.position
            input_request = rounds.input_request(
                conversation, approval, seq=seq, event_id=approval.event_id, request=request
            )
            self._close(conversation.id)
            if input_request is None:
                call.answer(encode(typed_result(stream_end(conversation, seq))))
            else:
                call.answer(input_request, "input_required")

        def cancelled() -> None:
            self._close(conversation.id)
            call.drop()

        call.hold(lambda: self._disconnect(conversation.id, StreamDisconnected.SHUTTING_DOWN))
        self.open(
            session,
            conversation,
            call,
            start,
            number=session.next_stream(),
            event_meta=event_meta,
            as_log=False,
            exclusive=exclusive,
            on_ask=ask,
        )
        if conversation.id in self._streams:
            call.on_cancel(cancelled)

    def close(self, conversation_id: ConversationId) -> None:
        """End the stream of the conversation, if there is one, without a notice to the client."""
        if conversation_id in self._streams:
            self._close(conversation_id)

    @property
    def states(self) -> tuple[StreamState, ...]:
        """The states of the open streams, from which the streams can be opened again after a restart."""
        return tuple(stream.state for stream in self._streams.values())

    def is_open(self, conversation_id: ConversationId) -> bool:
        """Return whether the client has an open stream of the given conversation."""
        return conversation_id in self._streams

    def note_lost(self, session: Session, stream: StreamState, reason: str, code: str) -> None:
        """Record that a stream of an earlier server process cannot be continued. `reason` and `code` explain this
        to the client, which is notified by the next `restart`.
        """
        encoder = StreamEncoder(
            stream.conversation, session.features, event_meta=stream.event_meta, as_log=stream.as_log
        )
        self._note_end(stream, session.out, encoder.disconnected(reason, code))

    def restart(
        self, session: Session, positions: Mapping[str, Position], *, received: Collection[bytes] = ()
    ) -> None:
        """For each open stream, repeat the messages that the client has not received. Also repeat the notices about
        ended streams. If a conversation in `positions` has neither a stream nor a stored notice, notify the client,
        so that it can open a stream again. The client gets no notice about a stream that it has cancelled.

        `positions` maps conversations to the last position that the client has received. If a position belongs to
        an earlier stream of the conversation, the client has received nothing from the current stream, and the
        current stream begins again. `received` contains the frames that the client has received since it
        reconnected. Notices in `received` are not repeated.
        """
        for conversation_id, (number, out, notice) in self._ends.items():
            known = positions.get(conversation_id)
            is_known = known is not None and known.stream == number
            if (is_known or not positions) and notice not in received:
                out.send(notice)
        for named, position in positions.items():
            conversation_id = ConversationId(named)
            is_noted = conversation_id in self._streams or conversation_id in self._ends
            is_known = is_noted or position.stream in self._cancelled
            if not is_known and may_see(session.principal, conversation_id):
                encoder = StreamEncoder(conversation_id, session.features, event_meta=True, as_log=False)
                reason = StreamDisconnected.NOT_OPEN
                session.events_to(session.out).send(encoder.disconnected(reason, StreamDisconnected.CODES[reason]))
        for conversation_id, stream in tuple(self._streams.items()):
            received_at = positions.get(conversation_id)
            is_of_stream = received_at is not None and received_at.stream == stream.state.number
            stream.restart(received_at if is_of_stream else None)

    def shut_down(self) -> None:
        """End the streams, because the server is shutting down. Streams of sessions that continue after a restart
        are not ended, and their clients get no notice.
        """
        for conversation_id, stream in tuple(self._streams.items()):
            if not stream.session.outlives_server:
                self._disconnect(conversation_id, StreamDisconnected.SHUTTING_DOWN)

    def _lose(self, conversation: Conversation) -> None:
        if (lost := conversation.lost) is None:
            self._disconnect(conversation.id, StreamDisconnected.DELETED)
        else:
            self._disconnect(conversation.id, str(lost), lost.code)

    def _taken_over(self, stream: _Stream, by: str) -> None:
        """End the stream, because the principal `by` has opened an exclusive stream of the same conversation."""
        session, conversation = stream.session, stream.conversation
        reason = StreamDisconnected.TAKEN_OVER
        code = StreamDisconnected.CODES[reason]
        if session.features.additions:
            reason = StreamDisconnected.taken_over_by(by)
        self._disconnect(conversation.id, reason, code)
        if not session.is_subscribed(conversation.id):
            session.elicitor.withdraw(conversation, reason=reason)

    def _disconnect(self, conversation_id: ConversationId, reason: str, code: str | None = None) -> None:
        if (stream := self._streams.get(conversation_id)) is not None:
            self._close(conversation_id)
            notice = stream.encoder.disconnected(reason, code or StreamDisconnected.CODES[reason])
            stream.out.send(notice)
            if stream.session.may_reconnect:
                self._note_end(stream.state, stream.out, notice)
            if not stream.call.closed:
                stream.call.answer(encode(typed_result(stream_end(stream.conversation, stream.position))))

    def _note_end(self, stream: StreamState, out: FrameOutbox, notice: bytes) -> None:
        self._ends[stream.conversation] = stream.number, out, notice
        if len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]

    def _cancel(self, stream: _Stream) -> None:
        """End the stream, because the client has cancelled the call that opened it."""
        self._cancelled.append(stream.state.number)
        self._close(stream.conversation.id)

    def _close(self, conversation_id: ConversationId) -> None:
        stream = self._streams.pop(conversation_id)
        stream.end()
        stream.session.stream_outboxes.ended(conversation_id)
        self._name_conversations()
        if not self._streams:
            stream.session.cancel_on_leave(self)
        stream.session.changed()

    def _close_all(self) -> None:
        for conversation_id in tuple(self._streams):
            self._close(conversation_id)

    def _name_conversations(self) -> None:
        """If more than one stream is open, include the id of the conversation in each event. Otherwise, omit it."""
        if len(self._streams) <= 2:  # with more streams, the events already contain the id
            for stream in self._streams.values():
                stream.encoder.name_conversation(len(self._streams) == 2)
