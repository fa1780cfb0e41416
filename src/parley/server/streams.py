"""The streams of one client: each sends a conversation from its beginning or a position, and then live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from parley.conversation.log import Cursor, Delta, visible
from parley.conversation.output import OutputDelta
from parley.errors import StoreError, Unreadable
from parley.ports.outbox import FrameOutbox, OpenFrame
from parley.runtime.conversation import Conversation
from parley.server.dispatch import Call
from parley.server.encoders import StreamEncoder
from parley.server.positions import Position, begin_frame_at, send_at
from parley.server.session import SILENT, SILENT_FRAME, Session
from parley.server.subscription import Subscription
from parley.wire.ids import ConversationId, Seq
from parley.wire.mcp import LogLevel
from parley.wire.notifications import StreamDisconnected

__all__ = ["Streams"]

log = logging.getLogger(__name__)

SHORT_ENTRIES: Final = 2000
SHORT_BYTES: Final = 1024 * 1024
"""Size limit of a snapshot that is sent at once. A longer snapshot is sent page by page."""

_SHOWS_INFO: Final[frozenset[LogLevel]] = frozenset({"debug", "info"})
"""Levels at which a client gets messages of level `info`."""


class _LogOutbox:
    """The outbox of a stream that is sent as log messages: discards them if the client wants only more severe
    messages.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._out = session, session.out

    @property
    def writable(self) -> bool:
        return self._out.writable

    def send(self, frame: bytes) -> None:
        if self._session.log_level in _SHOWS_INFO:
            self._out.send(frame)

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._out.when_writable(wake)

    def begin_frame(self) -> OpenFrame:
        return self._out.begin_frame() if self._session.log_level in _SHOWS_INFO else SILENT_FRAME


