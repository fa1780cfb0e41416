"""Finds entries of a log, such as the end of a turn, and prepares entries for a copy of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from parley.conversation.log import Entry
from parley.conversation.records import (
    MessageQueued,
    QueuedMessageEdited,
    Renamed,
    SessionGranted,
    TurnEnded,
    record_type,
)
from parley.wire.events import QueueChanged, TaskComplete, WorkspaceUpdated, event_type
from parley.wire.ids import MessageId
from parley.wire.jsonrpc import encode

__all__ = ["EndedTurn", "for_copy", "is_title", "is_turn_end", "last_text", "last_workspace", "turn_end_in"]

_COMPLETE: Final = event_type(TaskComplete)
_ENDED: Final = record_type(TurnEnded)
_RENAMED: Final = record_type(Renamed)
_WORKSPACE: Final = event_type(WorkspaceUpdated)
_NOT_COPIED: Final = {
    (False, record_type(SessionGranted)): encode(SessionGranted(principal="", key="")),
    (False, record_type(MessageQueued)): encode(MessageQueued(message_id=MessageId(""), content=())),
    (False, record_type(QueuedMessageEdited)): encode(QueuedMessageEdited(message_id=MessageId(""), content=())),
    (True, event_type(QueueChanged)): encode(QueueChanged(messages=(), paused=False)),
}
"""The bodies without content that replace the bodies of session grants and of queue entries in a copy of a
conversation. The entries themselves stay, so that positions do not change. Each key is the tuple of
`Entry.is_event` and `Entry.type`.
"""


_ended: Final = msgspec.json.Decoder(TurnEnded)
_completed: Final = msgspec.json.Decoder(TaskComplete)
_workspace: Final = msgspec.json.Decoder(WorkspaceUpdated)


def for_copy(entry: Entry) -> Entry:
    """Return an entry as a copy of the conversation contains it. Forks, exports and imports are copies.

    Session grants and entries of the queue lose their content. A copy therefore has no session grants and no queued
    messages, and begins no turn before it gets a message.
    """
    encoded = _NOT_COPIED.get((entry.is_event, entry.type))
    return entry if encoded is None else replace(entry, encoded=encoded)


def last_text(entries: Sequence[Entry]) -> str | None:
    """Return the final text of the last completed turn in `entries`; None if `entries` contains no completed turn,
    or if this turn has no final text.
    """
    for entry in reversed(entries):
        if entry.is_event and entry.type == _COMPLETE:
            return _completed.decode(entry.encoded).last_agent_message
    return None


def last_workspace(entries: Sequence[Entry]) -> WorkspaceUpdated | None:
    """Return the last event `workspace_updated` in `entries`; None if `entries` contains no such event."""
    for entry in reversed(entries):
        if entry.is_event and entry.type == _WORKSPACE:
            return _workspace.decode(entry.encoded)
    return None


class EndedTurn(NamedTuple):
    """The record that ended a turn, and the text that a client gets as the result of the turn."""

    ended: TurnEnded
    text: str | None
    """The last text of a completed turn, or the message that explains why the turn was not completed; None if a
    completed turn has no text.
    """


def turn_end_in(entries: Sequence[Entry]) -> EndedTurn | None:
    """Return the last end of a turn in `entries`; None if no turn ends in `entries`."""
    for place in reversed(range(len(entries))):
        if is_turn_end(entries[place]):
            ended = _ended.decode(entries[place].encoded)
            return EndedTurn(ended, last_text(entries[:place]) if ended.why == "done" else ended.message)
    return None


def is_turn_end(entry: Entry) -> bool:
    """Return whether `entry` is a `TurnEnded` record."""
    return _is_record(entry, _ENDED)


def is_title(entry: Entry) -> bool:
    """Return whether `entry` is a `Renamed` record, which sets the title of the conversation."""
    return _is_record(entry, _RENAMED)


def _is_record(entry: Entry, kind: str) -> bool:
    return entry.type == kind and not entry.is_event
