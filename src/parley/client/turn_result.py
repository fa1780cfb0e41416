"""The result of a turn, derived from its events."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct, UnsetType

from parley.wire.events import (
    AgentMessage,
    ErrorEvent,
    EventMsg,
    TaskComplete,
    TokenCount,
    TurnDiff,
    TurnEndReason,
    UnknownEvent,
)
from parley.wire.tools import NO_TOKENS, Tokens

__all__ = ["Event", "TurnResult", "TurnSummary", "ends_turn"]

Event: TypeAlias = EventMsg | UnknownEvent

INTERRUPTED: Final = "Turn interrupted"
"""The message that identifies an interrupt in an `error` event without a `reason`. Servers send no `reason` at
protocol version 2025-06-18 and earlier.
"""


class TurnResult(Struct, frozen=True, kw_only=True):
    """The result of a turn: its text, its usage, its diff, and the reason for its end."""

    text: str
    """The messages of the agent, joined with newlines."""
    usage: Tokens | None
    """The sum of the token counts of all responses in the turn; None if the provider reported no counts."""
    diff: str | None
    """The changes that the patches of the turn made, as a unified diff; None if the turn applied no patch."""
    reason: TurnEndReason
    """The reason why the turn ended: `done`, or a reason why the turn did not complete."""


class TurnSummary:
    """Accumulates the result of a turn, event by event."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._usage: Tokens | None = None
        self._diff: str | None = None
        self.error: ErrorEvent | None = None
        """The error that ended the turn; None if no error ended the turn. Errors of tool servers come earlier and
        do not end the turn.
        """

    def add(self, event: Event) -> bool:
        """Add an event to the summary. Return whether the event ends the turn."""
        match event:
            case AgentMessage(message=message):
                self._texts.append(message)
            case TokenCount():
                self._usage = (self._usage or NO_TOKENS).plus(event)
            case TurnDiff(unified_diff=diff):
                self._diff = diff
            case ErrorEvent():
                self.error = event
                return ends_turn(event)
            case TaskComplete():
                return True
            case _:
                pass
        self.error = None
        return False

    def result(self) -> TurnResult:
        reason = "done" if self.error is None else _reason(self.error)
        return TurnResult(text="\n".join(self._texts), usage=self._usage, diff=self._diff, reason=reason)


def ends_turn(event: Event) -> bool:
    """Return whether a turn ends with this event. An `error` with the reason `failed` does not end a turn, because
    a `task_complete` follows it.
    """
    return isinstance(event, TaskComplete) or (isinstance(event, ErrorEvent) and _reason(event) != "failed")


def _reason(error: ErrorEvent) -> TurnEndReason:
    if not isinstance(error.reason, UnsetType):
        return error.reason
    return "interrupted" if INTERRUPTED in error.message else "failed"
