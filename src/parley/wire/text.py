"""Replaces characters that cannot be encoded, and escapes characters that cannot be seen.

These are control characters, writing directions, zero-width characters, line separators and lone surrogates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["listed", "quoted", "replace_surrogates", "unseen", "visible"]

_PRINTABLE_AND_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Invisible characters that Unicode counts as letters, marks or symbols: fillers, joiners, blanks, selectors."""

_MAX_LISTED: Final = 8

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED: Final = {ord("\\"): "\\\\", ord("'"): "\\'", ord("`"): "\\x60"}


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by `?`. They stand for bytes that were not UTF-8, and cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _are_seen(text: str) -> bool:
    return text.isprintable() and not _PRINTABLE_AND_UNSEEN.search(text)


def unseen(text: str) -> dict[int, str]:
    """Return a translation table with the escape of each invisible character of a text."""
    return {ord(one): _spelled(one) for one in set(text) if not _are_seen(one)}


def visible(text: str) -> str:
    """Return the text on one line, with control, bidirectional and zero-width characters escaped."""
    return text.translate(unseen(text))


def _spelled(character: str) -> str:
    """Return the escape that bash reads. Its `\\x` means a byte, so other characters need their code point."""
    code = ord(character)
    if code < 0x80:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted(path: str) -> str:
    """Return a path, quoted for a shell if it has invisible characters or a backtick."""
    if _are_seen(path) and "`" not in path:
        return path
    return f"$'{path.translate(unseen(path) | _ESCAPED)}'"


def listed(texts: Sequence[str]) -> str:
    """Join texts with commas. If there are many, show the first few and the number of the others."""
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more
