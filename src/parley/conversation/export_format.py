"""The file format of an exported conversation: JSON Lines, with a header and then one line for each entry.

The file contains all entries, including images and command output, but without the content of session grants and of
the queue (`log_queries.for_copy`). The functions that read a file check every line, because the entries become the
log of a conversation. These functions raise `BadFile` with the number of the line if the file is truncated,
contradicts itself, or was written by a newer version of Parley. This module does not access files; its callers read
and write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Raw, Struct

from parley.conversation.log import Entry
from parley.conversation.log_queries import for_copy
from parley.conversation.projections import Projections
from parley.conversation.records import RECORD_TYPES, Record, TurnEnded, record_type
from parley.errors import BadFile
from parley.wire.events import EVENT_TYPES, EventMsg, event_type
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import encode

__all__ = [
    "LATEST",
    "VERSION",
    "ExportHead",
    "Line",
    "entry_line",
    "head_line",
    "read_entries",
    "read_head",
]

VERSION: Final = 1

LATEST: Final = 253_402_300_799.0
"""The last second of the year 9999, in seconds since the epoch. A file with a later time is invalid, because Python
cannot format such a time.
"""

Line = tuple[int, bytes]
"""A line of a file: its number, counted from 1, and its content."""


class ExportHead(Struct, frozen=True, kw_only=True):
    """The header, which is the first line of a file.

    The functions that read a file use only the id, the number of entries and `archived`. The other fields are for
    people and other programs.
    """

    parley_export: int = VERSION
    conversation_id: ConversationId
    last: Seq
    """The number of entries in the file, which is the position of the last entry."""
    exported_at: float
    """The time of the export, in seconds since the epoch. All other times in the file have the same unit."""
    archived: bool
    title: str
    cwd: str
    model: str


class _EntryLine(Struct, frozen=True, kw_only=True):
    seq: Seq
    at: Annotated[float, Meta(ge=0, le=LATEST)]
    type: str
    is_event: bool
    body: Raw


class _Version(Struct):
    parley_export: int


class _Tagged(Struct):
    type: str


_versions: Final = msgspec.json.Decoder(_Version)
_heads: Final = msgspec.json.Decoder(ExportHead)
_entry_lines: Final = msgspec.json.Decoder(_EntryLine)
_events: Final[msgspec.json.Decoder[EventMsg]] = msgspec.json.Decoder(EventMsg)
_records: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)
_unknown: Final = msgspec.json.Decoder(_Tagged)
_anything: Final = msgspec.json.Decoder(Any)

_TURN_ENDED: Final = record_type(TurnEnded)

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# --- writing -----------------------------------------------------------------------------


def head_line(head: ExportHead) -> bytes:
    return encode(head) + b"\n"


def entry_line(entry: Entry) -> bytes:
    """Encode an entry, in its form for copies (`for_copy`), as one line. Line feeds between the members of the
    entry's JSON are replaced with spaces.
    """
    body = Raw(for_copy(entry).body.replace(b"\n", b" "))
    line = _EntryLine(seq=entry.seq, at=entry.at, type=entry.type, is_event=entry.is_event, body=body)
    return encode(line) + b"\n"


# --- reading -----------------------------------------------------------------------------


def read_head(line: bytes) -> ExportHead:
    """Decode `line`, the first line of an exported file. Raise `BadFile` if the line is not a valid header."""
    try:
        version = _versions.decode(line).parley_export
    except _UNREADABLE:
        raise BadFile(1, "not the header of a Parley export") from None
    if version != VERSION:
        raise BadFile(1, f"an export in format {version}; this version of Parley reads format {VERSION}")
    try:
        head = _heads.decode(line)
    except _UNREADABLE as error:
        raise BadFile(1, f"invalid header: {error}") from None
    if not _is_id(head.conversation_id):
        raise BadFile(1, f"{head.conversation_id!r} is not the id of a conversation")
    if head.last < 1:
        raise BadFile(1, "the export has no entries")
    return head


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def read_entries(head: ExportHead, lines: Iterable[Line], projections: Projections) -> Iterator[Entry]:
    """Yield the entries in `lines`, the lines after the header, and apply each entry to `projections`.

    Raises:
        BadFile: the next line is invalid, or the file is incomplete. The caller must then discard the entries that
            were already yielded.
    """
    seq, number = 0, 1
    for number, line in lines:
        seq += 1
        try:
            read = _entry_lines.decode(line)
        except _UNREADABLE as error:
            cut_off = "" if line.endswith(b"\n") else ", and the file ends within the line"
            raise BadFile(number, f"not an entry: {error}{cut_off}") from None
        if read.seq != seq:
            raise BadFile(number, f"expected position {seq}, found {read.seq}")
        if seq > head.last:
            raise BadFile(number, f"more entries than the {head.last} that the first line announces")
        try:
            entry = Entry.stored(read.seq, read.at, read.type, is_event=read.is_event, body=bytes(read.body))
            _check(entry, projections)
        except _UNREADABLE as error:
            raise BadFile(number, f"invalid body of {read.type!r}: {error}") from None
        except (ValueError, LookupError) as error:
            raise BadFile(number, f"contradicts earlier lines: {error}") from None
        yield entry
    if seq < head.last:
        raise BadFile(number, f"the file ends here, after {seq} of {head.last} entries")


def _check(entry: Entry, projections: Projections) -> None:
    """Check that `entry`, which was read from a file, is valid and can follow the entries before it. Then apply the
    entry to `projections`.

    Raises:
        msgspec.DecodeError, ValueError: the entry is invalid.
    """
    # An unknown event type was defined by a newer version of Parley. No projection needs such an event.
    if entry.is_event and entry.type not in EVENT_TYPES:
        _anything.decode(entry.encoded)  # the entry is sent to clients unchanged, so it must be valid JSON
        tag = _unknown.decode(entry.encoded).type
    elif entry.is_event:
        tag = event_type(_events.decode(entry.encoded))
    elif entry.type not in RECORD_TYPES:
        raise msgspec.DecodeError("a newer version of Parley wrote it")
    elif entry.output is not None:
        tag = record_type(entry.output)
    else:
        tag = record_type(_records.decode(entry.encoded))
    if tag != entry.type:
        raise msgspec.DecodeError(f"it is of type {tag!r}")
    if not entry.is_event and entry.type == _TURN_ENDED and (calls := projections.history.unanswered):
        raise ValueError(f"the turn ends without an output of the call {calls[0]!r}")
    projections.replay((entry,))
