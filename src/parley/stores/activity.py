"""When a conversation was last active, as lists are ordered by it: by the clock, unless that was set back."""

from __future__ import annotations

from typing import Final

from parley.ports.store import Summary

__all__ = ["active_at"]

SLACK_SECONDS: Final = 1.0
"""By how much the clock may be behind the last activity: two processes write in another order than they read it."""

STEP_SECONDS: Final = 0.001
"""By how much an activity is later than the one before it while the clock is behind."""


def active_at(summary: Summary, newest: object) -> float:
    """The time to store; `newest` is the time of the conversation that is listed first, if there is one."""
    at = summary.updated_at
    if not summary.is_active or not isinstance(newest, float) or at >= newest - SLACK_SECONDS:
        return at
    return newest + STEP_SECONDS
