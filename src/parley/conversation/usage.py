"""Counts the tokens, costs and tool calls in the log, and stores which limits a person has allowed the conversation
to exceed.

The usage is a projection: each appended entry updates the usage. The module `agent/limits.py` compares the usage
with the limits.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, UnsetType

from parley.conversation.log import LogPayload
from parley.conversation.records import (
    ApprovalRequest,
    ApprovalSettlement,
    CallOutput,
    ResponseUsed,
    TokensEstimated,
    TurnStarted,
)
from parley.wire.events import LimitReached, TokenCount

__all__ = ["SavedUsage", "UsageTotals"]

CONVERSATION_LIMITS: Final = frozenset({"conversation_tokens", "conversation_cost"})
"""The names of the limits that apply to the whole conversation. A permission to exceed one of these limits stays
valid in later turns. A permission to exceed any other limit is valid only in its turn.
"""


class SavedUsage(Struct, frozen=True, array_like=True):
    """The usage as stored in a checkpoint."""

    conversation_tokens: int
    turn_tokens: int
    conversation_micros: int
    turn_micros: int
    turn_calls: int
    agreed: dict[str, int]
    unreported: TokenCount | None
    since: float
    waited_seconds: float
    asked_at: float
    reached: LimitReached | None


class UsageTotals:
    """The projection of the token usage, the costs and the tool calls of one conversation."""

    __slots__ = (
        "_asked_at",
        "_reached",
        "_since",
        "_waited_seconds",
        "agreed",
        "conversation_micros",
        "conversation_tokens",
        "turn_calls",
        "turn_micros",
        "turn_tokens",
        "unreported",
    )

    def __init__(self) -> None:
        self.conversation_tokens = 0
        self.turn_tokens = 0
        """The number of tokens used by the running turn or, if none is running, by the last turn."""
        self.conversation_micros = 0
        """The cost of the conversation in millionths of the currency unit. Responses whose price is unknown are
        not included.
        """
        self.turn_micros = 0
        """The cost of the running turn or, if none is running, of the last turn, in millionths of the currency
        unit.
        """
        self.turn_calls = 0
        """The number of tool calls with an output in the running turn or, if none is running, in the last turn."""
        self.agreed: dict[str, int] = {}
        """Maps the name of each limit that a person has allowed the conversation to exceed to the usage at the time
        of the permission.
        """
        self.unreported: TokenCount | None = None
        """The token usage of the last model response if it has not been sent to clients yet; otherwise None. The
        usage is sent when the tool calls of the response have ended.
        """
        self._since = 0.0
        self._waited_seconds = 0.0
        self._asked_at = 0.0
        self._reached: LimitReached | None = None

    def saved(self) -> SavedUsage:
        """Return the usage as a checkpoint stores it."""
        return SavedUsage(
            self.conversation_tokens,
            self.turn_tokens,
            self.conversation_micros,
            self.turn_micros,
            self.turn_calls,
            dict(self.agreed),
            self.unreported,
            self._since,
            self._waited_seconds,
            self._asked_at,
            self._reached,
        )

    @classmethod
    def restored(cls, saved: SavedUsage) -> UsageTotals:
        """Create the usage from `saved`, its form in a checkpoint."""
        usage = cls()
        usage.conversation_tokens, usage.turn_tokens = saved.conversation_tokens, saved.turn_tokens
        usage.conversation_micros, usage.turn_micros = saved.conversation_micros, saved.turn_micros
        usage.turn_calls, usage.agreed, usage.unreported = (
            saved.turn_calls,
            dict(saved.agreed),
            saved.unreported,
        )
        usage._since, usage._waited_seconds = saved.since, saved.waited_seconds
        usage._asked_at, usage._reached = saved.asked_at, saved.reached
        return usage

    def copy(self) -> UsageTotals:
        """Return an independent copy."""
        return UsageTotals.restored(self.saved())

    def turn_seconds(self, now: float) -> float:
        """Return the time since the start of the last turn, in seconds, without the time that the turn spent
        waiting for approvals that are now settled. `now` is the current time in seconds since the epoch.
        """
        return max(0.0, now - self._since - self._waited_seconds)

    def apply(self, payload: LogPayload, *, at: float) -> None:
        """Update the usage with one entry of the log. `at` is the time of the entry, in seconds since the epoch."""
        match payload:
            case TurnStarted():
                self.turn_tokens = self.turn_calls = self.turn_micros = 0
                self._since, self._waited_seconds = at, 0.0
                self.agreed = {limit: used for limit, used in self.agreed.items() if limit in CONVERSATION_LIMITS}
            case ResponseUsed(usage=usage):
                self.unreported = usage
            case (
                TokenCount(total_tokens=tokens, cost_micros=micros)
                | TokensEstimated(tokens=tokens, cost_micros=micros)
            ):
                self.unreported = None
                self.turn_tokens += max(0, tokens)
                self.conversation_tokens += max(0, tokens)
                if not isinstance(micros, UnsetType):
                    self.turn_micros += max(0, micros)
                    self.conversation_micros += max(0, micros)
            case CallOutput():
                self.turn_calls += 1
            case LimitReached():
                self._reached = payload
            case ApprovalRequest(kind=kind):
                self._asked_at = at
                if kind != "limit":
                    self._reached = None
            case ApprovalSettlement(decision=decision):
                self._waited_seconds += max(0.0, at - self._asked_at)
                if self._reached is not None and decision in ("approved", "approved_for_session"):
                    self._agree(self._reached)
                self._reached = None
            case _:
                pass

    def _agree(self, reached: LimitReached) -> None:
        """Record that a person allowed the turn to exceed the limit in the event `reached`. Also record the usage
        at the time of this permission.

        The recorded usage is the usage that the event states, or the usage that was counted from the log if that is
        lower. The event can state a higher usage only in an imported log.
        """
        counted = {
            "turn_tokens": self.turn_tokens,
            "turn_calls": self.turn_calls,
            "conversation_tokens": self.conversation_tokens,
            "turn_cost": self.turn_micros,
            "conversation_cost": self.conversation_micros,
        }
        self.agreed[reached.limit] = min(reached.used, counted.get(reached.limit, reached.used))
