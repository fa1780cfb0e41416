"""The log of one conversation: its entries in order, and the open items after the last entry.

Knows positions and open items. Does not know who reads: a reader is a `Cursor`, and `runtime/readers.py` sends the
entries.

An *entry* has a position and is permanent. An *open item* is a text that is still being written: a delta extends it
and has no position; the item comes after the last entry. The item ends with the event that supersedes it (`ENDS`),
or is discarded by an event after which nothing can be in progress (`DISCARDS_OPEN`). Both depend only on the
events, so clients compute the same result. The output of a command is an open item as well, one for each stream; it
ends with the record of the stored output, directly before the event that ends the command.

An entry is *durable* once it cannot be lost. No reader passes an entry that is not durable.

A long log has only a *tail* in memory: the entries after `Log.base`. Earlier entries are in the store. A cursor
that needs one returns `EARLIER`, and is then supplied with pages of entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.output import CHUNK_BYTES, OpenOutput, OutputDelta, encode_output_delta
from parley.conversation.records import CommandOutput, Record, record_type
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
    OutputStream,
    TaskComplete,
    event_type,
)
from parley.wire.ids import START, CallId, ItemId, Seq
from parley.wire.jsonrpc import encode

__all__ = [
    "DISCARDS_OPEN",
    "EARLIER",
    "ENDS",
    "Cursor",
    "Delta",
    "Earlier",
    "Entry",
    "ItemKind",
    "Log",
    "LogPayload",
    "OpenItem",
    "encode_delta",
    "encode_piece",
    "output_of",
    "visible",
]

LogPayload = EventMsg | Record
"""An event or a record: the content of an entry."""


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
"""The event that ends the open item of each kind. At most one item of a kind is open."""

DISCARDS_OPEN: Final = frozenset(event_type(cls) for cls in (BackgroundEvent, ErrorEvent, TaskComplete))
"""Events of a retry, a failure, an interrupt or the end of a turn: they discard open items. Other background events
(progress of a call, a summary) come only while no item is open."""

_DELTA_PREFIX: Final = {
    kind.value: b'{"type":"%b","delta":' % kind.value.encode()  # every text delta has this shape
    for kind in ItemKind
}


_COMMAND_OUTPUT: Final = record_type(CommandOutput)


class Entry(Struct, frozen=True, gc=False):
    """One event or record, encoded once for all readers."""

    seq: Seq
    at: float
    """The time of the append, in seconds since the epoch."""
    type: str
    is_event: bool
    encoded: bytes
    """Empty if `output` is set: output is a third longer as JSON, and is encoded only if it is needed."""
    output: CommandOutput | None = None
    """A record of command output, which clients see as deltas."""

    @property
    def body(self) -> bytes:
        """The JSON that is stored."""
        return self.encoded if self.output is None else encode(self.output)

    @property
    def size(self) -> int:
        """The approximate number of bytes of the body."""
        if self.output is None:
            return len(self.encoded)
        return sum(len(kept.head) + len(kept.tail) for kept in self.output.streams)

    @classmethod
    def stored(cls, seq: Seq, at: float, kind: str, *, is_event: bool, body: bytes) -> Entry:
        """Create an entry from its stored fields."""
        if is_event or kind != _COMMAND_OUTPUT:
            return cls(seq, at, kind, is_event, body)
        return cls(seq, at, kind, is_event, b"", msgspec.json.decode(body, type=CommandOutput))


PIECES_PER_PART: Final = 1024


class OpenItem:
    """A text that is still being written."""

    __slots__ = ("_parts", "_pieces", "id", "kind", "length", "type")

    def __init__(self, item_id: ItemId, kind: ItemKind) -> None:
        self.id, self.kind = item_id, kind
        self.type: str = kind.value
        self.length = 0
        self._parts: list[str] = []
        """Each part joins many pieces: a short string takes far more memory than its characters."""
        self._pieces: list[str] = []

    def extend(self, piece: str) -> None:
        pieces = self._pieces
        pieces.append(piece)
        self.length += len(piece)
        if len(pieces) == PIECES_PER_PART:
            self._parts.append("".join(pieces))
            pieces.clear()

    def text(self) -> str:
        """Return the text so far."""
        if self._pieces or len(self._parts) > 1:
            self._parts = ["".join((*self._parts, *self._pieces))]
            self._pieces.clear()
        return self._parts[0] if self._parts else ""


class Delta(Struct, frozen=True, gc=False):
    """A piece of an open item."""

    item: OpenItem
    offset: int
    """The offset in the item, in code points."""
    text: str


def encode_piece(delta: Delta | OutputDelta) -> bytes:
    """Encode a delta of either kind as the event for clients."""
    return encode_delta(delta) if isinstance(delta, Delta) else encode_output_delta(delta)


def encode_delta(delta: Delta) -> bytes:
    """Encode a delta of text as the event for clients; the hot path."""
    return _DELTA_PREFIX[delta.item.type] + encode(delta.text) + b"}"


def output_of(entry: Entry) -> list[OpenOutput]:
    """Return the outputs in a record of command output; empty for any other entry."""
    if entry.output is None:
        return []
    return [OpenOutput.from_record(entry.output.call_id, kept) for kept in entry.output.streams]


def visible(entries: Iterable[Entry], hidden: frozenset[str] = frozenset()) -> Iterator[Entry]:
    """Yield the entries that clients see, without events of the hidden types."""
    for entry in entries:
        if entry.is_event:
            if entry.type not in hidden:
                yield entry
        elif entry.output is not None:
            yield entry


class Earlier(Enum):
    """The type of `EARLIER`."""

    EARLIER = "earlier"


EARLIER: Final = Earlier.EARLIER
"""Returned in place of an entry that is not in memory."""


class Log:
    """The newest entries by position, and the open items after the last of them."""

    __slots__ = ("_ended", "_items_opened", "_series", "base", "durable", "entries", "open", "outputs")

    def __init__(self, base: Seq = START) -> None:
        self.base = base
        """The position before the first entry in memory; the entries up to here are in the store."""
        self.entries: list[Entry] = []
        """The tail: the entries after `base`."""
        self.durable = base
        """The last position that readers may pass."""
        self.open: dict[ItemKind, OpenItem] = {}
        """The open texts."""
        self.outputs: dict[tuple[CallId, OutputStream], OpenOutput] = {}
        """The open outputs of running commands."""
        self._ended: list[tuple[Seq, OpenItem | OpenOutput]] = []
        """Items that were ended by entries that are not durable yet, and those entries: they may be rolled back."""
        self._items_opened = 0
        self._series = ""

    @property
    def last(self) -> Seq:
        """The position of the last entry, durable or not; 0 when there is none."""
        return Seq(self.base + len(self.entries))

    @property
    def is_durable(self) -> bool:
        """True if every entry is durable."""
        return self.durable == self.base + len(self.entries)

    def between(self, after: Seq, last: Seq) -> list[Entry]:
        """Return the entries after a position, up to another.

        Raises:
            ValueError: some of them are not in memory.
        """
        if after < self.base:
            raise ValueError(f"entries after {after} are in the store, up to {self.base}")
        return self.entries[after - self.base : last - self.base]

    def trim(self, base: Seq) -> None:
        """Drop the entries up to a position, which is durable: they are in the store."""
        if base > self.base:
            del self.entries[: min(base, self.durable) - self.base]
            self.base = Seq(min(base, self.durable))

    def begin_after(self, base: Seq) -> None:
        """Begin an empty log after a position; the entries up to there are in the store."""
        self.base = self.durable = base

    def begin_series(self, number: int) -> None:
        """Begin a new series of item ids, with a number that no process has used in this log before."""
        self._series, self._items_opened = f"{number}.", 0

    def append(self, payloads: Sequence[LogPayload], *, at: float) -> list[Entry]:
        """Add entries after the last one; items that they end or discard are closed."""
        added: list[Entry] = []
        for seq, one in enumerate(payloads, start=self.last + 1):
            is_event = isinstance(one, EventBase)
            kind = event_type(one) if isinstance(one, EventBase) else record_type(one)
            if isinstance(one, CommandOutput):
                added.append(Entry(Seq(seq), at, kind, is_event, b"", one))
            else:
                added.append(Entry(Seq(seq), at, kind, is_event, encode(one)))
        self.append_entries(added)
        return added

    def append_entries(self, entries: Sequence[Entry]) -> None:
        """Add entries that another process has made."""
        if self.is_durable:
            self._ended.clear()
        self.entries += entries
        for entry in entries if self.open or self.outputs else ():
            self._ended += [(entry.seq, item) for item in self._end_by(entry)]

    def _end_by(self, entry: Entry) -> list[OpenItem] | list[OpenOutput]:
        """Close the items that an entry ends or discards."""
        if entry.output is not None:
            streams = [(entry.output.call_id, kept.stream) for kept in entry.output.streams]
            return [self.outputs.pop(one) for one in streams if one in self.outputs]
        if not entry.is_event:
            return []
        if entry.type in DISCARDS_OPEN:
            discarded = list(self.open.values())
            self.open.clear()
            return discarded
        kind = ENDS.get(entry.type)
        return [self.open.pop(kind)] if kind in self.open else []

    def truncate(self, after: Seq) -> None:
        """Remove the entries after a position. Items that they ended are open again; items that were opened later
        are removed."""
        del self.entries[after - self.base :]
        while self._ended and self._ended[-1][0] > after:
            _, item = self._ended.pop()
            if isinstance(item, OpenItem):
                self.open[item.kind] = item
            else:
                self.outputs[item.call_id, item.stream] = item

    def discard_open(self) -> None:
        """Remove all open items."""
        self.open.clear()
        self.outputs.clear()
        self._ended.clear()

    def extend(self, kind: ItemKind, text: str) -> Delta:
        """Extend the open item of this kind; open it first if there is none."""
        item = self.open.get(kind)
        if item is None:
            item = self.open[kind] = OpenItem(self._next_item(), kind)
        delta = Delta(item, item.length, text)
        item.extend(text)
        return delta

    def extend_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> Iterator[OutputDelta]:
        """Extend the open output of a command, and yield its deltas one by one."""
        item = self.outputs.get((call_id, stream))
        if item is None:
            item = self.outputs[call_id, stream] = OpenOutput(self._next_item(), call_id, stream)
        for at in range(0, len(data), CHUNK_BYTES):
            yield item.extend(data[at : at + CHUNK_BYTES])

    def mirror(self, item_id: ItemId, kind: ItemKind, offset: int, text: str) -> Delta | None:
        """Extend an item that another process writes, as `extend` does; return None if the piece is already
        known.
        """
        item = self.open.get(kind)
        if item is None or item.id != item_id:
            item = self.open[kind] = OpenItem(item_id, kind)
        lacking = text[max(0, item.length - offset) :]
        if not lacking:
            return None
        delta = Delta(item, item.length, lacking)
        item.extend(lacking)
        return delta

    def mirror_output(
        self, item_id: ItemId, call_id: CallId, stream: OutputStream, offset: int, data: bytes
    ) -> OutputDelta | None:
        """Extend an output that another process writes, as `extend_output` does; return None if the piece is
        already known.
        """
        item = self.outputs.get((call_id, stream))
        if item is None or item.id != item_id:
            item = self.outputs[call_id, stream] = OpenOutput(item_id, call_id, stream)
        if offset > item.length:
            item.skip_to(offset)
        lacking = data[item.length - offset :]
        return item.extend(lacking) if lacking else None

    def output_records(self, call_id: CallId | None = None) -> Iterator[CommandOutput]:
        """Return the records that end the open output of one command, or of all commands."""
        for call in dict.fromkeys(call for call, _ in self.outputs if call_id in (None, call)):
            streams = tuple(item.to_record() for (owner, _), item in self.outputs.items() if owner == call)
            yield CommandOutput(call_id=call, streams=streams)

    def _next_item(self) -> ItemId:
        self._items_opened += 1
        return ItemId(f"i{self._series}{self._items_opened}")

    def events(self, *, after: Seq = START, hidden: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Yield the events after a position that clients see, in order, without events of the hidden types."""
        whole = after == self.base and self.is_durable
        return visible(self.entries if whole else self.between(after, self.durable), hidden)

    def open_deltas(self) -> list[Delta | OutputDelta]:
        """Return all open texts, and the beginning and end of each open output; nothing while an entry before them
        is not durable."""
        if not self.is_durable:
            return []
        deltas: list[Delta | OutputDelta] = [
            Delta(item, 0, item.text()) for item in self.open.values() if item.length
        ]
        for output in self.outputs.values():
            deltas += output.preview()
        return deltas

    def lengths(self) -> dict[ItemId, int]:
        """Return the length of each item that is open, or whose final entry is not durable yet."""
        lengths = {item.id: item.length for item in self.open.values()}
        for output in self.outputs.values():
            lengths[output.id] = output.length
        for _, ended in self._ended:
            lengths[ended.id] = ended.length
        return lengths


