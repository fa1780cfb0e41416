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
"""The number of characters after which text for display, such as the reason for a decision, is truncated."""


_IN_QUOTES: Final = {ord('"'): '\\"', ord("\\"): "\\\\"}

QUOTED_LENGTH: Final = 500
"""The maximum number of characters that the text of an approval request quotes from the model's reason."""


def one_line(text: str) -> str:
    """Return `text` for display on a single line: truncated, and with line breaks and other invisible characters
    escaped.
    """
    return visible(_cut(text))


def quoted_words(text: str) -> str:
    """Return `text`, a reason given by the model, as a quotation for an approval request: truncated, on one line,
    and in quotation marks. Quotation marks and invisible characters in `text` are escaped.

    Each run of spaces is replaced with one space. Otherwise, the words after a long run could wrap to the beginning
    of a line and look as if the server had written them.
    """
    words = " ".join(filter(None, text[:REASON_LENGTH].split(" ")))
    cut = "…" if len(words) > QUOTED_LENGTH or len(text) > REASON_LENGTH else ""
    words = words[:QUOTED_LENGTH]
    return f'"{words.translate({**unseen(words), **_IN_QUOTES})}{cut}"'


def escape_for_display(text: str) -> str | None:
    """Return `text` for display, without surrounding whitespace: truncated, and with invisible characters other
    than line breaks and tabs escaped. Return None if `text` is empty or contains only whitespace.
    """
    text = _cut(text.strip())
    return text.translate({code: how for code, how in unseen(text).items() if chr(code) not in "\n\t"}) or None


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
