"""Types for ids. A type checker reports an id of one kind where another kind is expected."""

from __future__ import annotations

from typing import Final, NewType

__all__ = ["START", "ApprovalId", "CallId", "ConversationId", "EventId", "ItemId", "MessageId", "Seq"]

ConversationId = NewType("ConversationId", str)
"""The id of a conversation: a UUID in lower case."""

MessageId = NewType("MessageId", str)
"""The id of a message: a UUID that the client or the server chose."""

ApprovalId = NewType("ApprovalId", str)
"""A UUID that identifies an approval."""

CallId = NewType("CallId", str)
"""The id that the model gave to a tool call. Models reuse ids, so a call id is unique only within a turn."""

EventId = NewType("EventId", str)
"""The id of a turn, which is also the `id` in `codex/event`. No two turns of a conversation have the same id."""

ItemId = NewType("ItemId", str)
"""The id of an open item of a log. For example, `i2.7` is the seventh item of the second epoch."""

Seq = NewType("Seq", int)
"""A position in a log. The first entry has position 1; 0 is the position before the first entry."""

START: Final = Seq(0)
"""The position before the first entry."""
