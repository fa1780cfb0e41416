"""Splits Markdown into blocks while a model writes it.

A finished block is printed once, so only the block that is still open must be drawn again. The splitter recognises
only the parts of Markdown that end a block: paragraphs, headings, code fences and list items.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["CODE_LINES", "Block", "BlockSplitter"]

CODE_LINES: Final = 40
"""The maximum number of lines in one block of code. Longer code is split into several blocks without an empty line
between them.
"""

Kind: TypeAlias = Literal["text", "item", "code"]

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM: Final = re.compile(r" {0,1}(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$)")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_INDENTED_FENCE: Final = re.compile(r"\s+(`{3,}|~{3,})")


class Block(NamedTuple):
    kind: Kind
    text: str
    """The Markdown of the block. For a code block, the lines between the fences."""
    language: str = ""
    """The language in the opening fence of a code block. Empty if the fence contains no language, or if the block
    is not a code block.
    """
    gap: bool = True
    """True if an empty line precedes the block."""


class BlockSplitter:
    """Splits one Markdown document, which arrives in pieces, into blocks."""

    def __init__(self) -> None:
        self._partial: list[str] = []
        """The pieces of the last line if it is incomplete; otherwise an empty list."""
        self._lines: list[str] = []
        """The lines of the open block."""
        self._kind: Kind = "text"
        self._language = ""
        self._fence = ""
        """The marker that ends the open code block; empty outside code blocks."""
        self._inner_fence = ""
        """The marker that ends the open code block inside a list item; empty outside such a code block."""
        self._gap = True
        self._is_blank = False
        """True if the last line is empty. An empty line may be part of the open list item."""

    @property
    def open_block(self) -> Block | None:
        """The unfinished block; None if that block is empty."""
        lines = [*self._lines, *self._tail()]
        if not lines and not self._fence:
            return None
        return Block(self._kind, "\n".join(lines), self._language, self._gap)

    def add(self, piece: str) -> list[Block]:
        """Add the next piece of the document, and return the blocks that the piece finishes."""
        *ended, rest = piece.split("\n")
        if not ended:
            if rest:
                self._partial.append(rest)
            return []
        finished: list[Block] = []
        for number, part in enumerate(ended):
            line = "".join([*self._partial, part]) if number == 0 else part
            finished += self._add_line(line.removesuffix("\r"))
        self._partial = [rest] if rest else []
        return finished

    def end(self) -> list[Block]:
        """End the document, and return its last blocks."""
        finished = self._add_line(self._tail()[0]) if self._partial else []
        self._partial = []
        return finished + self._finish()

    def _tail(self) -> list[str]:
        """Return a list with the incomplete last line of the document; an empty list if that line is complete."""
        if len(self._partial) > 1:
            self._partial = ["".join(self._partial)]
        return list(self._partial)

    def _add_line(self, line: str) -> list[Block]:
        if self._fence:
            return self._add_code(line)
        if self._inner_fence:
            self._lines.append(line)
            if _closes(line, self._inner_fence):
                self._inner_fence = ""
            return []
        if not line.strip():
            return self._add_blank()
        if self._kind == "item" and self._lines and line.startswith(("  ", "\t")):  # belongs to the open item
            self._lines += [""] if self._is_blank else []
            self._is_blank = False
            self._lines.append(line)
            if (inner := _INDENTED_FENCE.match(line)) is not None:
                self._inner_fence = inner[1]
            return []
        if (fence := _FENCE.match(line)) is not None and "`" not in (info := line[fence.end() :]):
            finished = self._finish()
            self._kind, self._fence, self._language = "code", fence[1], next(iter(info.split(maxsplit=1)), "")
            return finished
        if _ITEM.match(line):
            follows_item = self._kind == "item" and bool(self._lines)
            gap = self._is_blank or not follows_item
            finished = self._finish()
            self._kind, self._gap = "item", gap
            self._lines.append(line)
            return finished
        if _HEADING.match(line):
            return [*self._finish(), Block("text", line)]
        finished = self._finish() if self._is_blank else []
        self._lines.append(line)
        return finished

    def _add_blank(self) -> list[Block]:
        if self._kind == "item" and self._lines:
            self._is_blank = True  # the next line decides whether the item continues
            return []
        return self._finish()

    def _add_code(self, line: str) -> list[Block]:
        if _closes(line, self._fence):
            self._fence = ""
            return self._finish()
        self._lines.append(line)
        if len(self._lines) < CODE_LINES:
            return []
        block = Block("code", "\n".join(self._lines), self._language, self._gap)
        self._lines, self._gap = [], False
        return [block]

    def _finish(self) -> list[Block]:
        """Finish the open block. Return the block in a list, or an empty list if the block is empty."""
        lines, kind, language, gap = self._lines, self._kind, self._language, self._gap
        self._lines, self._kind, self._language, self._fence = [], "text", "", ""
        self._inner_fence, self._gap, self._is_blank = "", True, False
        return [Block(kind, "\n".join(lines), language, gap)] if lines else []


def _closes(line: str, fence: str) -> bool:
    marker = line.strip()
    return len(marker) >= len(fence) and set(marker) == {fence[0]}
