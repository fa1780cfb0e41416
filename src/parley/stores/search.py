"""Lists and searches in all stores: finds text in entries, and orders lists."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from parley.ports.store import Summary
from parley.wire.events import AgentMessage, UserMessage, event_type
from parley.wire.ids import ApprovalId

__all__ = ["SEARCHED", "active_at", "approval_id_in", "contains_text", "normalize_path"]

SEARCHED: Final = (event_type(UserMessage), event_type(AgentMessage))
"""The types of the events that a search reads."""

SLACK_SECONDS: Final = 1.0
"""How far the clock may be before the newest activity without counting as set back. Two processes can write in
another order than they read the clock.
"""

STEP_SECONDS: Final = 0.001
"""The time between two successive activities while the clock is before the newest one."""


class _Message(Struct):
    """The fields of a message that a search reads; other fields are not decoded."""

    class Item(Struct):
        text: str = ""

    message: str = ""
    content: tuple[Item, ...] = ()


class _ApprovalRecord(Struct):
    """The field of an approval record that identifies it."""

    approval_id: ApprovalId


_messages: Final = msgspec.json.Decoder(_Message)
_approvals: Final = msgspec.json.Decoder(_ApprovalRecord)


def contains_text(text: str, body: bytes) -> bool:
    """Return whether an event of a type in `SEARCHED` contains the text, which is casefolded."""
    try:
        event = _messages.decode(body)
    except ValueError:
        return False  # an event of a newer version, or a damaged one
    return text in event.message.casefold() or any(text in item.text.casefold() for item in event.content)


def approval_id_in(body: bytes) -> ApprovalId | None:
    """Return the id in the record of an approval request; None if the record is damaged."""
    try:
        return _approvals.decode(body).approval_id
    except ValueError:
        return None


def normalize_path(path: str) -> str:
    """Remove slashes and `.` that change nothing. `..` stays, because its meaning depends on symbolic links."""
    parts = "/".join(part for part in path.split("/") if part not in ("", "."))
    return f"/{parts}" if path.startswith("/") else parts


def active_at(summary: Summary, newest: object) -> float:
    """Return the time of activity to store; `newest` is the time of the conversation that is listed first, if there
    is one.

    A conversation that is active now is listed first, even after the clock was set back.
    """
    at = summary.updated_at
    if not summary.is_active or not isinstance(newest, float) or at >= newest - SLACK_SECONDS:
        return at
    return newest + STEP_SECONDS
