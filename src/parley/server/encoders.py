"""How events are put into frames, for a stream and for a `codex` call.

Bytes around bytes: the event was encoded once for all readers, and what stands around it is
made once for each type of event. `wire/notifications.py` has the same shapes as structs, and
tests hold the two together. A stream as log messages has the same bytes in a longer envelope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from parley.conversation.log import Delta, Entry, encode_piece, output_of
from parley.conversation.output import OutputDelta
from parley.wire.events import FOR_FULL_VERSION_ONLY
from parley.wire.ids import ConversationId, EventId, Seq
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import LogMessage
from parley.wire.notifications import CONVERSATION_LOGGER, CodexEvent, InitialState, StreamDisconnected

__all__ = ["CodexEncoder", "StreamEncoder", "hidden_events"]

_NOTIFICATION: Final = b'{"jsonrpc":"2.0","method":"%b","params":{', b"}}"
"""What stands before and after the params of a notification."""
_LOG_MESSAGE: Final = (
    b'{"jsonrpc":"2.0","method":"%b","params":{"level":"info","logger":"%b","data":{"method":"%%b","params":{'
    % (LogMessage.METHOD.encode(), CONVERSATION_LOGGER.encode()),
    b"}}}}",
)
"""The same for a notification that is the data of a log message."""


def hidden_events(*, full: bool) -> frozenset[str]:
    """Types of events that a client is not sent."""
    return frozenset() if full else FOR_FULL_VERSION_ONLY


class StreamEncoder:
    """Events of a streamed conversation: `{"msg"}`, with `_meta` where the client wants or needs it."""

    tells_records = False

    def __init__(self, conversation: ConversationId, *, full: bool, event_meta: bool, as_log: bool = False) -> None:
        self.hidden = hidden_events(full=full)
        self._event_meta = event_meta
        self._begin, self._end = _LOG_MESSAGE if as_log else _NOTIFICATION
        self._conversation = b'"conversationId":%b' % encode(conversation)
        self._heads: dict[str, bytes] = {}
        self._named = False

    def name_conversation(self, named: bool) -> None:
        """Say of which conversation each event is, or not: needed while several are streamed."""
        if named is not self._named:
            self._named = named
            self._heads.clear()

    def entry(self, entry: Entry) -> bytes:
        head = self._heads.get(entry.type) or self._head(entry.type)
        if self._event_meta:
            return b'%b,"seq":%d},"msg":%b%b' % (head, entry.seq, entry.encoded, self._end)
        return b"%b%b%b" % (head, entry.encoded, self._end)

    def delta(self, delta: Delta | OutputDelta, encoded: bytes) -> bytes:
        item = delta.item
        head = self._heads.get(item.type) or self._head(item.type)
        if self._event_meta:
            return b'%b,"item":"%b","offset":%d},"msg":%b%b' % (
                head,
                item.id.encode(),
                delta.offset,
                encoded,
                self._end,
            )
        return b"%b%b%b" % (head, encoded, self._end)

    def snapshot(self, entries: Iterable[Entry], open_deltas: Iterable[Delta | OutputDelta], last: Seq) -> bytes:
        """All that happened, as one notification."""
        meta = b'%b,"seq":%d' % (self._conversation, last) if self._event_meta else self._conversation
        with_place = self._event_meta
        piece = _with_place if with_place else _without_place
        # Joined once: an event may be as large as a message.
        begin = self._begin % InitialState.METHOD.encode()
        parts = [b'%b"_meta":{%b},"initial_state":{"events":[' % (begin, meta)]
        for entry in entries:
            if entry.is_event:
                parts += (
                    b'{"_meta":{"seq":%d},"msg":' % entry.seq if with_place else b'{"msg":',
                    entry.encoded,
                    b"},",
                )
            else:
                parts += (b"%b," % piece(delta) for delta in _shown(entry))
        parts += (b"%b," % piece(delta) for delta in open_deltas)
        if len(parts) > 1:
            parts[-1] = parts[-1][:-1]  # no comma after the last event
        parts += (b"]}", self._end)
        return b"".join(parts)

    def disconnected(self, reason: str) -> bytes:
        """The server ends the stream."""
        return b'%b"_meta":{%b},"reason":%b%b' % (
            self._begin % StreamDisconnected.METHOD.encode(),
            self._conversation,
            encode(reason),
            self._end,
        )

    def _head(self, event: str) -> bytes:
        """All that stands before the part of a frame that changes from event to event."""
        if self._event_meta:
            meta = b'"_meta":{%b' % self._conversation
        elif self._named:
            meta = b'"_meta":{%b},"msg":' % self._conversation
        else:
            meta = b'"msg":'
        head = self._heads[event] = self._begin % event.encode() + meta
        return head


def _shown(entry: Entry) -> Iterator[OutputDelta]:
    """What a snapshot has of the output of a command that ended."""
    for stream in output_of(entry):
        yield from stream.shown()


def _with_place(delta: Delta | OutputDelta) -> bytes:
    return b'{"_meta":{"item":"%b","offset":%d},"msg":%b}' % (
        delta.item.id.encode(),
        delta.offset,
        encode_piece(delta),
    )


def _without_place(delta: Delta | OutputDelta) -> bytes:
    return b'{"msg":%b}' % encode_piece(delta)


class CodexEncoder:
    """Events of a `codex` call: each as `codex/event` and again under its own name."""

    tells_records = False

    def __init__(self, request: RequestId, *, full: bool, event_id: EventId) -> None:
        self.hidden = hidden_events(full=full)
        self._request = encode(request)
        self._heads: dict[str, tuple[bytes, bytes]] = {}
        self.event_id = event_id

    def change_event_id(self, event_id: EventId) -> None:
        """A turn begins: its events have this id."""
        self.event_id = event_id
        self._heads.clear()

    def entry(self, entry: Entry) -> bytes:
        return self.event(entry.type, entry.encoded)

    def delta(self, delta: Delta | OutputDelta, encoded: bytes) -> bytes:
        return self.event(delta.item.type, encoded)

    def event(self, event: str, encoded: bytes) -> bytes:
        first, second = self._heads.get(event) or self._make_heads(event)
        return b"%b%b}}\n%b%b}}" % (first, encoded, second, encoded)

    def _make_heads(self, event: str) -> tuple[bytes, bytes]:
        head = b'{"jsonrpc":"2.0","method":"%%b","params":{"_meta":{"requestId":%b},"id":%b,"msg":' % (
            self._request.replace(b"%", b"%%"),
            encode(self.event_id).replace(b"%", b"%%"),
        )
        heads = self._heads[event] = (head % CodexEvent.METHOD.encode(), head % event.encode())
        return heads
