"""Surrogate pairs that a provider splits over two pieces of one text.

JSON escapes a character such as an emoji as two halves, and some providers cut between them. Strict JSON
decoders refuse such a piece. `stand_in` names the private-use character that takes the place of a half while
the piece is decoded; `PairJoiner` puts the halves of one text together again.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PairJoiner", "stand_in", "without_stand_ins"]

_OFFSET: Final = 0x102000
"""The distance from a half (U+D800 to U+DFFF) to its stand-in, which is one of the last 2,048 code points."""

_PAIR_OR_HALF: Final = re.compile("[\U0010f800-\U0010fbff][\U0010fc00-\U0010ffff]|[\U0010f800-\U0010ffff]")


def stand_in(half: int) -> str:
    """Return the stand-in for one half of a surrogate pair."""
    return chr(half + _OFFSET)


def without_stand_ins(text: str) -> str:
    """Replace pairs of stand-ins by their character and all others by U+FFFD."""
    return _PAIR_OR_HALF.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if len(found[0]) == 1:
        return "\ufffd"
    high, low = (ord(half) - _OFFSET for half in found[0])
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


class PairJoiner:
    """Joins the surrogate pairs of one text that arrives in pieces."""

    __slots__ = ("_high",)

    def __init__(self) -> None:
        self._high = ""

    @property
    def is_waiting(self) -> bool:
        """True while a first half waits for its second."""
        return bool(self._high)

    def join(self, piece: str, *, has_halves: bool) -> str:
        """Return the text that the piece adds. The first half of a pair waits for the next piece.

        `has_halves`: the piece was decoded with stand-ins.
        """
        if not has_halves:
            return self.end() + piece if piece else ""
        piece, self._high = self._high + piece, ""
        if piece and _is_high(piece[-1]):
            piece, self._high = piece[:-1], piece[-1]
        return without_stand_ins(piece)

    def end(self) -> str:
        """Return U+FFFD if a first half still waits, else nothing."""
        high, self._high = self._high, ""
        return "\ufffd" if high else ""


def _is_high(character: str) -> bool:
    return "\U0010f800" <= character <= "\U0010fbff"
