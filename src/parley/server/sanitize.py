"""Prepares foreign text for display to a person or a model: invisible characters and control characters are
escaped.

These are control characters, writing directions, zero-width characters, line separators and lone surrogates.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from parley.wire.text import quoted, unseen, visible

__all__ = ["escape_for_display", "one_line", "quoted_command", "quoted_words"]

REASON_LENGTH: Final = 2000
"""The longest reason, in characters; a longer one is truncated."""


_IN_QUOTES: Final = {ord('"'): '\\"', ord("\\"): "\\\\"}

QUOTED_LENGTH: Final = 500
"""How many characters of the model's own words a question shows; its fields have all of them."""


def quoted_command(argv: Sequence[str]) -> str:
    """Return the whole command in the syntax of a shell.

    A word with an invisible character is written as `$'...'`, as in bash: in plain quotes, an escape could not be
    distinguished from a backslash and letters in the command. So is a word with a backtick, because the command is
    shown between backticks.
    """
    return " ".join(map(_word, argv))


def _word(word: str) -> str:
    shown = quoted(word)
    return shlex.quote(word) if shown == word else shown


def one_line(text: str) -> str:
    """Return text of the model for a person, escaped so that it stays on one line."""
    return visible(_cut(text))


def quoted_words(text: str) -> str:
    """Return the words of the model for an approval: on one line, in quotation marks that the words cannot close.

    Runs of blanks become one blank: a long run could wrap and make the words look like a line of the server.
    """
    words = " ".join(filter(None, text[:REASON_LENGTH].split(" ")))
    cut = "…" if len(words) > QUOTED_LENGTH or len(text) > REASON_LENGTH else ""
    words = words[:QUOTED_LENGTH]
    return f'"{words.translate({**unseen(words), **_IN_QUOTES})}{cut}"'


def escape_for_display(text: str) -> str | None:
    """Return a reason for the model, truncated and with invisible characters escaped; None if it is empty."""
    text = _cut(text.strip())
    return text.translate({code: how for code, how in unseen(text).items() if chr(code) not in "\n\t"}) or None


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
