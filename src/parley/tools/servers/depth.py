"""Cuts values that are nested too deeply out of a message, so that the rest can be decoded."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_CUT_BYTES", "MAX_LEVELS", "cut_nesting"]

MAX_LEVELS: Final = 200
"""Deeper values are cut: no schema needs so many levels, and no result may have them."""

MAX_CUT_BYTES: Final = 1024 * 1024
"""The longest message that is cut: it is scanned on the event loop."""

_TOKEN: Final = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)


def cut_nesting(message: bytes) -> bytes:
    """Return the message with null in place of values that are nested too deeply; a long message is not changed."""
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
