"""Compares the size of one reply from a model with the limits of its provider."""

from __future__ import annotations

from typing import Final

from parley.config.types import ReplyLimits
from parley.errors import ReplyTooLarge

__all__ = ["DEFAULT_LIMITS", "ReplySize"]

DEFAULT_LIMITS: Final = ReplyLimits()


class ReplySize:
    """The numbers of characters and calls in one reply so far, and their limits."""

    __slots__ = ("arguments", "calls", "limits", "text")

    def __init__(self, limits: ReplyLimits) -> None:
        self.limits = limits
        self.text = self.arguments = self.calls = 0

    def check_text(self, size: int) -> None:
        """Check a text of `size` characters before it is decoded and counted.

        Raises:
            ReplyTooLarge: the text alone exceeds the limit.
        """
        limit = self.limits.max_reply_characters
        if size > limit:
            raise ReplyTooLarge("characters of text", limit, setting="max_reply_characters")

    def check(self) -> None:
        """Compare all counts with their limits.

        Raises:
            ReplyTooLarge: the reply exceeds a limit.
        """
        limits = self.limits
        self.check_text(self.text)
        if self.arguments > limits.max_argument_characters:
            raise ReplyTooLarge(
                "characters in the arguments of its calls",
                limits.max_argument_characters,
                setting="max_argument_characters",
            )
        if self.calls > limits.max_calls:
            raise ReplyTooLarge("calls", limits.max_calls, setting="max_calls")
