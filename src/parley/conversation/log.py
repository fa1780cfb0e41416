"""The log of one conversation: what happened, in order, and what is still being said.

Knows positions and open items. Does not know who reads nor how entries travel: a reader is a
`Cursor`, and `runtime/readers.py` does the waiting.

An *entry* has a position and is there to stay. An *open item* is a text that is still being
written: a delta extends it and has no position; it stands behind the last entry. The item ends
with the event that supersedes it (`ENDS`), or is void with an event after which nothing can be
going on (`VOIDS`). Both are read off the events themselves, so that whoever sees the events
knows it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from parley.conversation.records import Record, record_type
from parley.wire.events import (
    AgentMessage,
    AgentMessageDelta,
    AgentReasoning,
    AgentReasoningDelta,
    AgentReasoningRawContent,
    AgentReasoningRawContentDelta,
    BackgroundEvent,
    ErrorEvent,
    EventBase,
    EventMsg,
    TaskComplete,
    event_type,
)
from parley.wire.ids import START, ItemId, Seq
from parley.wire.jsonrpc import encode

__all__ = ["ENDS", "VOIDS", "Cursor", "Delta", "Entry", "Happened", "ItemKind", "Log", "OpenItem", "encode_delta"]

Happened = EventMsg | Record
"""What can be appended."""


class ItemKind(StrEnum):
    """The kinds of open item, each named by the type of its deltas."""

    MESSAGE = event_type(AgentMessageDelta)
    REASONING = event_type(AgentReasoningDelta)
    RAW_REASONING = event_type(AgentReasoningRawContentDelta)


ENDS: Final = {
    event_type(AgentMessage): ItemKind.MESSAGE,
    event_type(AgentReasoning): ItemKind.REASONING,
    event_type(AgentReasoningRawContent): ItemKind.RAW_REASONING,
}
"""The event that supersedes the open item of a kind. At most one item of a kind is open."""

VOIDS: Final = frozenset(event_type(cls) for cls in (BackgroundEvent, ErrorEvent, TaskComplete))
"""Events of a retry, a failure, an interrupt, an end: what is open then was never said."""

_DELTA_PREFIX: Final = {
    kind.value: b'{"type":"%b","delta":' % kind.value.encode()  # every text delta has this shape
    for kind in ItemKind
}


class Entry(Struct, frozen=True, gc=False):
    """One event or record, encoded once for all who will read it."""

    seq: Seq
    at: float
    """When it happened, in seconds since the epoch."""
    type: str
    is_event: bool
    encoded: bytes


class OpenItem:
    """A text that is still being written."""

    __slots__ = ("_pieces", "id", "kind", "length", "type")

    def __init__(self, item_id: ItemId, kind: ItemKind) -> None:
        self.id, self.kind = item_id, kind
        self.type: str = kind.value
        self.length = 0
        self._pieces: list[str] = []

    def extend(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)

    def text(self) -> str:
        """All of it so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Delta(Struct, frozen=True, gc=False):
    """What an open item grew by, or the part of it that one reader lacks."""

    item: OpenItem
    offset: int
    """Where in the item it begins, in code points."""
    text: str


def encode_delta(delta: Delta) -> bytes:
    """The delta as the event that clients read."""
    return b"%b%b}" % (_DELTA_PREFIX[delta.item.type], encode(delta.text))


class Log:
    """Entries by position, and the open items behind the last of them."""

    __slots__ = ("_items_opened", "entries", "open")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.open: dict[ItemKind, OpenItem] = {}
        self._items_opened = 0

    @property
    def last(self) -> Seq:
        """The position of the last entry; 0 when there is none."""
        return Seq(len(self.entries))

    def append(self, happened: Sequence[Happened], *, at: float) -> list[Entry]:
        """Add entries behind the last one; items that they end or void are open no more."""
        added: list[Entry] = []
        for seq, one in enumerate(happened, start=len(self.entries) + 1):
            is_event = isinstance(one, EventBase)
            kind = event_type(one) if isinstance(one, EventBase) else record_type(one)
            added.append(Entry(Seq(seq), at, kind, is_event, encode(one)))
        self.entries += added
        for entry in added if self.open else ():
            if entry.is_event and entry.type in VOIDS:
                self.open.clear()
            elif entry.is_event and entry.type in ENDS:
                self.open.pop(ENDS[entry.type], None)
        return added

    def extend(self, kind: ItemKind, text: str) -> Delta:
        """Grow the open item of this kind, opening it first if there is none."""
        item = self.open.get(kind)
        if item is None:
            self._items_opened += 1
            item = self.open[kind] = OpenItem(ItemId(f"i{self._items_opened}"), kind)
        delta = Delta(item, item.length, text)
        item.extend(text)
        return delta

    def events(self, *, after: Seq = START, hidden: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """The events behind a position, in order, without those of the hidden types."""
        for entry in self.entries[after:] if after else self.entries:
            if entry.is_event and entry.type not in hidden:
                yield entry

    def open_deltas(self) -> list[Delta]:
        """What is still being said, each item whole, as one delta each."""
        return [Delta(item, 0, item.text()) for item in self.open.values() if item.length]


class Cursor:
    """A reader's place in a log: the last position passed, and how much of each open item it has.

    While `live`, the reader has everything, and the place is simply the end: nothing is written
    down for each delta that passes. `next` hands out what is lacking, one thing at a time;
    `appended` and `missed` say where a live reader stands when something new is not passed on
    to it at once.
    """

    __slots__ = ("_offsets", "live", "seq")

    def __init__(self, after: Seq = START) -> None:
        self.seq = after
        self.live = False
        self._offsets: dict[ItemId, int] = {}

    @classmethod
    def at_end_of(cls, log: Log) -> Cursor:
        """The place of a reader that was just given everything."""
        cursor = cls(log.last)
        cursor.live = True
        return cursor

    def appended(self, log: Log, first: Seq) -> None:
        """Entries from `first` on are new. Had it all before; has the open items still."""
        if self.live:
            self.seq, self.live = Seq(first - 1), False
            self._offsets = {item.id: item.length for item in log.open.values()}

    def missed(self, log: Log, delta: Delta) -> None:
        """The newest delta was not passed on. Had all before it."""
        if self.live:
            self.seq, self.live = log.last, False
            self._offsets = {item.id: item.length for item in log.open.values()}
            self._offsets[delta.item.id] = delta.offset

    def next(self, log: Log) -> Entry | Delta | None:
        """The next thing this reader lacks; entries first, then open items. None: it has all, and is live."""
        if self.live:
            return None
        if self.seq < len(log.entries):
            entry = log.entries[self.seq]
            self.seq = entry.seq
            return entry
        for item in log.open.values():
            offset = self._offsets.get(item.id, 0)
            if offset < item.length:
                self._offsets[item.id] = item.length
                return Delta(item, offset, item.text()[offset:])
        self._offsets.clear()
        self.live = True
        return None
