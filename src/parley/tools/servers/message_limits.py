"""Limits on one message of a tool server, checked before the message is decoded.

Bytes alone do not bound memory: two bytes such as `{}` become an object of 64, and the library's
validation keeps a record of every value that does not fit.
"""

from __future__ import annotations

from typing import Final

from parley.tools.servers.failures import too_long, too_many_values

__all__ = ["MAX_INITIALIZE_BYTES", "MAX_VALUES", "EventSize", "excess"]

MAX_VALUES: Final = 2_000_000
"""How many values a message may hold. Each costs about 150 bytes of memory at most, besides its text."""

MAX_INITIALIZE_BYTES: Final = 1024 * 1024
"""The longest answer to `initialize`, which the library validates field by field."""

_BLANK_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


def excess(message: bytes, max_bytes: int) -> str | None:
    """Which limit the message exceeds, in words; None if it exceeds none."""
    if len(message) > max_bytes:
        return too_long(max_bytes)
    return too_many_values(MAX_VALUES) if _values(message) > MAX_VALUES else None


class EventSize:
    """The size of the server-sent event that is being received. Counts up to one read more than it has."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = self._values = 0
        self._tail = b""

    def add(self, data: bytes) -> str | None:
        """Count `data`; return which limit an event exceeds that it belongs to, in words, or None."""
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
    """How many JSON values stand in `data` at most; the same characters inside a string count as well."""
    return data.count(b",") + data.count(b"{") + data.count(b"[")
