"""Where things stand in a log: a message, and the end of the turn that took it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.log import Entry
from parley.conversation.records import TurnEnded, record_type
from parley.errors import TurnIsRunning, UnknownMessage
from parley.wire.events import UserMessage, event_type
from parley.wire.ids import MessageId, Seq

__all__ = ["place_of", "up_to"]

_SAID: Final = event_type(UserMessage)
_ENDED: Final = record_type(TurnEnded)


class _Named(Struct):
    message_id: MessageId


_named: Final = msgspec.json.Decoder(_Named)


def place_of(entries: Sequence[Entry], message_id: MessageId) -> Seq:
    """The position of a message.

    Raises:
        UnknownMessage: there is no such message.
    """
    for entry in entries:
        if _is_said(entry) and _named.decode(entry.encoded).message_id == message_id:
            return entry.seq
    raise UnknownMessage


def up_to(entries: Sequence[Entry], message_id: MessageId | None) -> Sequence[Entry]:
    """What happened up to the end of the turn that took a message; of the last turn, where none is named.

    `entries` are those of a log from its first on.

    Raises:
        UnknownMessage: there is no such message.
        TurnIsRunning: that turn has not ended.
    """
    if message_id is not None:
        said = place_of(entries, message_id)
    elif (last := next((entry.seq for entry in reversed(entries) if _is_said(entry)), None)) is not None:
        said = last
    else:
        return entries
    for entry in entries[said:]:
        if entry.type == _ENDED and not entry.is_event:
            return entries[: entry.seq]
    raise TurnIsRunning


def _is_said(entry: Entry) -> bool:
    return entry.is_event and entry.type == _SAID
