"""Types of ids, so that one kind of id cannot be used as another."""

from __future__ import annotations

from typing import Final, NewType

__all__ = ["START", "ApprovalId", "CallId", "ConversationId", "EventId", "ItemId", "MessageId", "Seq"]

ConversationId = NewType("ConversationId", str)
"""A uuid in lower case."""

MessageId = NewType("MessageId", str)
"""A uuid, the client's own or made by the server."""

ApprovalId = NewType("ApprovalId", str)
"""A uuid, one for each approval."""

CallId = NewType("CallId", str)
"""The id that the model gave a call. Models reuse ids, so it identifies a call only within its turn."""

EventId = NewType("EventId", str)
"""The `id` that `codex/event` carries: one for each turn, never reused within a conversation."""

ItemId = NewType("ItemId", str)
"""The id of an open item of a log, such as `i2.7`: the seventh of the second epoch."""

Seq = NewType("Seq", int)
"""A position in a log. The first entry has 1; 0 is the position before it."""

START: Final = Seq(0)
"""The position before the first entry."""
