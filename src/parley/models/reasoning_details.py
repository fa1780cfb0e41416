"""Assembles the `reasoning_details` of OpenRouter, which are blocks of reasoning. Some blocks are signed. Later
requests send the complete blocks back to OpenRouter.

A block is streamed in fragments. Consecutive fragments with the same type and index form one block, and their text
is joined. For every other member, the last value that is not null is used.
"""

from __future__ import annotations

from typing import Any, Final

from parley.models.text_buffer import TextBuffer

__all__ = ["ReasoningDetails"]

TEXTS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The name of the member that holds the text of a block, keyed by the type of the block. Blocks of these types are
streamed in fragments. A block of any other type arrives in one piece.
"""


class _Block:
    def __init__(self, kind: str, members: dict[str, Any]) -> None:
        self.kind, self.members = kind, members
        self.text = TextBuffer()

    def continues(self, kind: str, members: dict[str, Any]) -> bool:
        return kind in TEXTS and kind == self.kind and self.members.get("index") == members.get("index")

    def extend(self, members: dict[str, Any]) -> int:
        """Merge `members`, the members of another fragment, into the block. Return the approximate number of
        characters in the names and values of the changed members, except the member that holds the text.
        """
        changed = {
            name: value
            for name, value in members.items()
            if value is not None and (name not in self.members or self.members[name] != value)
        }
        self.members |= changed
        return sum(len(name) + len(str(value)) for name, value in changed.items() if name != TEXTS[self.kind])


class ReasoningDetails:
    """Assembles the reasoning blocks of one response."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def extend(self, pieces: Any, *, has_halves: bool) -> tuple[str, int]:
        """Add `pieces`, the reasoning details of one delta, to the blocks. Return their text, which clients see,
        and the approximate number of characters by which the blocks grow.

        `has_halves` is True if the delta was decoded with stand-ins for halves of surrogate pairs
        (`surrogates.py`).
        """
        shown, size = "", 0
        for piece in pieces if isinstance(pieces, list) else ():
            if not isinstance(piece, dict):
                continue
            kind = str(piece.get("type"))
            last = self._blocks[-1] if self._blocks else None
            if last is None or not last.continues(kind, piece):
                last = _Block(kind, piece)
                self._blocks.append(last)
                size += len(str(piece))
            else:
                size += last.extend(piece)
            text = piece.get(TEXTS.get(kind, ""))
            if isinstance(text, str) and text:
                text = last.text.joiner.join(text, has_halves=has_halves)
                last.text.append(text)
                last.text.compact_if_many()
                shown += text
        return shown, size + len(shown)

    def whole(self) -> list[dict[str, Any]]:
        """Return all blocks of the response as they are sent back to the provider."""
        return [
            {**block.members, TEXTS[block.kind]: block.text.text()} if block.text else block.members
            for block in self._blocks
        ]
