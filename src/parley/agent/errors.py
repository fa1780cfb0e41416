"""Errors that only the agent raises."""

from __future__ import annotations

from parley.errors import ModelError

__all__ = ["ReplyCutOff"]


class ReplyCutOff(ModelError):
    """Raised when the provider truncates several consecutive replies in the middle of a call."""

    code = "reply_cut_off"
    worth_repeating = False

    def __init__(self, reason: str, times: int) -> None:
        super().__init__(f"the model's reply was cut off in the middle of a call, {times} times in a row: {reason}")
        self.reason, self.times = reason, times
