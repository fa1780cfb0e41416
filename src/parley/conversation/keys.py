"""The keys of entries: ids by which a store finds an entry of a log without reading the log."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.log import Entry
from parley.conversation.records import QuestionAsked, QuestionSettled, TurnStarted, record_type
from parley.wire.events import UserMessage, event_type

__all__ = ["KEYED_TYPES", "MESSAGE", "SETTLED", "key_in", "key_of"]


class _Message(Struct):
    message_id: str


class _Turn(Struct):
    event_id: str


class _Approval(Struct):
    approval_id: str


_messages: Final = msgspec.json.Decoder(_Message)
_turns: Final = msgspec.json.Decoder(_Turn)
_approvals: Final = msgspec.json.Decoder(_Approval)

MESSAGE: Final = event_type(UserMessage)
"""The type of messages, whose key is their id."""
_TURN: Final = record_type(TurnStarted)
SETTLED: Final = record_type(QuestionSettled)
"""The type of settlements, whose key is the id of their approval."""
_APPROVALS: Final = (record_type(QuestionAsked), SETTLED)

KEYED_TYPES: Final = (MESSAGE, _TURN, *_APPROVALS)
"""The types of the entries that have a key: messages, turns, and requests and settlements of approvals."""


def key_of(entry: Entry) -> str | None:
    """Return the key of an entry; None if it has none."""
    return key_in(entry.encoded, entry.type, is_event=entry.is_event) if entry.type in KEYED_TYPES else None


def key_in(body: bytes, kind: str, *, is_event: bool) -> str | None:
    """Return the key in the body of an entry; None if it has none, or is damaged."""
    try:
        if is_event:
            return _messages.decode(body).message_id if kind == MESSAGE else None
        if kind == _TURN:
            return _turns.decode(body).event_id
        return _approvals.decode(body).approval_id if kind in _APPROVALS else None
    except ValueError:
        return None
