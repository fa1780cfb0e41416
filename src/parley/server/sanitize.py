"""Escapes invisible characters in text from clients, models or files before the text is shown to a person or a
model.

Invisible characters are control characters, bidirectional controls, zero-width characters, line separators and
lone surrogates.
"""

from __future__ import annotations

from typing import Final

from parley.wire.text import unseen, visible

__all__ = ["escape_for_display", "one_line", "quoted_words"]

REASON_LENGTH: Final = 2000
"""The maximum number of characters of a reason. A longer reason is truncated."""


_IN_QUOTES: Final = {ord('"'): '\\"', ord("\\"): "\\\\"}

QUOTED_LENGTH: Final = 500
"""The maximum number of characters of the model's words that an approval shows. The fields of the request contain
the complete words.
"""


def one_line(text: str) -> str:
    """Escape text from the model so that it is displayed to a person on a single line, and return the escaped
    text.
    """
    return visible(_cut(text))


def quoted_words(text: str) -> str:
    """Return the model's words in the form in which the text of an approval contains them: on one line and in
    quotation marks. Quotation marks in the words are escaped.

    Each run of blanks is replaced by one blank, because a long run could wrap and make the words look like a line
    from the server.
    """
    words = " ".join(filter(None, text[:REASON_LENGTH].split(" ")))
    cut = "…" if len(words) > QUOTED_LENGTH or len(text) > REASON_LENGTH else ""
    words = words[:QUOTED_LENGTH]
    return f'"{words.translate({**unseen(words), **_IN_QUOTES})}{cut}"'


def escape_for_display(text: str) -> str | None:
    """Return the text of a reason for display: truncated, and with invisible characters escaped. Return None if the
    text is empty.
    """
    text = _cut(text.strip())
    return text.translate({code: how for code, how in unseen(text).items() if chr(code) not in "\n\t"}) or None


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
