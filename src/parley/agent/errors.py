"""Errors that only the agent raises."""

from __future__ import annotations

from parley.errors import ModelError

__all__ = ["ModelRefused", "NoSummary", "ReplyCutOff"]


class ReplyCutOff(ModelError):
    """Raised when the provider has truncated several consecutive responses, each in the middle of a tool call."""

    code = "reply_cut_off"
    worth_repeating = False

    def __init__(self, reason: str, times: int) -> None:
        super().__init__(f"the model's reply was cut off in the middle of a call, {times} times in a row: {reason}")
        self.reason, self.times = reason, times


class ModelRefused(ModelError):
    """Raised when the model declines a request because of the rules of its provider."""

    code = "model_refused"
    worth_repeating = False

    def __init__(self, explanation: str) -> None:
        """Create the error.

        `explanation` is the provider's explanation, which begins with the category in parentheses and a colon. The
        explanation may be empty.
        """
        super().__init__(f"the model refused the request{explanation}")
        self.explanation = explanation


class NoSummary(ModelError):
    """Raised when the model returned no text as the summary of a conversation."""

    code = "no_summary"
    worth_repeating = False

    def __init__(self) -> None:
        super().__init__("the model returned an empty summary; the history is unchanged")
