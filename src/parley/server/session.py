"""One client, for as long as it is connected: what it negotiated, what it follows, what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from parley.conversation.log import Cursor, Entry
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.readers import Reader
from parley.server.dispatch import Call
from parley.server.elicitor import Elicitor
from parley.server.encoders import StreamEncoder
from parley.server.hosts import PLAIN, Features
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.ids import ConversationId, Seq
from parley.wire.mcp import PLAIN_VERSION, LogLevel
from parley.wire.notifications import StreamDisconnected

__all__ = ["Session"]

_SHOWS_INFO: Final[frozenset[LogLevel]] = frozenset({"debug", "info"})
"""Levels at which a client gets messages of level `info`."""


class _Stream:
    """One conversation shown to one client: first all that happened, then all that happens."""

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        call: Call,
        *,
        voice: StreamEncoder,
        out: Outbox,
        after: Seq,
    ) -> None:
        self.call, self.voice, self.out = call, voice, out
        self._session, self._conversation, self._after = session, conversation, after
        self._reader: Reader | None = None
        self._ended = False

    def begin(self) -> None:
        if self.out.writable or self._ended:
            self._join()
        else:
            session = self._session
            self._conversation.register_reader(
                self, can_be_asked=session.asking.can_be_asked, knows_limits=session.features.full_version
            )
            self.out.when_writable(self._join)

    def _join(self) -> None:
        """The snapshot, made when the client is ready for it, and from there on live, in one step."""
        if self._ended:  # cancelled before: it is never made
            return
        log = self._conversation.log
        if self.out is not SILENT:
            entries = log.events(after=self._after, hidden=self.voice.hidden)
            try:
                snapshot = self.voice.snapshot(entries, log.open_deltas(), log.durable)
            except MemoryError:
                self._dropped()
                return
            self.out.send(snapshot)
        self._reader = Reader(
            log, Cursor.at_end_of(log), self.out, self.voice, passed=self._passed, on_dropped=self._dropped
        )
        self._session.attach(self._conversation, self._reader)
        self._conversation.unregister_reader(self)
        self._session.asking.ask_what_is_open(self._conversation)

    def _passed(self, entry: Entry) -> None:
        self._session.asking.passed(self._conversation, entry)

    def _dropped(self) -> None:
        self._session.drop_stream(self._conversation.id)

    def end(self) -> None:
        self._ended = True
        self.call.finished()
        self._conversation.unregister_reader(self)
        if self._reader is not None:
            self._session.detach(self._conversation, self._reader)


class _SilentOutbox:
    """The outbox of events for a host, which would drop them: takes everything and sends nothing."""

    writable = True

    def send(self, frame: bytes) -> None:
        pass

    def when_writable(self, wake: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(wake)


SILENT: Final = _SilentOutbox()


class _LogOutbox:
    """The outbox of a stream that is sent as log messages: drops them while the client wants only severer ones."""

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


class Session:
    """One client."""

    def __init__(self, out: Outbox, request_ids: Iterator[int]) -> None:
        self.out = out
        self.version = PLAIN_VERSION
        self.features = PLAIN
        """What the client sees."""
        self.initialized = False
        self.left_turns: dict[ConversationId, Seq] = {}
        """Conversations whose turn a call stopped waiting for, and the position before that turn."""
        self.log_level: LogLevel = "info"
        """The least severe log messages that the client wants."""
        self.requests = OutgoingRequests(out, request_ids)
        self.asking = Elicitor(self.requests)
        self._followed: dict[Reader, Conversation] = {}
        self._streams: dict[ConversationId, _Stream] = {}
        self._is_gone = False

    def begin(self, version: str, features: Features, *, can_be_asked: bool) -> None:
        """The client has introduced itself."""
        self.version, self.features, self.initialized = version, features, True
        self.asking.begin(features, can_be_asked=can_be_asked)

    @property
    def events_out(self) -> Outbox:
        """Where events are sent: to the client, or nowhere if its host would drop them."""
        return self.out if self.features.event_notifications else SILENT

    def attach(self, conversation: Conversation, reader: Reader, *, waits_for_turn: bool = False) -> None:
        """Let the client follow a conversation, unless it went while it was being found."""
        if self._is_gone:
            return
        self._followed[reader] = conversation
        conversation.attach(reader)
        conversation.register_reader(
            reader,
            can_be_asked=self.asking.can_be_asked,
            knows_limits=self.features.full_version,
            waits_for_turn=waits_for_turn,
        )

    def detach(self, conversation: Conversation, reader: Reader) -> None:
        self._followed.pop(reader, None)
        conversation.detach(reader)

    def open_stream(
        self, conversation: Conversation, call: Call, *, after: Seq, event_meta: bool, as_log: bool
    ) -> None:
        """Show a conversation from now on; a stream of it that is open here is taken over."""
        if self._is_gone:
            call.finished()
            return
        self._disconnect(conversation.id, StreamDisconnected.TAKEN_OVER)
        self.asking.came_by(conversation.id, call.id)
        voice = StreamEncoder(conversation.id, full=self.features.additions, event_meta=event_meta, as_log=as_log)
        out = _LogOutbox(self) if as_log else self.events_out
        stream = _Stream(self, conversation, call, voice=voice, out=out, after=after)
        self._streams[conversation.id] = stream
        voice.name_conversation(len(self._streams) > 1)
        self._tell_apart()
        conversation.on_deleted(
            self,
            lambda: self._disconnect(
                conversation.id,
                StreamDisconnected.DELETED if conversation.lost is None else str(conversation.lost),
            ),
        )
        call.on_cancel(lambda: self._close(conversation.id))  # it may have been cancelled already
        stream.begin()

    def close(self) -> None:
        """The server ends: say so to every stream."""
        for conversation_id in tuple(self._streams):
            self._disconnect(conversation_id, StreamDisconnected.SHUTTING_DOWN)

    def gone(self) -> None:
        """The client is not there any more: it reads nothing and answers nothing. Its turns go on."""
        self._is_gone = True
        for conversation_id in tuple(self._streams):
            self._close(conversation_id)
        for reader, conversation in tuple(self._followed.items()):
            self.detach(conversation, reader)
        self.asking.gone()

    def drop_stream(self, conversation_id: ConversationId) -> None:
        """There was no memory for an event; whatever comes next would leave a gap."""
        self._disconnect(conversation_id, StreamDisconnected.NOT_SENT)

    def _disconnect(self, conversation_id: ConversationId, reason: str) -> None:
        if (stream := self._streams.get(conversation_id)) is not None:
            self._close(conversation_id)
            stream.out.send(stream.voice.disconnected(reason))

    def _close(self, conversation_id: ConversationId) -> None:
        self._streams.pop(conversation_id).end()
        self._tell_apart()

    def _tell_apart(self) -> None:
        """Name the conversation of each event while there are several streams, and not while there is one."""
        if len(self._streams) <= 2:  # with more, the streams that were open before name it already
            for stream in self._streams.values():
                stream.voice.name_conversation(len(self._streams) == 2)
