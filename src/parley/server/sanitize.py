"""Escapes invisible characters in foreign text for display to a person or a model.

Invisible characters are control characters, bidirectional controls, zero-width characters, line separators and
lone surrogates.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from parley.wire.text import quoted, unseen, visible

__all__ = ["escape_for_display", "one_line", "quoted_command", "quoted_words"]

REASON_LENGTH: Final = 2000
"""The maximum number of characters of a reason. A longer reason is truncated."""


_IN_QUOTES: Final = {ord('"'): '\\"', ord("\\"): "\\\\"}

QUOTED_LENGTH: Final = 500
"""The maximum number of characters of the model's words that an approval shows. The fields of the request contain
the complete words.
"""


def quoted_command(argv: Sequence[str]) -> str:
    """Return a command as one line in the syntax of a shell.

    A word with an invisible character is written as `$'...'`, as in bash, because in plain quotes its escape could
    not be distinguished from a backslash and letters in the command. A word with a backtick is also written as
    `$'...'`, because the command is shown between backticks.
    """
    return " ".join(map(_word, argv))


def _word(word: str) -> str:
    shown = quoted(word)
    return shlex.quote(word) if shown == word else shown


def one_line(text: str) -> str:
    """Return text from the model for display to a person, escaped so that it stays on one line."""
    return visible(_cut(text))


def quoted_words(text: str) -> str:
    """Return the words of the model for the text of an approval, on one line and in quotation marks. Quotation
    marks in the words are escaped.

    Each run of blanks is replaced by one blank, because a long run could wrap and make the words look like a line
    from the server.
    """
    words = " ".join(filter(None, text[:REASON_LENGTH].split(" ")))
    cut = "…" if len(words) > QUOTED_LENGTH or len(text) > REASON_LENGTH else ""
    words = words[:QUOTED_LENGTH]
    return f'"{words.translate({**unseen(words), **_IN_QUOTES})}{cut}"'


def escape_for_display(text: str) -> str | None:
    """Return the text of a reason, truncated and with invisible characters escaped; None if the text is empty."""
    text = _cut(text.strip())
    return text.translate({code: how for code, how in unseen(text).items() if chr(code) not in "\n\t"}) or None


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
