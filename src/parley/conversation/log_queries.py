"""Queries on single entries of a log: the end of a turn, its last text, and the title."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from parley.conversation.log import Entry
from parley.conversation.records import Renamed, SessionGranted, TurnEnded, record_type
from parley.wire.events import TaskComplete, event_type
from parley.wire.jsonrpc import encode

__all__ = ["TurnOutcome", "is_title", "is_turn_end", "last_text", "turn_end_in", "without_grant"]

_COMPLETE: Final = event_type(TaskComplete)
_ENDED: Final = record_type(TurnEnded)
_RENAMED: Final = record_type(Renamed)
_GRANTED: Final = record_type(SessionGranted)
_NO_GRANT: Final = encode(SessionGranted(principal="", key=""))


_ended: Final = msgspec.json.Decoder(TurnEnded)
_completed: Final = msgspec.json.Decoder(TaskComplete)


def without_grant(entry: Entry) -> Entry:
    """Return an entry as a fork has it: without the principal of a session grant, because session grants do not
    hold in a fork.
    """
    return replace(entry, encoded=_NO_GRANT) if entry.type == _GRANTED and not entry.is_event else entry


def last_text(entries: Sequence[Entry]) -> str | None:
    """Return the last text of the last turn that was completed in these entries; None if none was."""
    for entry in reversed(entries):
        if entry.is_event and entry.type == _COMPLETE:
            return _completed.decode(entry.encoded).last_agent_message
    return None


class TurnOutcome(NamedTuple):
    """How a turn ended."""

    ended: TurnEnded
    text: str | None
    """The last text of a turn that is done, or why it is not."""


def turn_end_in(entries: Sequence[Entry]) -> TurnOutcome | None:
    """Return the end of the last turn that ended in these entries; None if none did."""
    for place in reversed(range(len(entries))):
        if is_turn_end(entries[place]):
            ended = _ended.decode(entries[place].encoded)
            return TurnOutcome(ended, last_text(entries[:place]) if ended.why == "done" else ended.message)
    return None


def is_turn_end(entry: Entry) -> bool:
    """Return whether an entry ends a turn."""
    return _is_record(entry, _ENDED)


def is_title(entry: Entry) -> bool:
    """Return whether an entry sets the title."""
    return _is_record(entry, _RENAMED)


def _is_record(entry: Entry, kind: str) -> bool:
    return entry.type == kind and not entry.is_event
