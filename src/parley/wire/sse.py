"""Splits bytes into server-sent events: `EventFramer` tracks the ids of the events, and `DataFramer` ignores them.
The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from parley.errors import ReplyTooLarge
from parley.wire.framing import MAX_LINE_BYTES

__all__ = [
    "BYTE_ORDER_MARK",
    "LARGE_BYTES",
    "DataFramer",
    "ErrorData",
    "EventFramer",
    "EventTooLong",
    "ServerSentEvent",
]

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""The bytes that may precede the first line of a stream."""

FIRST_OF_DATA: Final = ord("d")
"""The first byte of a line that contains the field `data`."""

LARGE_BYTES: Final = 64 * 1024
"""The size of an event in bytes above which `DataFramer` calls `check_large` before the event is decoded."""

ERROR_LINES: Final = (b"event: error", b"event:error")
MAX_ERROR_LINE_BYTES: Final = 12
"""The length in bytes of the longest line in `ERROR_LINES`. Longer lines are not compared with `ERROR_LINES`."""

MAX_RETRY_DIGITS: Final = 9
MESSAGES: Final = (b"", b"message")
"""The values of the field `event` of events that carry messages. Other events are ignored."""


class EventTooLong(Exception):
    """Raised when an event is longer than the limit of the `EventFramer`."""


class ServerSentEvent(Struct, frozen=True):
    """One server-sent event."""

    data: bytes
    id: str | None
    """The last id that the stream sent, with this event or an earlier one; None if the stream has sent no id."""


class EventFramer:
    r"""Splits a byte stream into events that carry messages, and tracks the id for resuming the stream.

    Lines end in `\n`, `\r\n` or `\r`. An event that is incomplete at the end of the stream is discarded.
    `DataFramer` is faster and ignores ids.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.last_id: str | None = None
        """The id of the last event, after which the stream can be resumed; None if the stream has sent no id."""
        self.retry_seconds: float | None = None
        """The delay, in seconds, that the server requests before the stream is resumed; None if the server requests
        no delay.
        """
        self._limit = limit
        self._start = _Start()
        self._line: list[bytes] = []
        """The chunks of an incomplete line."""
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        """The size of the incomplete event's data, in bytes. Each line counts one byte more, because empty lines
        take memory, too.
        """
        self._id: str | None = None
        """The id in the incomplete event; None if the event has no id."""
        self._name = b""
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete after `chunk` has been received.

        Raises:
            EventTooLong: an event is longer than the limit.
        """
        if not self._start.is_over:
            chunk = self._start.feed(chunk)
        if self._skip_newline and chunk:
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._skip_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[ServerSentEvent] = []
        for line in lines:
            if self._line:
                line = b"".join((*self._line, line))
                self._line.clear()
                self._line_bytes = 0
            if line:
                self._add_field(line)
            else:
                self._end_event(events)
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            self._check_size()
        return events

    def restart(self) -> None:
        """Discard the incomplete event. Call this method before the first bytes of a resumed stream are passed to
        `feed`.
        """
        self._start = _Start()
        self._line.clear()
        self._data.clear()
        self._line_bytes = self._data_bytes = 0
        self._id, self._name, self._skip_newline = None, b"", False

    def _check_size(self) -> None:
        if self._limit is not None and self._data_bytes + self._line_bytes > self._limit:
            raise EventTooLong

    def _add_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
                self._data_bytes += len(value) + (len(self._data) > 1)
                self._check_size()
            case b"event":
                self._name = value
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
                self.retry_seconds = int(value) / 1000
            case _:
                pass

    def _end_event(self, events: list[ServerSentEvent]) -> None:
        if self._id is not None:
            self.last_id = self._id or None
        if self._data and self._name in MESSAGES:
            events.append(ServerSentEvent(b"\n".join(self._data), self.last_id))
        self._data.clear()
        self._data_bytes, self._id, self._name = 0, None, b""


def _accept(events: Sequence[bytes]) -> None:
    pass


class ErrorData(bytes):
    """The data of a server-sent event whose name is `error`."""


