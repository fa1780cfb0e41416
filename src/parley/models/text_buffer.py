"""A buffer for text that arrives in many small pieces."""

from __future__ import annotations

from typing import Final

from parley.models.surrogates import PairJoiner

__all__ = ["TextBuffer"]

MAX_PIECES: Final = 1024
"""The maximum number of pieces that are held before they are joined. The number is limited because a short string
takes ten times as much memory as its characters.
"""


class TextBuffer:
    """Collects pieces of text and joins them."""

    __slots__ = ("_parts", "append", "joiner", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.append = self.pieces.append
        self.joiner = PairJoiner()
        self.size = 0
        """The number of characters in the pieces that `compact` has joined."""
        self._parts: list[str] = []

    def compact(self) -> None:
        """Join the pieces into one string, and add the number of their characters to `size`."""
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
