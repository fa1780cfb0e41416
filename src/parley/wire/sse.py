"""Splits bytes into server-sent events with their ids. The module does no I/O."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["EventFramer", "EventTooLong", "ServerSentEvent"]

MOST_RETRY_DIGITS: Final = 9
MESSAGES: Final = (b"", b"message")
"""The values of the field `event` for events that carry messages."""


class EventTooLong(Exception):
    """Raised when an event is longer than the limit."""


class ServerSentEvent(Struct, frozen=True):
    """One server-sent event."""

    data: bytes
    id: str | None
    """The last id that the stream sent, with this event or an earlier one; None if the stream has sent no id."""


class EventFramer:
    r"""Splits a byte stream into events that carry messages, and tracks the id for resuming the stream.

    Lines end in `\n`, `\r\n` or `\r`. An event that is incomplete at the end of the stream is dropped. `SseFramer`
    is faster and ignores ids.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.last_id: str | None = None
        """The id with which the stream can be resumed; None if the stream has sent no id."""
        self.retry_seconds: float | None = None
        """The delay that the server requests before the stream is resumed, in seconds; None if it requests none."""
        self._limit = limit
        self._line: list[bytes] = []
        """The chunks of an incomplete line."""
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        """The size of the data in bytes. Each line counts one byte more, because empty lines take memory, too."""
        self._id: str | None = None
        """The id in the incomplete event; None if the event has no id."""
        self._name = b""
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes.

        Raises:
            EventTooLong: an event is longer than the limit.
        """
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
        """Drop an incomplete event. Call this before feeding the first bytes of a resumed stream."""
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
            case b"retry" if value.isdigit() and len(value) <= MOST_RETRY_DIGITS:
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
