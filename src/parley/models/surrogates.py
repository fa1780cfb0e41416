"""Joins the halves of surrogate pairs that a provider splits between two pieces of text.

JSON escapes a character such as an emoji as two halves, and some providers split the text between the halves.
Strict JSON decoders reject a piece that contains only one half. Therefore each half is replaced with a private-use
character, its stand-in, before the piece is decoded (`stand_in`). `PairJoiner` joins the two halves again.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Raw

__all__ = ["PairJoiner", "stand_in", "storable", "without_stand_ins"]

_OFFSET: Final = 0x102000
"""The distance from a surrogate (U+D800 to U+DFFF) to its stand-in, one of the last 2,048 code points."""

_PAIR_OR_HALF: Final = re.compile("[\U0010f800-\U0010fbff][\U0010fc00-\U0010ffff]|[\U0010f800-\U0010ffff]")


def stand_in(escape: re.Match[bytes]) -> bytes:
    """Return the private-use character that replaces one half of a surrogate pair (the stand-in), encoded as UTF-8.
    `escape` is a match of the JSON escape of this half, such as `\\ud83d`.
    """
    return chr(int(escape[0][2:], 16) + _OFFSET).encode()


def without_stand_ins(text: str) -> str:
    """Return the text with each pair of stand-ins replaced with the character of the pair, and each single stand-in
    replaced with U+FFFD. A stand-in is a private-use character in place of one half of a surrogate pair.
    """
    return _PAIR_OR_HALF.sub(_character, text)


def storable(raw: Raw, *, has_halves: bool) -> Raw:
    """Return a JSON value as it is stored and sent back: in valid UTF-8, without stand-ins.

    A stand-in is a private-use character in place of one half of a surrogate pair. `has_halves` is True if the
    value may contain stand-ins.
    """
    text = bytes(raw).decode(errors="replace")
    return Raw((without_stand_ins(text) if has_halves else text).encode())


def _character(found: re.Match[str]) -> str:
    if len(found[0]) == 1:
        return "\ufffd"
    high, low = (ord(half) - _OFFSET for half in found[0])
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


class PairJoiner:
    """Joins the surrogate pairs of text that arrives in pieces."""

    __slots__ = ("_high",)

    def __init__(self) -> None:
        self._high = ""

    @property
    def is_waiting(self) -> bool:
        """True while the first half of a pair is waiting for the second half."""
        return bool(self._high)

    def join(self, piece: str, *, has_halves: bool) -> str:
        """Return the text that a piece adds.

        If the piece ends with the first half of a pair, that half is returned together with the second half in the
        next piece. `has_halves` is True if the piece may contain stand-ins: private-use characters, each in place
        of one half of a pair.
        """
        if not has_halves:
            return self.end() + piece if piece else ""
        piece, self._high = self._high + piece, ""
        if piece and _is_high(piece[-1]):
            piece, self._high = piece[:-1], piece[-1]
        return without_stand_ins(piece)

    def end(self) -> str:
        """Return U+FFFD if the second half of a pair is missing at the end of the text. Otherwise return an empty
        string.
        """
        high, self._high = self._high, ""
        return "\ufffd" if high else ""


def _is_high(character: str) -> bool:
    return "\U0010f800" <= character <= "\U0010fbff"
