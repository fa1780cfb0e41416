"""Words of others, as a person or a model may be shown them: nothing in them is invisible, and nothing acts.

Control characters, directions of writing, zero widths, line separators, halves of surrogate pairs: all are
spelled out, so that what is read is what is there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

__all__ = ["harmless", "one_line", "quoted", "quoted_command"]

REASON_LENGTH: Final = 2000
"""Ample for a sentence or ten; a reason is no place for a document."""

_PRINTABLE_AND_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""What Unicode counts among letters, marks and symbols, and nobody sees: fillers, joiners, blanks, selectors."""

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED: Final = {ord("\\"): "\\\\", ord("'"): "\\'", ord("`"): "\\x60"}


def _are_seen(text: str) -> bool:
    return text.isprintable() and not _PRINTABLE_AND_UNSEEN.search(text)


def _unseen(text: str) -> dict[int, str]:
    """Each character that is not seen, and how it is spelled; a text may be long, and its alphabet is not."""
    return {ord(one): _spelled(one) for one in set(text) if not _are_seen(one)}


def _spelled(character: str) -> str:
    """As bash reads it: behind its `\\x` are bytes, so that beyond ASCII the code point has to be named."""
    code = ord(character)
    if code < 0x80:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted_command(argv: Sequence[str]) -> str:
    """A command as a shell would read it, all of it.

    A word with something unseen stands in the `$'...'` of bash: there an escape cannot be taken for the
    backslash and the letters it is written with, as it could between plain quotes. So does one with a
    backtick: between backticks it is shown, and must not seem to end before it does.
    """
    return " ".join(map(_word, argv))


def _word(word: str) -> str:
    return shlex.quote(word) if _is_plain(word) else _dollar_quoted(word)


def quoted(path: str) -> str:
    """A path as it is; as a word of a shell where something in it is unseen, or a backtick."""
    return path if _is_plain(path) else _dollar_quoted(path)


def _is_plain(text: str) -> bool:
    return _are_seen(text) and "`" not in text


def _dollar_quoted(word: str) -> str:
    return f"$'{word.translate(_unseen(word) | _ESCAPED)}'"


def one_line(text: str) -> str:
    """A text of the model for a person, who must not take it for more than one line of it."""
    text = _cut(text)
    return text.translate(_unseen(text))


def harmless(text: str) -> str | None:
    """What somebody gave as a reason, for the model; None where there is nothing in it."""
    text = _cut(text.strip())
    return text.translate({code: how for code, how in _unseen(text).items() if chr(code) not in "\n\t"}) or None


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
