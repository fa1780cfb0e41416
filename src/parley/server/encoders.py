"""Encodes events as notifications for streams, for `codex` calls and for `codex-reply` calls.

An event is encoded once for all readers. An encoder adds the bytes of the notification before and after the event.
The bytes before the event are cached for each event type. The module `wire/notifications.py` defines the same
notifications as structs, and tests compare the encoded notifications with the structs. If a stream is sent as log
messages, each notification of the stream is the data of a log message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from parley.conversation.log import Delta, Entry, encode_piece, output_of
from parley.conversation.output import OutputDelta
from parley.server.hosts import Features
from parley.wire.events import FOR_FULL_VERSION_ONLY, plain_event
from parley.wire.ids import ConversationId, EventId, ItemId, Seq
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import LogMessage
from parley.wire.notifications import CONVERSATION_LOGGER, CodexEvent, InitialState, StreamDisconnected

__all__ = ["CodexEncoder", "StreamEncoder", "encoded_event", "hidden_events"]

_NOTIFICATION: Final = b'{"jsonrpc":"2.0","method":"%b","params":{', b"}}"
"""The bytes before and after the members of `params` in a notification. `%b` stands for the method."""
_LOG_MESSAGE: Final = (
    b'{"jsonrpc":"2.0","method":"%b","params":{"level":"info","logger":"%b","data":{"method":"%%b","params":{'
    % (LogMessage.METHOD.encode(), CONVERSATION_LOGGER.encode()),
    b"}}}}",
)
"""The bytes before and after the members of `params` in a notification that is sent as the data of a log message.
`%b` stands for the method of the notification.
"""

Send = Callable[[bytes], None]


def hidden_events(features: Features) -> frozenset[str]:
    """Return the event types that a client with the given features does not get."""
    return frozenset() if features.additions else FOR_FULL_VERSION_ONLY


def encoded_event(entry: Entry, features: Features) -> bytes:
    """Return the encoded event of `entry` in the form for a client with the given features."""
    return entry.encoded if features.additions else plain_event(entry.type, entry.encoded)


class StreamEncoder:
    """Encodes the events of a conversation as the notifications of a stream. The params of each notification
    contain the event as `msg`.
    """

    sends_records = False

    def __init__(
        self,
        conversation: ConversationId,
        features: Features,
        *,
        event_meta: bool,
        as_log: bool = False,
        before: Seq | None = None,
    ) -> None:
        """Create the encoder.

        If `event_meta` is True, the `_meta` of each event contains the id of the conversation and the position of
        the event. If `as_log` is True, events are sent as log messages. If the snapshot omits older events,
        `before` is the argument `before` that the client passes to `conversationRead` to read them; otherwise it is
        None.
        """
        self._before = b"" if before is None else b',"before":%d' % before
        self.hidden = hidden_events(features)
        self._features = features
        self._event_meta = event_meta
        self._begin, self._end = _LOG_MESSAGE if as_log else _NOTIFICATION
        self._conversation = b'"conversationId":%b' % encode(conversation)
        self._heads: dict[str, bytes] = {}
        self._item: ItemId | None = None
        """The id of the item whose delta was last sent with `_meta`; None before the first delta."""
        self._item_format = b""
        """The frame template for the deltas of the item `_item`, with placeholders for the offset and the event.
        The template is cached because deltas are on the hot path.
        """
        self._named = False

    def name_conversation(self, named: bool) -> None:
        """Set whether each event contains the id of its conversation.

        The id is necessary while the client has streams of several conversations.
        """
        if named is not self._named:
            self._named = named
            self._heads.clear()

    def entry(self, entry: Entry, send: Send) -> None:
        head = self._heads.get(entry.type) or self._head(entry.type)
        encoded = encoded_event(entry, self._features)
        if self._event_meta:
            send(b'%b,"seq":%d},"msg":%b%b' % (head, entry.seq, encoded, self._end))
        else:
            send(b"%b%b%b" % (head, encoded, self._end))

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Send) -> None:
        item = delta.item
        if self._event_meta:
            if item.id != self._item:
                self._item, self._item_format = item.id, self._format_of(item.type, item.id)
            send(self._item_format % (delta.offset, encoded))
        else:
            head = self._heads.get(item.type) or self._head(item.type)
            send(b"%b%b%b" % (head, encoded, self._end))

    def snapshot(self, entries: Iterable[Entry], open_deltas: Iterable[Delta | OutputDelta], last: Seq) -> bytes:
        """Encode a snapshot as one notification. `last` is the position at which the snapshot ends. `open_deltas`
        contains the content of the open items so far.
        """
        # The parts are joined once, because an event may be as large as a message.
        events = self._events(entries)
        events += self._deltas(open_deltas)
        if events:
            events[0] = events[0][1:]  # no comma before the first event
        return b"".join((self.snapshot_begin(last), *events, self.snapshot_end()))

    def snapshot_begin(self, last: Seq) -> bytes:
        """Encode the beginning of a snapshot that is sent in parts. `last` is the position at which the snapshot
        ends.
        """
        meta = b'%b,"seq":%d' % (self._conversation, last) if self._event_meta else self._conversation
        begin = self._begin % InitialState.METHOD.encode()
        return b'%b"_meta":{%b%b},"initial_state":{"events":[' % (begin, meta, self._before)

    def snapshot_part(
        self, entries: Iterable[Entry], open_deltas: Iterable[Delta | OutputDelta] = (), *, is_first: bool
    ) -> bytes:
        """Encode the next events of a snapshot: the events in `entries`, and then `open_deltas`, the content of the
        open items so far. The result is empty if there are no events to send.

        `is_first` is True if all earlier parts of the snapshot were empty.
        """
        events = self._events(entries)
        events += self._deltas(open_deltas)
        if events and is_first:
            events[0] = events[0][1:]
        return b"".join(events)

    def snapshot_end(self) -> bytes:
        """Encode the end of a snapshot that is sent in parts."""
        return b"]}%b" % self._end

    def _events(self, entries: Iterable[Entry]) -> list[bytes]:
        """Encode the entries as events of a snapshot. Each encoded event begins with a comma."""
        with_place, features = self._event_meta, self._features
        piece = _with_place if with_place else _without_place
        parts: list[bytes] = []
        for entry in entries:
            if entry.is_event:
                parts += (
                    b',{"_meta":{"seq":%d},"msg":' % entry.seq if with_place else b',{"msg":',
                    encoded_event(entry, features),
                    b"}",
                )
            else:
                parts += (b",%b" % piece(delta) for delta in _shown(entry))
        return parts

    def _deltas(self, deltas: Iterable[Delta | OutputDelta]) -> list[bytes]:
        piece = _with_place if self._event_meta else _without_place
        return [b",%b" % piece(delta) for delta in deltas]

    def disconnected(self, reason: str, code: str) -> bytes:
        """Encode the notification that tells the client that the server has ended the stream. `reason` and `code`
        are the message and the error code that explain why.
        """
        return b'%b"_meta":{%b},"reason":%b%b%b' % (
            self._begin % StreamDisconnected.METHOD.encode(),
            self._conversation,
            encode(reason),
            b',"code":%b' % encode(code) if self._features.additions else b"",
            self._end,
        )

    def _format_of(self, event: str, item: ItemId) -> bytes:
        """Return the frame template, including `_meta`, for the deltas of one item. `event` is the event type of
        the deltas. The template has placeholders for the offset and the event.
        """
        head = b'%b,"item":"%b","offset":' % (self._head(event), item.encode())
        return b'%b%%d},"msg":%%b%b' % (head.replace(b"%", b"%%"), self._end)

    def _head(self, event: str) -> bytes:
        """Return the bytes of a notification before the event. They are the same for all events of the type
        `event`.
        """
        if self._event_meta:
            meta = b'"_meta":{%b' % self._conversation
        elif self._named:
            meta = b'"_meta":{%b},"msg":' % self._conversation
        else:
            meta = b'"msg":'
        head = self._heads[event] = self._begin % event.encode() + meta
        return head


def _shown(entry: Entry) -> Iterator[OutputDelta]:
    """Yield the output of a finished command as deltas. `entry` is the record that contains the output. If the
    output is long, yield only its beginning and its end.
    """
    for stream in output_of(entry):
        yield from stream.preview()


def _with_place(delta: Delta | OutputDelta) -> bytes:
    return b'{"_meta":{"item":"%b","offset":%d},"msg":%b}' % (
        delta.item.id.encode(),
        delta.offset,
        encode_piece(delta),
    )


def _without_place(delta: Delta | OutputDelta) -> bytes:
    return b'{"msg":%b}' % encode_piece(delta)


class CodexEncoder:
    """Encodes each event of a `codex` or `codex-reply` call as two notifications: one with the method
    `codex/event`, and one with the event type as the method.
    """

    sends_records = False

    def __init__(self, request: RequestId, features: Features, *, event_id: EventId) -> None:
        self.hidden = hidden_events(features)
        self._request, self._features = encode(request), features
        self._heads: dict[str, tuple[bytes, bytes]] = {}
        self.event_id = event_id

    def change_event_id(self, event_id: EventId) -> None:
        """Use `event_id` in all following notifications, because another turn begins."""
        self.event_id = event_id
        self._heads.clear()

    def entry(self, entry: Entry, send: Send) -> None:
        self.event(entry.type, encoded_event(entry, self._features), send)

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Send) -> None:
        # The code of `event` is repeated here instead of called, because deltas are on the hot path.
        kind = delta.item.type
        first, second = self._heads.get(kind) or self._make_heads(kind)
        ended = encoded + b"}}"
        send(first + ended)
        send(second + ended)

    def event(self, event: str, encoded: bytes, send: Send) -> None:
        """Send an encoded event of the type `event`. The event need not be in the log."""
        first, second = self._heads.get(event) or self._make_heads(event)
        send(b"%b%b}}" % (first, encoded))
        send(b"%b%b}}" % (second, encoded))

    def _make_heads(self, event: str) -> tuple[bytes, bytes]:
        head = b'{"jsonrpc":"2.0","method":"%%b","params":{"_meta":{"requestId":%b},"id":%b,"msg":' % (
            self._request.replace(b"%", b"%%"),
            encode(self.event_id).replace(b"%", b"%%"),
        )
        heads = self._heads[event] = (head % CodexEvent.METHOD.encode(), head % event.encode())
        return heads