class Cursor:
    """A reader's position in a log: the last entry it has passed, and how much of each open item it has.

    It passes only durable entries. While `live`, the reader has everything, and nothing is recorded for each delta.
    `next` returns what the reader lacks, one piece at a time. When a live reader is not sent something new at once,
    `appended` or `missed` records its position.
    """

    __slots__ = ("_earlier", "_lacking", "_offsets", "_takes_records", "live", "seq")

    def __init__(self, after: Seq = START) -> None:
        self.seq = after
        self.live = False
        self._offsets: dict[ItemId, int] = {}
        self._takes_records = False
        self._earlier: deque[Entry] = deque()
        """Entries that were supplied from the store."""
        self._lacking: deque[OutputDelta] = deque()
        """Pieces of the output in the last record that the reader still lacks."""

    @classmethod
    def of_records(cls, after: Seq) -> Cursor:
        """Create the cursor of a reader that gets records, and therefore no deltas of stored output."""
        cursor = cls(after)
        cursor._takes_records = True
        return cursor

    @classmethod
    def at_end_of(cls, log: Log) -> Cursor:
        """Create the cursor of a reader that has everything in the log."""
        cursor = cls(log.durable)
        cursor.live = log.is_durable
        return cursor

    @classmethod
    def after_snapshot(cls, log: Log) -> Cursor:
        """Return the cursor of a reader that will be sent a snapshot of the log as it is now."""
        cursor = cls(log.durable)
        cursor._offsets = log.lengths() if log.is_durable else {}
        return cursor

    def appended(self, log: Log, first: Seq) -> None:
        """Record that entries were appended from position `first` on. A live reader had everything before them."""
        if self.live:
            self.seq, self.live = Seq(first - 1), False
            self._offsets = log.lengths()

    def missed(self, log: Log, delta: Delta | OutputDelta) -> None:
        """Record that the newest delta was not sent. A live reader had everything before it."""
        if self.live:
            self.seq, self.live = log.last, False
            self._offsets = log.lengths()
            self._offsets[delta.item.id] = delta.offset

    def supply(self, entries: Sequence[Entry]) -> None:
        """Add a page of entries from the store, which directly follow the cursor or the previous page."""
        self._earlier.extend(entries)

    def next(self, log: Log) -> Entry | Delta | OutputDelta | Earlier | None:
        """Return the next entry or delta that this reader lacks; entries first, then open items.

        Returns None if the reader has everything that is durable; the reader is live if nothing else exists.
        Returns `EARLIER` if the entry after `seq` is not in memory and must be supplied.
        """
        if self.live:
            return None
        if self._lacking:
            return self._lacking.popleft()
        if self.seq < log.durable:
            if self._earlier:
                entry = self._earlier.popleft()
            elif self.seq < log.base:
                return EARLIER
            else:
                entry = log.entries[self.seq - log.base]
            self.seq = entry.seq
            for ended in () if self._takes_records else output_of(entry):
                self._lacking.extend(ended.pieces(self._offsets.get(ended.id, 0)))
            return entry
        if not log.is_durable:
            return None
        for item in log.open.values():
            offset = self._offsets.get(item.id, 0)
            if offset < item.length:
                self._offsets[item.id] = item.length
                return Delta(item, offset, item.text()[offset:])
        for output in log.outputs.values():
            for piece in output.pieces(self._offsets.get(output.id, 0)):
                self._offsets[output.id] = piece.offset + len(piece.data)
                return piece
        self._offsets.clear()
        self.live = True
        return None
