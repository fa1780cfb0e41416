"""The keys of entries. A key is an id, such as a message id, by which a store finds an entry without reading the
whole log.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.log import Entry
from parley.conversation.records import ApprovalRequest, ApprovalSettlement, MessageQueued, TurnStarted, record_type
from parley.wire.events import UserMessage, event_type

__all__ = ["KEYED_TYPES", "MESSAGE", "QUEUED", "SETTLED", "TURN", "key_in", "key_of"]


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
"""The type of entries that contain a message. Their key is the message id."""
QUEUED: Final = record_type(MessageQueued)
"""The type of entries that queue a message. Their key is the message id."""
TURN: Final = record_type(TurnStarted)
"""The type of entries that start a turn. Their key is the turn id."""
SETTLED: Final = record_type(ApprovalSettlement)
"""The type of entries that settle an approval. Their key is the approval id."""
_APPROVALS: Final = (record_type(ApprovalRequest), SETTLED)

KEYED_TYPES: Final = (MESSAGE, QUEUED, TURN, *_APPROVALS)
"""The types of entries that have a key: messages, queued messages, turn starts, and approval requests and
settlements.
"""


def key_of(entry: Entry) -> str | None:
    """Return the key of an entry, the id by which a store finds the entry; None if the entry has no key."""
    return key_in(entry.encoded, entry.type, is_event=entry.is_event) if entry.type in KEYED_TYPES else None


def key_in(body: bytes, kind: str, *, is_event: bool) -> str | None:
    """Return the key of an entry as `key_of` does, but from its encoded body. Return None if the entry has no key
    or the body is damaged.

    `kind` is the type of the entry. `is_event` is True for an event and False for a record.
    """
    try:
        if is_event:
            return _messages.decode(body).message_id if kind == MESSAGE else None
        if kind == QUEUED:
            return _messages.decode(body).message_id or None
        if kind == TURN:
            return _turns.decode(body).event_id
        return _approvals.decode(body).approval_id if kind in _APPROVALS else None
    except ValueError:
        return None
