"""Selects the lines of a command's output to show: the first lines as they arrive, the last lines at the end."""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from collections import deque
from typing import Final

__all__ = ["HEAD_LINES", "TAIL_LINES", "CommandLines"]

HEAD_LINES: Final = 20
"""The default maximum number of lines that are shown from the beginning of a command's output. Each of these lines
is shown as soon as it arrives.
"""

TAIL_LINES: Final = 10
"""The default maximum number of lines that are shown from the end of a command's output, in addition to the first
`HEAD_LINES` lines.
"""

MAX_LINE: Final = 10_000
"""The maximum number of characters of a line. A longer line is split."""

_UTF8: Final = getincrementaldecoder("utf-8")


class CommandLines:
    """Splits the output of one command into lines, and selects the lines to show."""

    def __init__(self, *, head: int = HEAD_LINES, tail: int = TAIL_LINES) -> None:
        self._head = head
        self._decoders: dict[str, IncrementalDecoder] = {}
        self._partial: dict[str, str] = {}
        """The incomplete last line of each stream, keyed by the name of the stream."""
        self._shown = self._later = 0
        """`_shown` is the number of lines that were shown as they arrived. `_later` is the number of all lines that
        followed.
        """
        self._tail: deque[str] = deque(maxlen=tail)

    def add(self, stream: str, chunk: bytes) -> list[str]:
        """Add output that the command has written to `stream`, and return the lines to show now."""
        decoder = self._decoders.setdefault(stream, _UTF8("replace"))
        *lines, rest = (self._partial.get(stream, "") + decoder.decode(chunk)).split("\n")
        while len(rest) > MAX_LINE:
            lines.append(rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._partial[stream] = rest
        return self._add(lines)

    def end(self) -> tuple[list[str], int]:
        """End the output. Return the last lines to show, and the number of lines before them that are not shown."""
        last = self._add([text for text in self._partial.values() if text])
        tail = [*last, *self._tail]
        return tail, self._later - len(self._tail)

    def _add(self, lines: list[str]) -> list[str]:
        lines = [_last_state(line) for line in lines]
        now, later = lines[: self._head - self._shown], lines[self._head - self._shown :]
        self._shown += len(now)
        self._later += len(later)
        self._tail.extend(later)
        return now


def _last_state(line: str) -> str:
    """Return the part of a line after its last carriage return, which is the last state of a progress bar."""
    return line.removesuffix("\r").rpartition("\r")[2]
