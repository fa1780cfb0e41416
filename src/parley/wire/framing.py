"""Splits bytes into lines, each of which contains one JSON message. The module does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

__all__ = ["MAX_LINE_BYTES", "PREFIX_BYTES", "SUFFIX_BYTES", "LineFramer", "Overlong", "outline_of"]

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""The maximum length in bytes of a line, and of a server-sent event."""

PREFIX_BYTES: Final = 4096
"""The number of bytes that are kept from the beginning of an overlong message. The id of the message may be in
these bytes.
"""

SUFFIX_BYTES: Final = 4096
"""The number of bytes that are kept from the end of an overlong message. Many clients put the id of a message
at its end.
"""

SUFFIX_PARTS: Final = 64
"""The maximum number of received chunks that are joined to obtain the end of an overlong line. If the chunks are
tiny, the end has fewer than `SUFFIX_BYTES` bytes.
"""


TOO_LONG: Final = "message is longer than 64 MB"

LOOK_BYTES: Final = 1024 * 1024
"""The number of bytes of a line that are received between two calls of `why_too_large`."""


class Overlong(Struct, frozen=True):
    """The beginning and the end of a line that was discarded because of its length, and the reason for discarding
    it.
    """

    prefix: bytes
    suffix: bytes = b""
    why: str = TOO_LONG


def _accept(size: int) -> str | None:
    return None


class LineFramer:
    """Splits a byte stream into lines, and buffers at most one line."""

    def __init__(
        self, limit: int = MAX_LINE_BYTES, *, why_too_large: Callable[[int], str | None] = _accept
    ) -> None:
        """Create the framer. `limit` is the maximum length of a line, in bytes.

        `why_too_large` is called with the number of bytes of an incomplete line that were received so far. The
        function returns the reason why the line must be discarded; None if the line is acceptable.
        """
        self._limit, self._why_too_large = limit, why_too_large
        self._parts: list[bytes] = []
        self._held = 0
        self._overlong: Overlong | None = None

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        """Add `data`, the next bytes of the stream, and return the lines that these bytes complete, without their
        line ends. A discarded line is returned as an `Overlong`.
        """
        if b"\n" not in data:
            self._hold(data)
            return []
        first, *rest = data.split(b"\n")
        frames: list[bytes | Overlong] = [self._finish(first)]
        tail = rest.pop()
        frames += [line if len(line) <= self._limit else outline_of(line) for line in rest]
        self._hold(tail)
        return frames

    def end(self) -> list[bytes | Overlong]:
        """Return a list with the incomplete last line of the stream, as `feed` would return it. The list is empty
        if the stream ended after a complete line.
        """
        return [self._finish(b"")] if self._held else []

    def _hold(self, data: bytes) -> None:
        if not data:
            return
        before = self._held
        self._held += len(data)
        if (kept := self._overlong) is not None:
            self._overlong = Overlong(kept.prefix, (kept.suffix + data[-SUFFIX_BYTES:])[-SUFFIX_BYTES:], kept.why)
            return
        self._parts.append(data)
        if self._held > self._limit:
            self.skip(TOO_LONG)
        elif before // LOOK_BYTES != self._held // LOOK_BYTES and (why := self._why_too_large(self._held)):
            self.skip(why)

    def skip(self, why: str) -> None:
        """Turn the incomplete line into an `Overlong` with the reason `why`. Keep only the first `PREFIX_BYTES` and
        the last `SUFFIX_BYTES` of the line.
        """
        if not self._parts:
            return
        beginning, size = [], 0
        for part in self._parts:
            beginning.append(part[: PREFIX_BYTES - size])
            size += len(beginning[-1])
            if size >= PREFIX_BYTES:
                break
        end = b"".join(part[-SUFFIX_BYTES:] for part in self._parts[-SUFFIX_PARTS:])[-SUFFIX_BYTES:]
        self._parts.clear()
        self._overlong = Overlong(b"".join(beginning), end, why)

    def _finish(self, last: bytes) -> bytes | Overlong:
        self._hold(last)
        frame = b"".join(self._parts) if self._overlong is None else self._overlong
        self._parts.clear()
        self._held, self._overlong = 0, None
        return frame


def outline_of(frame: bytes | Overlong, why: str = TOO_LONG) -> Overlong:
    """Return an `Overlong` with the beginning and the end of the line `frame`, and with the reason `why`. If
    `frame` is already an `Overlong`, return `frame` unchanged.
    """
    return frame if isinstance(frame, Overlong) else Overlong(frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:], why)
