"""The time of the last activity by which lists are ordered: that of the clock, unless the clock was set back."""

from __future__ import annotations

from typing import Final

from parley.ports.store import Summary

__all__ = ["active_at"]

SLACK_SECONDS: Final = 1.0
"""How far the clock may lag behind the last activity without having been set back: two processes may write in
another order than they read the clock."""

STEP_SECONDS: Final = 0.001
"""Time between two successive activities while the clock lags behind."""


def active_at(summary: Summary, newest: object) -> float:
    """The time to store; `newest` is the time of the conversation that is listed first, if there is one."""
    at = summary.updated_at
    if not summary.is_active or not isinstance(newest, float) or at >= newest - SLACK_SECONDS:
        return at
    return newest + STEP_SECONDS
