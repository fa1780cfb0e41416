"""Text that can be said: not everything that Python calls a string is, and not everything that is can be seen.

Control characters, directions of writing, zero widths, line separators, halves of surrogate pairs: all can be
spelled out, so that what is read is what is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["listed", "quoted", "replace_surrogates", "unseen", "visible"]

_PRINTABLE_AND_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""What Unicode counts among letters, marks and symbols, and nobody sees: fillers, joiners, blanks, selectors."""

_MAX_LISTED: Final = 8

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED: Final = {ord("\\"): "\\\\", ord("'"): "\\'", ord("`"): "\\x60"}


def replace_surrogates(text: str) -> str:
    """The text with `?` for halves of surrogate pairs, which no UTF-8 has: bytes that were none come as such."""
    return text.encode("utf-8", "replace").decode()


def _are_seen(text: str) -> bool:
    return text.isprintable() and not _PRINTABLE_AND_UNSEEN.search(text)


def unseen(text: str) -> dict[int, str]:
    """Each character that is not seen, and how it is spelled; a text may be long, and its alphabet is not."""
    return {ord(one): _spelled(one) for one in set(text) if not _are_seen(one)}


def visible(text: str) -> str:
    """Return the text on one line, with control, bidirectional and zero-width characters escaped."""
    return text.translate(unseen(text))


def _spelled(character: str) -> str:
    """As bash reads it: behind its `\\x` are bytes, so that beyond ASCII the code point has to be named."""
    code = ord(character)
    if code < 0x80:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted(path: str) -> str:
    """A path as it is; as a word of a shell where something in it is unseen, or a backtick."""
    if _are_seen(path) and "`" not in path:
        return path
    return f"$'{path.translate(unseen(path) | _ESCAPED)}'"


def listed(texts: Sequence[str]) -> str:
    """Return the texts separated by commas; of many, the first few and the number of the others."""
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more
