"""Messages that are nested beyond reason, cut so that the rest of them can be read."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_CUT_BYTES", "MAX_LEVELS", "cut_short"]

MAX_LEVELS: Final = 200
"""What lies deeper is cut off: more than any schema needs, and more than a result may have."""

MAX_CUT_BYTES: Final = 1024 * 1024
"""The longest message that is cut: nobody may wait for long while it is looked through."""

_TOKEN: Final = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)


def cut_short(message: bytes) -> bytes:
    """The message with null in place of all that is nested too deeply; a long one is left as it is."""
    if len(message) > MAX_CUT_BYTES:
        return message
    kept: list[bytes] = []
    levels = begin = end = 0
    in_string = False
    for match in _TOKEN.finditer(message):
        token = match[0]
        if token == b'"':
            in_string = not in_string
        elif in_string:
            continue
        elif token in (b"{", b"["):
            levels += 1
            if levels == MAX_LEVELS + 1:
                begin = match.start()
        elif token in (b"}", b"]"):
            if levels == MAX_LEVELS + 1:
                kept += [message[end:begin], b"null"]
                end = match.end()
            levels -= 1
    return b"".join([*kept, message[end:]])
