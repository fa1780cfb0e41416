"""Compares the events that clients of several processes received with the log of the conversation.

Every stream must show the log from some position on, without a gap and with the same bytes as for all other
clients. Between events it shows deltas, each of which continues the previous one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import DecodeError, Raw, Struct

from parley.testing import RawParley
from parley.wire.mcp import FULL_VERSION
from parley.wire.notifications import InitialState
from parley.wire.tools import ConversationReadResult

__all__ = ["Log", "Segment", "read_logs", "segments_of", "turns_in"]

Log = list[tuple[int, bytes]]
"""The positions and encoded bytes of events."""

PAGE: Final = 100
ENDS: Final = frozenset({"agent_message", "background_event", "error", "task_complete"})
"""Events after which no text is open."""


class _Meta(Struct, rename="camel"):
    conversation_id: str | None = None
    seq: int | None = None
    item: str | None = None
    offset: int = 0


class _Event(Struct):
    msg: Raw
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


class _State(Struct):
    events: list[_Event]


class _Params(Struct):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)
    msg: Raw = Raw(b"")
    initial_state: _State | None = None


class _Frame(Struct):
    method: str | None = None
    params: _Params | None = None


_frames: Final = msgspec.json.Decoder(_Frame)


class Segment:
    """The frames of one stream, from its snapshot to its end."""

    def __init__(self, who: str, conversation: str) -> None:
        self.who, self.conversation = who, conversation
        self.events: Log = []
        self._saying: dict[str, str] = {}
        """The text of each open item so far."""
        self._said: set[str] = set()

    def take(self, event: _Event) -> None:
        if event.meta.seq is not None:
            self.events.append((event.meta.seq, bytes(event.msg)))
            self._end(msgspec.json.decode(event.msg))
        elif event.meta.item is not None:
            self._extend(event.meta.item, event.meta.offset, msgspec.json.decode(event.msg))

    def _extend(self, item: str, offset: int, event: Any) -> None:
        if event["type"] != "agent_message_delta":
            return
        assert item not in self._said, f"{self.who}: {item} continues after its end: {event}"
        before = self._saying.get(item, "")
        assert offset == len(before), f"{self.who}: {item} at {offset} after {before!r}: {event}"
        self._saying[item] = before + event["delta"]

    def _end(self, event: Any) -> None:
        if event["type"] not in ENDS:
            return
        if event["type"] == "agent_message":
            for item, text in self._saying.items():
                assert event["message"].startswith(text), f"{self.who}: {item} was {text!r} before {event}"
        self._said |= self._saying.keys()
        self._saying.clear()

    def check(self, log: Sequence[tuple[int, bytes]]) -> None:
        """Compare with the log. Raises AssertionError if an event is missing, repeated, out of order or
        different."""
        expected = log[: len(self.events)]
        for place, (seen, kept) in enumerate(zip(self.events, expected, strict=False)):
            assert seen == kept, f"{self.who} was shown {seen} as event {place} of {self.conversation}, not {kept}"
        assert len(self.events) <= len(log), (
            f"{self.who} was shown {self.events[len(log) :]} of {self.conversation}"
        )


def segments_of(who: str, frames: Sequence[bytes]) -> Iterator[Segment]:
    """Yield the streams of one client, except streams without a snapshot.

    The last frame may be incomplete, because the server was killed while it sent the frame.
    """
    current: dict[str, Segment] = {}
    for number, frame in enumerate(frames, 1):
        if b'"conversationId"' not in frame:
            continue
        try:
            message = _frames.decode(frame)
        except DecodeError:
            if number == len(frames):
                return
            raise
        if message.params is None or (conversation := message.params.meta.conversation_id) is None:
            continue
        if message.method == InitialState.METHOD and message.params.initial_state is not None:
            segment = current[conversation] = Segment(who, conversation)
            for event in message.params.initial_state.events:
                segment.take(event)
            yield segment
        elif len(bytes(message.params.msg)) and conversation in current:
            current[conversation].take(_Event(message.params.msg, message.params.meta))


def turns_in(log: Iterable[bytes]) -> list[list[Any]]:
    """Return the events of each turn; events between two turns belong to the first of them."""
    turns: list[list[Any]] = []
    for encoded in log:
        event = msgspec.json.decode(encoded)
        if event["type"] == "task_started":
            turns.append([])
        if turns:
            turns[-1].append(event)
    return turns


class _Result(Struct, rename="camel"):
    structured_content: ConversationReadResult


class _Answer(Struct):
    result: _Result


async def read_logs(raw: RawParley, conversations: Iterable[str]) -> dict[str, Log]:
    """Read every event of every conversation with a new process."""
    info = {"name": "last", "version": "1"}
    params = {"protocolVersion": FULL_VERSION, "capabilities": {}, "clientInfo": info}
    raw.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    await raw.read_message()
    return {
        conversation: [event async for event in _events_of(raw, conversation)] for conversation in conversations
    }


async def _events_of(raw: RawParley, conversation: str) -> AsyncIterator[tuple[int, bytes]]:
    after = 0
    while True:
        arguments = {"conversation_id": conversation, "after": after, "limit": PAGE}
        call = {"name": "conversationRead", "arguments": arguments}
        raw.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        await raw.read_message()
        page = msgspec.json.decode(raw.frames[-1], type=_Answer).result.structured_content
        for event in page.events:
            if not isinstance(event.item, str):
                yield event.seq, bytes(event.msg)
        if not page.events:
            return
        after = page.seq