class _Stream:
    """One conversation sent to one client: a snapshot, then live events."""

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        call: Call,
        *,
        encoder: StreamEncoder,
        out: FrameOutbox,
        after: Seq,
        on_dropped: Callable[[], None],
    ) -> None:
        self.call, self.encoder, self.out = call, encoder, out
        self._session, self._conversation = session, conversation
        self._after, self._on_dropped = after, on_dropped
        self._subscription = self._subscribe()
        self._ended = False
        self._sending: asyncio.Task[None] | None = None

    def _subscribe(self, skipped: int = 0) -> Subscription:
        return Subscription(
            self._session,
            self._conversation,
            self.out,
            self.encoder,
            questions=self._session.out,
            on_dropped=self._on_dropped,
            skipped=skipped,
        )

    def restart(self, position: Position | None) -> None:
        """Send again everything after a position; None: begin with the snapshot."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._subscription.close()
        self._subscription = self._subscribe(0 if position is None else position.messages)
        if position is None:
            self.begin()
        else:
            self._subscription.start(Cursor(Seq(min(position.seq, self._conversation.log.durable))))
            self._subscription.send_now()

    def begin(self) -> None:
        """Send the snapshot as soon as the client is ready for it."""
        if self.out.writable or self._ended:
            self._join()
        else:
            self._subscription.register()
            self._join_when_writable()

    def _join_when_writable(self) -> None:
        subscription = self._subscription
        self.out.when_writable(lambda: self._join() if self._subscription is subscription else None)

    def _join(self) -> None:
        """Send the snapshot, and go live from its end."""
        if self._ended:
            return
        source = self._conversation.log
        if self.out is not SILENT:
            if not self._is_short:
                self._subscription.register()
                self._send_by_page()
                return
            entries = source.events(after=self._after, hidden=self.encoder.hidden)
            try:
                snapshot = self.encoder.snapshot(entries, source.open_deltas(), source.durable)
            except MemoryError:
                self._on_dropped()
                return
            send_at(self.out, snapshot, source.durable)
        self._subscription.start(Cursor.at_end_of(source))

    @property
    def _is_short(self) -> bool:
        """True if the snapshot can be made at once: its entries are in memory, and not many."""
        source = self._conversation.log
        if self._after < source.base or source.durable - self._after > SHORT_ENTRIES:
            return False
        return sum(entry.size for entry in source.between(self._after, source.durable)) <= SHORT_BYTES

    def _send_by_page(self) -> None:
        """Begin to send a long snapshot page by page, as the client reads it.

        The snapshot is one message, so other messages to the client wait for its end. It is sent completely even if
        the stream is closed meanwhile.
        """
        source = self._conversation.log
        frame = begin_frame_at(self.out, source.durable)
        sending = self._send_pages(frame, source.durable, source.open_deltas(), Cursor.after_snapshot(source))
        self._sending = asyncio.create_task(sending)

    async def _send_pages(
        self, frame: OpenFrame, last: Seq, open_deltas: Sequence[Delta | OutputDelta], cursor: Cursor
    ) -> None:
        conversation, encoder = self._conversation, self.encoder
        position, is_first = self._after, True
        try:
            frame.write(encoder.snapshot_begin(last))
            while position < last and not frame.closed:
                page = (await conversation.read_after(position))[: last - position]
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
        except (StoreError, MemoryError) as error:
            log.error("a snapshot of %s was sent in part: %s", conversation.id, error)
            if conversation.is_closing:
                return  # the client sees that the line has no end
            self._on_dropped()
        frame.write(encoder.snapshot_end())
        frame.end()
        if not self._ended:
            self._subscription.start(cursor)
            self._subscription.send_now()

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        self.call.finished()
        self._conversation.cancel_on_deleted(self)
        self._subscription.close()


class Streams:
    """At most one stream for each conversation."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._streams: dict[ConversationId, _Stream] = {}

    def open(self, conversation: Conversation, call: Call, *, after: Seq, event_meta: bool, as_log: bool) -> None:
        """Begin a stream. It takes over from an open stream of the same conversation."""
        session, conversation_id = self._session, conversation.id
        if session.has_left:
            call.finished()
            return
        self._disconnect(conversation_id, StreamDisconnected.TAKEN_OVER)
        session.note_request(conversation_id, call.id)
        encoder = StreamEncoder(conversation_id, session.features, event_meta=event_meta, as_log=as_log)
        stream = _Stream(
            session,
            conversation,
            call,
            encoder=encoder,
            out=_LogOutbox(session) if as_log else session.stream_out(conversation_id),
            after=after,
            on_dropped=lambda: self._disconnect(conversation_id, StreamDisconnected.NOT_SENT),
        )
        self._streams[conversation_id] = stream
        encoder.name_conversation(len(self._streams) > 1)
        self._name_conversations()
        conversation.on_deleted(stream, lambda: self._lose(conversation))
        session.on_leave(self, self._close_all)
        call.on_cancel(lambda: self._close(conversation_id))  # the client may have cancelled it already
        stream.begin()

    def restart(self, positions: Mapping[str, Position]) -> None:
        """Send every stream again, after the part that the client has received."""
        for conversation_id, stream in tuple(self._streams.items()):
            stream.restart(positions.get(conversation_id))

    def shut_down(self) -> None:
        """End every stream because the server ends."""
        for conversation_id in tuple(self._streams):
            self._disconnect(conversation_id, StreamDisconnected.SHUTTING_DOWN)

    def _lose(self, conversation: Conversation) -> None:
        if (lost := conversation.lost) is None:
            self._disconnect(conversation.id, StreamDisconnected.DELETED)
        else:
            self._disconnect(conversation.id, str(lost), lost.code)

    def _disconnect(self, conversation_id: ConversationId, reason: str, code: str | None = None) -> None:
        if (stream := self._streams.get(conversation_id)) is not None:
            self._close(conversation_id)
            stream.out.send(stream.encoder.disconnected(reason, code or StreamDisconnected.CODES[reason]))

    def _close(self, conversation_id: ConversationId) -> None:
        self._streams.pop(conversation_id).end()
        self._session.stream_outboxes.ended(conversation_id)
        self._name_conversations()
        if not self._streams:
            self._session.cancel_on_leave(self)

    def _close_all(self) -> None:
        for conversation_id in tuple(self._streams):
            self._close(conversation_id)

    def _name_conversations(self) -> None:
        """Name the conversation of each event while several streams are open, and not while there is one."""
        if len(self._streams) <= 2:  # with more, the streams that were open before name it already
            for stream in self._streams.values():
                stream.encoder.name_conversation(len(self._streams) == 2)
