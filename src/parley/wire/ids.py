"""The names of things, so that one kind of id cannot be passed for another."""

from __future__ import annotations

from typing import Final, NewType

__all__ = ["START", "ApprovalId", "CallId", "ConversationId", "EventId", "ItemId", "MessageId", "Seq"]

ConversationId = NewType("ConversationId", str)
"""A uuid in its usual spelling, lower case."""

MessageId = NewType("MessageId", str)
"""A uuid, the client's own or made by the server."""

ApprovalId = NewType("ApprovalId", str)
"""A uuid, one for each question."""

CallId = NewType("CallId", str)
"""The model's name for a call. Models repeat them: never a key beyond its turn."""

EventId = NewType("EventId", str)
"""The `id` that `codex/event` carries: one for each turn, never reused within a conversation."""

ItemId = NewType("ItemId", str)
"""An open item of a log, such as `i2.7`: the seventh of the second epoch."""

Seq = NewType("Seq", int)
"""A position in a log; the first entry has 1, and 0 means before everything."""

START: Final = Seq(0)
"""Before the first entry."""