class DataFramer:
    r"""Splits the byte stream of a model response into the data of its events.

    If the field `event` of an event has the value `error`, the data of this event is an `ErrorData`. Other values
    of this field are ignored, and so are all fields except `event` and `data`.

    Lines end in `\n`, `\r\n` or `\r`. An event that is incomplete at the end of the stream is discarded. The run
    time is linear in the number of bytes, for chunks of any size.
    """

    def __init__(
        self, limit: int = MAX_LINE_BYTES, *, check_large: Callable[[Sequence[bytes]], None] = _accept
    ) -> None:
        """Create the framer. `limit` is the maximum size of an event, in bytes. If a call of `feed` completes an
        event that may be larger than `LARGE_BYTES`, `check_large` is called with the data of all events that this
        call completes.
        """
        self._limit = limit
        self._check_large = check_large
        self._unchecked_bytes = min(limit, LARGE_BYTES)
        self._start = _Start()
        self._is_plain = False
        """True if the next chunk can begin neither with a byte order mark nor with the LF of a CRLF."""
        self._skip_newline = False
        self._unfinished: list[bytes] = []
        """The chunks of an incomplete line. They are joined only once, when the line is complete."""
        self._unfinished_bytes = 0
        self._data: list[bytes] = []
        """The data lines of the incomplete event."""
        self._data_bytes = 0
        """The size of `_data` in bytes. Each line counts one byte more, because empty lines take memory, too."""
        self._is_error = False
        """True if the name of the incomplete event is `error`."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of all events that are complete after `chunk` has been received.

        Raises:
            ReplyTooLarge: an event is longer than the limit, or `check_large` has raised this error.
        """
        if not self._is_plain:
            chunk = self._after_start(chunk)
        if b"\r" in chunk:
            self._skip_newline = chunk.endswith(b"\r")
            self._is_plain = not self._skip_newline
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._unfinished.append(chunk)
            self._unfinished_bytes += len(chunk)
            self._check(self._unfinished_bytes + self._data_bytes)
            return []
        if self._unfinished:
            chunk = b"".join((*self._unfinished, chunk))
            self._unfinished.clear()
        lines = chunk.split(b"\n")
        tail = lines.pop()
        data, is_error = self._data, self._is_error
        held_lines, held_bytes = len(data), self._data_bytes
        events: list[bytes] = []
        for line in lines:  # this is a hot path: a chunk often has hundreds of lines
            if not line:
                if data:
                    events.append(b"\n".join(data))
                    data.clear()
                    if is_error:
                        events[-1], is_error = ErrorData(events[-1]), False
                else:
                    is_error = False
            elif line[0] == FIRST_OF_DATA:
                if line[:6] == b"data: ":
                    data.append(line[6:])
                elif line[:5] == b"data:" or line == b"data":
                    data.append(line[5:])
            elif len(line) <= MAX_ERROR_LINE_BYTES and line in ERROR_LINES:
                is_error = True
        self._is_error = is_error
        if tail:
            self._unfinished.append(tail)
        self._unfinished_bytes = len(tail)
        if not data:
            self._data_bytes = 0
        elif events:  # all data lines came in this chunk
            self._data_bytes = sum(map(len, data)) + len(data)
        else:
            self._data_bytes += sum(map(len, data[held_lines:])) + len(data) - held_lines
        if held_bytes + len(chunk) > self._unchecked_bytes:
            for event in events:
                self._check(len(event))
            self._check(self._unfinished_bytes + self._data_bytes)
            self._check_large(events)
        return events

    def _after_start(self, chunk: bytes) -> bytes:
        """Return the chunk without a byte order mark and without the LF of a CRLF whose CR was in the previous
        chunk.
        """
        if not self._start.is_over:
            chunk = self._start.feed(chunk)
        if self._skip_newline and chunk:
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        self._is_plain = self._start.is_over and not self._skip_newline
        return chunk

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise ReplyTooLarge("bytes in one event of the stream", self._limit, setting="max_event_bytes")


class _Start:
    """Removes a byte order mark from the beginning of a stream."""

    def __init__(self) -> None:
        self.is_over = False
        """True if the first bytes of the stream have been examined."""
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that can be processed now. If the stream has sent only the beginning of what may be a
        byte order mark, keep these bytes until the next call.
        """
        chunk = self._held + chunk
        if len(chunk) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(chunk):
            self._held = chunk
            return b""
        self.is_over = True
        return chunk.removeprefix(BYTE_ORDER_MARK)
