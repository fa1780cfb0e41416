"""Limits on one message of a tool server, checked before the message is decoded.

A limit on bytes alone does not limit memory: two bytes such as `{}` become an object of 64 bytes, and the library's
validation keeps a record of every invalid value.
"""

from __future__ import annotations

from typing import Final

from parley.tools.servers.failures import too_long, too_many_values

__all__ = ["MAX_INITIALIZE_BYTES", "MAX_VALUES", "EventSize", "excess"]

MAX_VALUES: Final = 2_000_000
"""How many values a message may contain. Each takes at most about 150 bytes of memory, besides its text."""

MAX_INITIALIZE_BYTES: Final = 1024 * 1024
"""The longest answer to `initialize`, which the library validates field by field."""

_BLANK_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


def excess(message: bytes, max_bytes: int) -> str | None:
    """Return a text that names the limit that the message exceeds; None if it exceeds none."""
    if len(message) > max_bytes:
        return too_long(max_bytes)
    return too_many_values(MAX_VALUES) if _values(message) > MAX_VALUES else None


class EventSize:
    """Counts the size of the server-sent event that is being received, to within one read."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = self._values = 0
        self._tail = b""

    def add(self, data: bytes) -> str | None:
        """Count `data`; return a text that names the limit that the event exceeds, or None."""
        self._bytes += len(data)
        self._values += _values(data)
        if self._bytes > self._max_bytes:
            return too_long(self._max_bytes)
        if self._values > MAX_VALUES:
            return too_many_values(MAX_VALUES)
        seen = self._tail + data  # a blank line may be split between two reads
        self._tail = seen[-3:]
        if end := max(seen.rfind(blank) + len(blank) if blank in seen else 0 for blank in _BLANK_LINES):
            self._bytes, self._values = len(seen) - end, _values(seen[end:])
        return None


def _values(data: bytes) -> int:
    """Return an upper bound of the JSON values in `data`: characters inside strings count as well."""
    return data.count(b",") + data.count(b"{") + data.count(b"[")
