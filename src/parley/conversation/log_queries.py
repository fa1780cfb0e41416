"""Queries on the entries of a log: the position of a message, the end of its turn, the last text of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.conversation.errors import UnknownMessage
from parley.conversation.log import Entry
from parley.conversation.records import Renamed, SessionGranted, TurnEnded, record_type
from parley.errors import TurnIsRunning
from parley.wire.events import TaskComplete, UserMessage, event_type
from parley.wire.ids import MessageId, Seq
from parley.wire.jsonrpc import encode

__all__ = ["entries_up_to", "last_text", "position_of", "without_grant"]

_USER_MESSAGE: Final = event_type(UserMessage)
_COMPLETE: Final = event_type(TaskComplete)
_ENDED: Final = record_type(TurnEnded)
_RENAMED: Final = record_type(Renamed)
_GRANTED: Final = record_type(SessionGranted)
_NO_GRANT: Final = encode(SessionGranted(principal="", key=""))


class _Named(Struct):
    message_id: MessageId


_named: Final = msgspec.json.Decoder(_Named)
_completed: Final = msgspec.json.Decoder(TaskComplete)


def without_grant(entry: Entry) -> Entry:
    """Return an entry as a copy of its conversation has it, where approvals for the session do not hold."""
    return replace(entry, encoded=_NO_GRANT) if entry.type == _GRANTED and not entry.is_event else entry


def position_of(entries: Sequence[Entry], message_id: MessageId) -> Seq:
    """Return the position of a message.

    Raises:
        UnknownMessage: there is no such message.
    """
    for entry in entries:
        if _is_user_message(entry) and _named.decode(entry.encoded).message_id == message_id:
            return entry.seq
    raise UnknownMessage


def last_text(entries: Sequence[Entry], *, until_position: Seq) -> str | None:
    """Return the last text of the latest turn that was completed at or before a position."""
    for entry in (entries[position - 1] for position in range(until_position, 0, -1)):
        if entry.is_event and entry.type == _COMPLETE:
            return _completed.decode(entry.encoded).last_agent_message
    return None


def entries_up_to(entries: Sequence[Entry], message_id: MessageId | None) -> Sequence[Entry]:
    """Return the entries up to the end of a message's turn, or all entries if no message is named.

    Includes the latest title, even if it was set later, because a title is for the whole conversation. `entries`
    begin with the first entry of the log.

    Raises:
        UnknownMessage: there is no such message.
        TurnIsRunning: that turn has not ended.
    """
    if message_id is None:
        last = next((entry.seq for entry in reversed(entries) if _is_user_message(entry)), None)
        if last is not None:
            _turn_end_after(entries, last)
        return entries
    end = _turn_end_after(entries, position_of(entries, message_id))
    titles = [entry for entry in entries[end:] if _is_record(entry, _RENAMED)]
    return [*entries[:end], *(replace(title, seq=Seq(end + 1)) for title in titles[-1:])]


def _turn_end_after(entries: Sequence[Entry], message: Seq) -> Seq:
    """Return the position where the turn of the message at a position ends.

    Raises:
        TurnIsRunning: it has not ended.
    """
    for entry in entries[message:]:
        if _is_record(entry, _ENDED):
            return entry.seq
    raise TurnIsRunning


def _is_record(entry: Entry, kind: str) -> bool:
    return entry.type == kind and not entry.is_event


def _is_user_message(entry: Entry) -> bool:
    return entry.is_event and entry.type == _USER_MESSAGE
