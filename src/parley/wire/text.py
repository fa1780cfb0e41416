"""Replaces characters that cannot be encoded, and escapes invisible characters.

Invisible characters include control characters, marks that change the writing direction, zero-width characters,
line separators and lone surrogates.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

__all__ = ["listed", "quoted", "quoted_command", "replace_surrogates", "unseen", "visible"]

_PRINTABLE_AND_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Invisible characters that Unicode classifies as letters, marks or symbols, such as filler characters, joiners and
variation selectors.
"""

_MAX_LISTED: Final = 8

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED: Final = {ord("\\"): "\\\\", ord("'"): "\\'", ord("`"): "\\x60"}


def replace_surrogates(text: str) -> str:
    """Return `text` with each lone surrogate replaced by `?`. Lone surrogates represent bytes that were not valid
    UTF-8, and they cannot be encoded.
    """
    return text.encode("utf-8", "replace").decode()


def _are_seen(text: str) -> bool:
    return text.isprintable() and not _PRINTABLE_AND_UNSEEN.search(text)


def unseen(text: str) -> dict[int, str]:
    """Return a table for `str.translate` that replaces each invisible character in `text` with its escape."""
    return {ord(one): _spelled(one) for one in set(text) if not _are_seen(one)}


def visible(text: str) -> str:
    """Return `text` on a single line, with its invisible characters escaped."""
    return text.translate(unseen(text))


def _spelled(character: str) -> str:
    r"""Return the escape for a character in the syntax of bash. In this syntax, `\x` introduces a byte, and `\u`
    introduces a code point.
    """
    code = ord(character)
    if code < 0x80:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted(path: str) -> str:
    """Return a path for display. If the path contains an invisible character or a backtick, return the path quoted
    for bash.
    """
    if _are_seen(path) and "`" not in path:
        return path
    return f"$'{path.translate(unseen(path) | _ESCAPED)}'"


def quoted_command(argv: Sequence[str]) -> str:
    """Return a command as one line in the syntax of bash.

    A word with an invisible character is written as `$'...'`. In plain quotes, the escape of the character could
    not be distinguished from a backslash and letters in the command. A word with a backtick is also written as
    `$'...'`, because the command is shown between backticks.
    """
    return " ".join(map(_word, argv))


def _word(word: str) -> str:
    shown = quoted(word)
    return shlex.quote(word) if shown == word else shown


def listed(texts: Sequence[str]) -> str:
    """Return the strings in `texts`, joined with commas. If there are more than 8 strings, join only the first 8,
    and append the number of remaining strings.
    """
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more
