"""Truncates a command's output for the model and for the event that reports the end of the command.

The module counts bytes and lines, and does not interpret their content.
"""

from __future__ import annotations

import codecs
from typing import Final

from parley.conversation.records import StreamOutput

__all__ = ["MAX_BYTES", "MAX_CHARACTERS_IN_EVENT", "MAX_LINES", "both_for_model", "for_end_event", "for_model"]

MAX_BYTES: Final = 10240
"""The maximum number of bytes of a command's output that the model receives, not counting the line that states how
much was removed.
"""
MAX_LINES: Final = 256
"""The maximum number of lines of a command's output that the model receives."""
MAX_CHARACTERS_IN_EVENT: Final = 5120
"""The maximum number of characters of a stream's output in the event that reports the end of the command."""


def for_model(output: StreamOutput, *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> str:
    """Return the output of one stream for the model (docs/protocol.md#shell).

    Output that exceeds `max_bytes` or `max_lines` is removed from the middle, because the start shows what ran and
    the end shows the result. A line in between states how much was removed.
    """
    head, tail = output.head, output.tail
    if output.size == len(head) + len(tail):
        head = tail = head + tail
    if output.size <= max_bytes and _line_count(output, tail) <= max_lines:
        return head.decode(errors="replace")
    beginning = _first_lines(head[: max_bytes // 2], max_lines // 2)
    # With `final` False, an incomplete character at the end is not decoded and counts as removed.
    before, used = codecs.utf_8_decode(beginning, "replace", False)
    end = _last_lines(_from_a_character(tail[-(max_bytes // 2) :]), max_lines // 2)
    lines = output.lines - beginning.count(b"\n", 0, used) - end.count(b"\n")
    between = "" if not before or before.endswith("\n") else "\n"
    marker = f"[... {lines} lines, {output.size - used - len(end)} bytes truncated ...]\n"
    return before + between + marker + end.decode(errors="replace")


def both_for_model(stdout: StreamOutput, stderr: StreamOutput) -> tuple[str, str]:
    """Return stdout and stderr of a failed command for the model. The limits apply to both streams together.

    Each stream may use half of each limit, and the part of the other half that the other stream does not use.
    """
    wanted = [(out.size, _line_count(out, out.tail or out.head)) for out in (stdout, stderr)]
    (bytes_out, lines_out), (bytes_err, lines_err) = wanted
    err_bytes = min(bytes_err, max(MAX_BYTES // 2, MAX_BYTES - bytes_out))
    # At least two lines, because a single line that is too long is split in two by the line between them.
    err_lines = min(max(lines_err, 2), max(MAX_LINES // 2, MAX_LINES - max(lines_out, 2)))
    return (
        for_model(stdout, max_bytes=MAX_BYTES - err_bytes, max_lines=MAX_LINES - err_lines),
        for_model(stderr, max_bytes=err_bytes, max_lines=err_lines),
    )


def for_end_event(output: StreamOutput) -> str:
    """Return the start of one stream's output for the event that reports the end of the command. No text is added
    to the output.
    """
    head = output.head + output.tail if output.size == len(output.head) + len(output.tail) else output.head
    beginning = _first_lines(head[:MAX_BYTES], MAX_LINES)
    whole = len(beginning) == output.size
    return codecs.utf_8_decode(beginning, "replace", whole)[0][:MAX_CHARACTERS_IN_EVENT]


def _line_count(output: StreamOutput, end: bytes) -> int:
    """Return the number of lines in `output`, whose last bytes are `end`. The last line is counted even if it does
    not end with a newline.
    """
    return output.lines + (not end.endswith(b"\n") and output.size > 0)


def _first_lines(data: bytes, count: int) -> bytes:
    place = 0
    for _ in range(count):
        place = data.find(b"\n", place) + 1
        if not place:
            return data
    return data[:place]


def _last_lines(data: bytes, count: int) -> bytes:
    place = len(data) - data.endswith(b"\n")
    for _ in range(count):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return data
    return data[place + 1 :]


def _from_a_character(data: bytes) -> bytes:
    """Return the data without an incomplete UTF-8 character at its start. At most three bytes are removed."""
    for place, byte in enumerate(data[:3]):
        if byte & 0xC0 != 0x80:
            return data[place:]
    return data[3:]
