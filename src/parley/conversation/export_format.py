"""A conversation as a file: JSON Lines, a head and then one line for each entry.

Everything is inside, images and output too: the file is all there is to a conversation. Reading is strict, since
what is read becomes a log: a file that is cut off, that contradicts itself or that a newer version wrote is
refused, with the line where that shows. Does not know where lines come from nor where entries go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Raw, Struct

from parley.conversation.log import Entry
from parley.conversation.log_queries import without_grant
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
"""The last second of the year 9999: a later one could not be shown."""

Line = tuple[int, bytes]
"""A line of a file and its number, the first having 1."""


class ExportHead(Struct, frozen=True, kw_only=True):
    """What the first line says; of these, reading needs the id, the number of entries and `archived`."""

    parley_export: int = VERSION
    conversation_id: ConversationId
    last: Seq
    """How many entries follow."""
    exported_at: float
    """In seconds since the epoch, as all times here."""
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
    """An entry as one line. What a provider sent and wants back verbatim may have line ends between its members:
    in JSON, a blank says the same."""
    body = Raw(without_grant(entry).body.replace(b"\n", b" "))
    line = _EntryLine(seq=entry.seq, at=entry.at, type=entry.type, is_event=entry.is_event, body=body)
    return encode(line) + b"\n"


# --- reading -----------------------------------------------------------------------------


def read_head(line: bytes) -> ExportHead:
    """Raises BadFile."""
    try:
        version = _versions.decode(line).parley_export
    except _UNREADABLE:
        raise BadFile(1, "not the head of an export of Parley") from None
    if version != VERSION:
        raise BadFile(1, f"an export in form {version}, and this version of Parley reads form {VERSION}")
    try:
        head = _heads.decode(line)
    except _UNREADABLE as error:
        raise BadFile(1, f"the head does not fit: {error}") from None
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
    """The entries behind the head, one by one, each taken into `folds`.

    Raises:
        BadFile: the line that was to come does not fit. What came before it cannot be trusted either: the end of
            the file tells whether it is whole.
    """
    seq, number = 0, 1
    for number, line in lines:
        seq += 1
        try:
            read = _entry_lines.decode(line)
        except _UNREADABLE as error:
            cut_off = "" if line.endswith(b"\n") else ", and the file ends in the middle of it"
            raise BadFile(number, f"not an entry: {error}{cut_off}") from None
        if read.seq != seq:
            raise BadFile(number, f"has the position {read.seq}, and {seq} was to come")
        if seq > head.last:
            raise BadFile(number, f"there are more entries than the {head.last} that the first line tells of")
        try:
            entry = Entry.stored(read.seq, read.at, read.type, is_event=read.is_event, body=bytes(read.body))
            _check(entry, projections)
        except _UNREADABLE as error:
            raise BadFile(number, f"the body of {read.type!r} does not fit: {error}") from None
        except (ValueError, LookupError) as error:
            raise BadFile(number, f"contradicts the lines before it: {error}") from None
        yield entry
    if seq < head.last:
        raise BadFile(number, f"the file ends here, behind {seq} of {head.last} entries")


def _check(entry: Entry, projections: Projections) -> None:
    """Raises ValueError or LookupError where an entry contradicts those before it, and `_UNREADABLE`."""
    if entry.is_event and entry.type not in EVENT_TYPES:  # of a newer version; nothing depends on it
        _anything.decode(entry.encoded)  # and it has to be valid all the same: clients are sent it
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
