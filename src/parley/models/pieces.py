"""A text that arrives in many small pieces, and how much of it is accepted."""

from __future__ import annotations

from typing import Final

from parley.config.types import ReplyLimits
from parley.errors import ReplyTooLarge
from parley.models.surrogates import PairJoiner

__all__ = ["DEFAULT_LIMITS", "Pieces", "ReplySize"]

DEFAULT_LIMITS: Final = ReplyLimits()

MAX_PIECES: Final = 1024
"""How many pieces are kept apart: a short string takes ten times the memory of its characters."""


class Pieces:
    """Collects the pieces of one text."""

    __slots__ = ("_parts", "append", "joiner", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.append = self.pieces.append
        self.joiner = PairJoiner()
        self.size = 0
        """How many characters there were at the last `compact`."""
        self._parts: list[str] = []

    def compact(self) -> None:
        """Join the pieces so far and count their characters."""
        if self.pieces:
            part = "".join(self.pieces)
            self._parts.append(part)
            self.pieces.clear()
            self.size += len(part)

    def compact_if_many(self) -> None:
        if len(self.pieces) > MAX_PIECES:
            self.compact()

    def __bool__(self) -> bool:
        return bool(self.pieces or self._parts)

    def text(self) -> str:
        return "".join((*self._parts, *self.pieces))


class ReplySize:
    """How large one reply has become."""

    __slots__ = ("arguments", "calls", "limits", "text")

    def __init__(self, limits: ReplyLimits) -> None:
        self.limits = limits
        self.text = self.arguments = self.calls = 0

    def check_text(self, size: int) -> None:
        """Check the size of a text that was not counted yet.

        Raises:
            ReplyTooLarge: it exceeds the limit by itself.
        """
        limit = self.limits.max_reply_characters
        if size > limit:
            raise ReplyTooLarge("characters of text", limit, setting="max_reply_characters")

    def check(self) -> None:
        """Call this once for each read.

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
