"""The log of one conversation: its entries in order, and the open items after the last entry.

An *entry* has a position and is permanent. An *open item* is unfinished: either text that the model is still
writing (`OpenItem`), or the output so far of a running command on stdout or on stderr (`OpenOutput`). Deltas extend
an open item. Deltas have no position; open items come after the last entry.

An open item with text ends with the event that contains the complete text (`ENDS`). Some other events discard the
open items with text, because the model cannot be writing after such an event (`DISCARDS_OPEN`). Both rules depend
only on the events, so clients can apply them as well. An open item with output ends with the record of the stored
output, directly before the event that reports the end of the command.

An entry becomes *durable* when it can no longer be lost. No reader receives an entry that is not durable.

A long log has only a *tail* in memory: the entries after `Log.base`. Earlier entries are in the store. A `Cursor`
is the position of a reader. If a cursor needs an earlier entry, `Cursor.next` returns `EARLIER`. The caller
(`runtime/readers.py`) then reads pages of entries from the store, and passes them to `Cursor.supply`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final, Protocol

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
    "LogView",
    "OpenItem",
    "encode_delta",
    "encode_piece",
    "output_of",
    "visible",
]

LogPayload = EventMsg | Record
"""The content of an entry: an event or a record."""


class ItemKind(StrEnum):
    """The kinds of text that the model writes. The value of a kind is the type of the events that carry its deltas
    to clients.
    """

    MESSAGE = event_type(AgentMessageDelta)
    REASONING = event_type(AgentReasoningDelta)
    RAW_REASONING = event_type(AgentReasoningRawContentDelta)


ENDS: Final = {
    event_type(AgentMessage): ItemKind.MESSAGE,
    event_type(AgentReasoning): ItemKind.REASONING,
    event_type(AgentReasoningRawContent): ItemKind.RAW_REASONING,
}
"""Maps the type of an event to the kind of the open item that the event ends. At most one item of each kind is
open.
"""

DISCARDS_OPEN: Final = frozenset(event_type(cls) for cls in (BackgroundEvent, ErrorEvent, TaskComplete))
"""The types of events that discard all open items with text. Such an event reports a retry, a failure, an interrupt
or the end of a turn. Background events with other meanings, such as the progress of a tool call, occur only while
no item with text is open.
"""

# The first bytes of an encoded text delta, by the kind of its text.
_DELTA_PREFIX: Final = {kind.value: b'{"type":"%b","delta":' % kind.value.encode() for kind in ItemKind}


_COMMAND_OUTPUT: Final = record_type(CommandOutput)

_command_outputs: Final = msgspec.json.Decoder(CommandOutput)
"""The decoder of command outputs. It is created here, because several threads decode entries, and msgspec must not
examine a type in two threads at the same time.
"""


class Entry(Struct, frozen=True, gc=False):
    """An event or record of the log, with its position. The content is encoded once and shared by all readers."""

    seq: Seq
    at: float
    """The time of the append, in seconds since the epoch."""
    type: str
    is_event: bool
    encoded: bytes
    """The content as JSON; empty if `output` is set. Command output is encoded only when it is needed, because its
    JSON is a third longer than the output itself.
    """
    output: CommandOutput | None = None
    """The content, if the entry is a `CommandOutput` record; None for any other entry. Clients do not get this
    record, but get the output as deltas.
    """

    @property
    def body(self) -> bytes:
        """The content of the entry as JSON, as the store contains it."""
        return self.encoded if self.output is None else encode(self.output)

    @property
    def size(self) -> int:
        """The approximate size of `body`, in bytes."""
        if self.output is None:
            return len(self.encoded)
        return sum(len(kept.head) + len(kept.tail) for kept in self.output.streams)

    @classmethod
    def stored(cls, seq: Seq, at: float, kind: str, *, is_event: bool, body: bytes) -> Entry:
        """Create an entry from the fields that a store contains. `kind` is the type of the entry, and `body` is its
        content as JSON. `is_event` is True for an event and False for a record.
        """
        if is_event or kind != _COMMAND_OUTPUT:
            return cls(seq, at, kind, is_event, body)
        return cls(seq, at, kind, is_event, b"", _command_outputs.decode(body))


PIECES_PER_PART: Final = 1024


class OpenItem:
    """An open item with text that the model is still writing."""

    __slots__ = ("_parts", "_pieces", "id", "kind", "length", "type")

    def __init__(self, item_id: ItemId, kind: ItemKind) -> None:
        self.id, self.kind = item_id, kind
        self.type: str = kind.value
        self.length = 0
        self._parts: list[str] = []
        """The text without its last pieces, which are in `_pieces`. Every `PIECES_PER_PART` pieces are joined to
        one string, because a short Python string takes far more memory than its characters.
        """
        self._pieces: list[str] = []

    def extend(self, piece: str) -> None:
        pieces = self._pieces
        pieces.append(piece)
        self.length += len(piece)
        if len(pieces) == PIECES_PER_PART:
            self._parts.append("".join(pieces))
            pieces.clear()

    def text(self) -> str:
        """Return the text that the model has written so far."""
        if self._pieces or len(self._parts) > 1:
            self._parts = ["".join((*self._parts, *self._pieces))]
            self._pieces.clear()
        return self._parts[0] if self._parts else ""


class Delta(Struct, frozen=True, gc=False):
    """A piece of text that the model has added to an open item."""

    item: OpenItem
    offset: int
    """The number of code points in the item before the piece."""
    text: str


def encode_piece(delta: Delta | OutputDelta) -> bytes:
    """Encode a delta of text or of command output as the event that clients get."""
    return encode_delta(delta) if isinstance(delta, Delta) else encode_output_delta(delta)


def encode_delta(delta: Delta) -> bytes:
    """Encode a delta of text as the event that clients get. The constant part of the event is encoded in advance,
    because this function is called for each delta of a response.
    """
    return _DELTA_PREFIX[delta.item.type] + encode(delta.text) + b"}"


def output_of(entry: Entry) -> list[OpenOutput]:
    """If `entry` is a `CommandOutput` record, return the stored output on each stream. Otherwise, return an empty
    list.
    """
    if entry.output is None:
        return []
    return [OpenOutput.from_record(entry.output.call_id, kept) for kept in entry.output.streams]


def visible(entries: Iterable[Entry], hidden: frozenset[str] = frozenset()) -> Iterator[Entry]:
    """Yield the entries that clients see, in order: the events whose type is not in `hidden`, and the
    `CommandOutput` records, whose output clients see as deltas.
    """
    for entry in entries:
        if entry.is_event:
            if entry.type not in hidden:
                yield entry
        elif entry.output is not None:
            yield entry


class Earlier(Enum):
    """The type of the constant `EARLIER`. An enum lets the type checker distinguish the constant from an entry."""

    EARLIER = "earlier"


EARLIER: Final = Earlier.EARLIER
"""The value that `Cursor.next` returns if the next entry is not in memory. The caller must then read the entry from
the store.
"""


class LogView(Protocol):
    """The read-only interface of a `Log`."""

    @property
    def base(self) -> Seq: ...

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def durable(self) -> Seq: ...

    @property
    def last(self) -> Seq: ...

    @property
    def is_durable(self) -> bool: ...

    @property
    def open(self) -> Mapping[ItemKind, OpenItem]: ...

    @property
    def outputs(self) -> Mapping[tuple[CallId, OutputStream], OpenOutput]: ...

    def between(self, after: Seq, last: Seq) -> Sequence[Entry]: ...

    def events(self, *, after: Seq = START, hidden: frozenset[str] = frozenset()) -> Iterator[Entry]: ...

    def open_deltas(self) -> Sequence[Delta | OutputDelta]: ...

    def lengths(self) -> dict[ItemId, int]: ...


class Log:
    """The newest entries by position, and the open items after the last entry."""

    __slots__ = ("_ended", "_items_opened", "_series", "base", "durable", "entries", "open", "outputs")

    def __init__(self, base: Seq = START) -> None:
        self.base = base
        """The position directly before the first entry in memory; 0 if all entries are in memory. Entries up to
        this position can be read from the store.
        """
        self.entries: list[Entry] = []
        """The entries after `base`. Only these entries are in memory."""
        self.durable = base
        """The position of the last durable entry."""
        self.open: dict[ItemKind, OpenItem] = {}
        """The open items with text, by kind."""
        self.outputs: dict[tuple[CallId, OutputStream], OpenOutput] = {}
        """The open items with the output of running commands, by tool call and stream."""
        self._ended: list[tuple[Seq, OpenItem | OpenOutput]] = []
        """The items that entries have closed since the last time when all entries were durable. Each item is stored
        with the position of the entry that closed it. If `truncate` removes this entry, the item is opened again.
        """
        self._items_opened = 0
        self._series = ""

    @property
    def last(self) -> Seq:
        """The position of the last entry, durable or not; 0 for an empty log."""
        return Seq(self.base + len(self.entries))

    @property
    def is_durable(self) -> bool:
        """True if every entry is durable."""
        return self.durable == self.base + len(self.entries)

    def between(self, after: Seq, last: Seq) -> list[Entry]:
        """Return the entries after the position `after`, up to `last`.

        Raises:
            ValueError: some of the entries are not in memory.
        """
        if after < self.base:
            raise ValueError(f"entries after {after} are in the store, up to {self.base}")
        return self.entries[after - self.base : last - self.base]

    def trim(self, base: Seq) -> None:
        """Remove the entries up to the position `base` from memory.

        Entries that are not durable stay in memory, because they cannot be read from the store yet.
        """
        if base > self.base:
            del self.entries[: min(base, self.durable) - self.base]
            self.base = Seq(min(base, self.durable))

    def begin_after(self, base: Seq) -> None:
        """Set `base`, the position after which the entries of an empty log begin.

        The entries up to this position must be in the store, where readers can read them.
        """
        self.base = self.durable = base

    def begin_series(self, number: int) -> None:
        """Include `number` in the ids of all items that are opened after this call. The ids are unique only if no
        process has used `number` for this log before.
        """
        self._series, self._items_opened = f"{number}.", 0

    def append(self, payloads: Sequence[LogPayload], *, at: float) -> list[Entry]:
        """Append one entry for each payload, and return the new entries.

        Open items that the new entries end or discard are closed. `at` is the time of the new entries, in seconds
        since the epoch.
        """
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
        """Append the encoded `entries`, and close the open items that these entries end or discard."""
        if self.is_durable:
            self._ended.clear()
        self.entries += entries
        for entry in entries if self.open or self.outputs else ():
            self._ended += [(entry.seq, item) for item in self._end_by(entry)]

    def _end_by(self, entry: Entry) -> list[OpenItem] | list[OpenOutput]:
        """Close the items that an entry ends or discards, and return them."""
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
        """Remove the entries after the position `after`.

        Items that these entries closed are opened again. A reopened item replaces an item of the same kind, or of
        the same command and stream, that was opened later.
        """
        del self.entries[after - self.base :]
        while self._ended and self._ended[-1][0] > after:
            _, item = self._ended.pop()
            if isinstance(item, OpenItem):
                self.open[item.kind] = item
            else:
                self.outputs[item.call_id, item.stream] = item

    def discard_open(self) -> None:
        """Remove all open items. Clients get no final event for these items."""
        self.open.clear()
        self.outputs.clear()
        self._ended.clear()

    def extend(self, kind: ItemKind, text: str) -> Delta:
        """Append `text` to the open item of the kind `kind`, and return `text` as a delta. If no item of this kind
        is open, open an item first.
        """
        item = self.open.get(kind)
        if item is None:
            item = self.open[kind] = OpenItem(self._next_item(), kind)
        delta = Delta(item, item.length, text)
        item.extend(text)
        return delta

    def extend_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> Iterator[OutputDelta]:
        """Append `data` to the open item with the output of the tool call `call_id` on `stream`, and yield `data`
        as deltas. If there is no such item, open it first. The data is appended only as the caller iterates over
        the deltas.
        """
        item = self.outputs.get((call_id, stream))
        if item is None:
            item = self.outputs[call_id, stream] = OpenOutput(self._next_item(), call_id, stream)
        for at in range(0, len(data), CHUNK_BYTES):
            yield item.extend(data[at : at + CHUNK_BYTES])

    def mirror(self, item_id: ItemId, kind: ItemKind, offset: int, text: str) -> Delta | None:
        """Add a piece of text from a turn that another process is running to the open item of the kind `kind`.
        Return a delta with the part of the piece that was missing.

        `offset` is the position of the piece in the item, in code points. Return None if the item already contains
        the piece. If the open item has an id other than `item_id`, replace it with a new item.
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
        """Add a piece of output, from a command that another process is running, to the open item of this command
        and stream. Return a delta with the part of the piece that was missing.

        `offset` is the position of the piece in the output, in bytes. Return None if the item already contains the
        piece. If the open item has an id other than `item_id`, replace it with a new item.
        """
        item = self.outputs.get((call_id, stream))
        if item is None or item.id != item_id:
            item = self.outputs[call_id, stream] = OpenOutput(item_id, call_id, stream)
        if offset > item.length:
            item.skip_to(offset)
        lacking = data[item.length - offset :]
        return item.extend(lacking) if lacking else None

    def output_records(self, call_id: CallId | None = None) -> Iterator[CommandOutput]:
        """Yield the record that ends the open output of the tool call `call_id`. Yield nothing if this tool call
        has no open output. If `call_id` is None, yield one record for each tool call with open output.
        """
        for call in dict.fromkeys(call for call, _ in self.outputs if call_id in (None, call)):
            streams = tuple(item.to_record() for (owner, _), item in self.outputs.items() if owner == call)
            yield CommandOutput(call_id=call, streams=streams)

    def _next_item(self) -> ItemId:
        self._items_opened += 1
        return ItemId(f"i{self._series}{self._items_opened}")

    def events(self, *, after: Seq = START, hidden: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Yield the durable entries after the position `after` that clients see, in order.

        Entries are selected as in the function `visible`. Events whose type is in `hidden` are left out.
        """
        whole = after == self.base and self.is_durable
        return visible(self.entries if whole else self.between(after, self.durable), hidden)

    def open_deltas(self) -> list[Delta | OutputDelta]:
        """Return the open items as deltas for a snapshot: one delta for each item with text, and one or more deltas
        for the beginning and the end of each item with output.

        Return an empty list while an entry is not durable, because this entry may have closed or discarded an item.
        """
        if not self.is_durable:
            return []
        deltas: list[Delta | OutputDelta] = [
            Delta(item, 0, item.text()) for item in self.open.values() if item.length
        ]
        for output in self.outputs.values():
            deltas += output.preview()
        return deltas

    def lengths(self) -> dict[ItemId, int]:
        """Return the lengths of all items that are open or whose final entry is not durable yet, by item id. The
        length of an item with text is in code points, and the length of an item with output is in bytes.
        """
        lengths = {item.id: item.length for item in self.open.values()}
        for output in self.outputs.values():
            lengths[output.id] = output.length
        for _, ended in self._ended:
            lengths[ended.id] = ended.length
        return lengths


class Cursor:
    """The position of a reader in a log: the last entry that the reader has received, and how much of each open
    item the reader has received.

    A cursor never moves past an entry that is not durable. While a cursor is `live`, its reader has received every
    entry and delta, and the cursor does not change, because new entries and deltas are sent to the reader directly.
    If a new entry or delta cannot be sent directly, the caller calls `appended` or `missed`, which sets `live` to
    False. `next` then returns the entries and deltas that the reader lacks, one at a time.
    """

    __slots__ = ("_earlier", "_lacking", "_offsets", "_takes_records", "live", "seq")

    def __init__(self, after: Seq = START) -> None:
        self.seq = after
        self.live = False
        self._offsets: dict[ItemId, int] = {}
        self._takes_records = False
        self._earlier: deque[Entry] = deque()
        """The entries from the store that `next` has not returned yet."""
        self._lacking: deque[OutputDelta] = deque()
        """The pieces of command output that `next` has not returned yet. They come from the last `CommandOutput`
        record.
        """

    @classmethod
    def of_records(cls, after: Seq) -> Cursor:
        """Create the cursor of a reader that gets records as well as events. For a record of command output, `next`
        then returns the record itself, and not its output as deltas.
        """
        cursor = cls(after)
        cursor._takes_records = True
        return cursor

    @classmethod
    def at_end_of(cls, log: LogView) -> Cursor:
        """Create the cursor of a reader that has received the durable entries and the deltas from
        `log.open_deltas()`.
        """
        cursor = cls(log.durable)
        cursor.live = log.is_durable
        return cursor

    @classmethod
    def after_snapshot(cls, log: LogView) -> Cursor:
        """Create the cursor of a reader that will get a snapshot of the current log. `next` does not return the
        durable entries and the current content of the open items, because the snapshot contains them.
        """
        cursor = cls(log.durable)
        cursor._offsets = log.lengths() if log.is_durable else {}
        return cursor

    def appended(self, log: LogView, first: Seq) -> None:
        """Record that the entries from the position `first` on were appended, but not sent to the reader. `next`
        then returns these entries.

        If `live` was True, it becomes False, and the cursor then points directly before these entries.
        """
        if self.live:
            self.seq, self.live = Seq(first - 1), False
            self._offsets = log.lengths()

    def missed(self, log: LogView, delta: Delta | OutputDelta) -> None:
        """Record that the newest delta of the log, `delta`, was not sent to the reader. `next` then returns this
        delta.

        If `live` was True, it becomes False, and the cursor then points directly before this delta.
        """
        if self.live:
            self.seq, self.live = log.last, False
            self._offsets = log.lengths()
            self._offsets[delta.item.id] = delta.offset

    def supply(self, entries: Sequence[Entry]) -> None:
        """Add `entries`, a page of entries from the store, which `next` then returns. The first entry must be the
        one directly after the position of the cursor or after the previous page.
        """
        self._earlier.extend(entries)

    def next(self, log: LogView) -> Entry | Delta | OutputDelta | Earlier | None:
        """Return the next entry or delta that the reader lacks. Entries come before open items.

        Return None if the reader cannot receive more yet. If all entries are durable, the reader has then received
        all entries and deltas, and `live` becomes True. Return `EARLIER` if the next entry is not in memory and
        must be added with `supply`.
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
