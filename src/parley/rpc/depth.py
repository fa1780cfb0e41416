"""Replaces deeply nested values in a message with null, so that the remaining values can be decoded."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_CUT_BYTES", "MAX_LEVELS", "cut_nesting"]

MAX_LEVELS: Final = 200
"""The maximum number of nesting levels in a message. Deeper values are replaced with null. No schema or result
needs so many levels.
"""

MAX_CUT_BYTES: Final = 1024 * 1024
"""The maximum size, in bytes, of a message in which deeply nested values are replaced. Larger messages are not
scanned, because the scan blocks the event loop.
"""

_TOKEN: Final = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)


def cut_nesting(message: bytes) -> bytes:
    """Return a copy of the message in which null replaces values that are nested more than `MAX_LEVELS` levels
    deep. A message larger than `MAX_CUT_BYTES` is not changed.
    """
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
