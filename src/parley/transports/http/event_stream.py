"""A stream of server-sent events to one HTTP client, as an outbox.

Sending never waits, because the stream buffers the bytes that the client has not read. While more bytes than the
high-water mark are unread, no further events are sent, so a client that does not read uses little memory and does
not delay other clients.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["COMMENT_SECONDS", "EventStream"]

HIGH_WATER_BYTES: Final = 256 * 1024
"""The high-water mark in bytes. While more bytes are unread, no events are sent. The mark is lower than the mark
for stdio, because there may be a thousand streams.
"""
LOW_WATER_BYTES: Final = 64 * 1024
MAX_UNREAD_BYTES: Final = 160 * 1024 * 1024
"""The maximum number of unread bytes. A stream that exceeds this number is closed. While more bytes than the
high-water mark are unread, only messages that cannot wait, such as responses, are sent.
"""
WRITE_BYTES: Final = 256 * 1024
"""The maximum number of bytes that are passed to the connection at a time, unless a single message is larger."""
COMMENT_SECONDS: Final = 15.0
"""The time in seconds without a message after which a comment is sent, so that proxies keep the connection open."""


class EventStream:
    """The outbox of one HTTP stream. `run` writes its messages to a connection."""

    def __init__(self, *, comment_seconds: float = COMMENT_SECONDS) -> None:
        self.closed = False
        self._comment_seconds = comment_seconds
        self._loop = asyncio.get_running_loop()
        self._events: deque[bytes] = deque()
        self._unread = 0
        self._full = False
        self._ending = False
        self._frame: _OpenFrame | None = None
        self._held: list[tuple[bytes, str | None]] = []
        """Messages that are waiting for the end of the message that is being sent in parts."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._on_closed: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def writable(self) -> bool:
        return not self._full and self._frame is None

    @property
    def is_in_message(self) -> bool:
        """True while a message is being sent in parts."""
        return self._frame is not None

    def send(self, frame: bytes, event_id: str | None = None) -> None:
        """Send one message. A client that reconnects sends the last `event_id` that it has received. A message
        without an `event_id` does not change this last id.
        """
        if self.closed or self._ending:
            return
        if self._frame is not None:
            self._held.append((frame, event_id))
            return
        prefix = b"data: " if event_id is None else b"id: %b\ndata: " % event_id.encode()
        self._append(b"%b%b\n\n" % (prefix, frame))

    def begin_frame(self, event_id: str | None = None) -> _OpenFrame:
        """Begin a message that is sent in parts, and return the message. Messages that are passed to `send` before
        the end of this message wait for its end. `event_id` has the same meaning as for `send`.
        """
        assert self.writable
        frame = self._frame = _OpenFrame(self, event_id)
        return frame

    def write_part(self, part: bytes) -> None:
        """Send the next part of the open message."""
        if not self.closed:
            self._append(part)

    def end_frame(self) -> None:
        """End the open message, and send the messages that were waiting for its end."""
        self._frame = None
        held, self._held = self._held, []
        for frame, event_id in held:
            self.send(frame, event_id)
        if not self._full:
            self._loop.call_soon(self._wake)
        self._changed.set()

    @property
    def is_behind(self) -> bool:
        """True if the client has left more than `LOW_WATER_BYTES` unread. The sender of the open message then waits
        before it sends the next part.
        """
        return self._unread > LOW_WATER_BYTES

    def _append(self, data: bytes) -> None:
        self._events.append(data)
        self._unread += len(data)
        self._drained.clear()
        self._changed.set()
        if self._unread >= HIGH_WATER_BYTES:
            self._full = True
            if self._unread > MAX_UNREAD_BYTES:
                self.close()

    def when_writable(self, wake: Callable[[], None]) -> None:
        if self.closed:
            return
        self._waiting.append(wake)
        if self.writable:
            self._loop.call_soon(self._wake)

    def on_closed(self, do: Callable[[], None]) -> None:
        """Call `do` once when the stream closes, or immediately if the stream is already closed."""
        if self.closed:
            do()
        else:
            self._on_closed.append(do)

    async def flush(self) -> None:
        """Wait until all messages have been written or the stream is closed."""
        await self._drained.wait()

    def end(self) -> None:
        """Close the stream after all messages have been written."""
        self._ending = True
        self._changed.set()

    def close(self) -> None:
        """Close the stream: discard unwritten messages, and all messages that are sent after this call."""
        if self.closed:
            return
        self.closed, self._full, self._unread = True, False, 0
        self._events.clear()
        self._held.clear()
        self._waiting.clear()
        if self._frame is not None:
            self._frame.wake()
            self._frame = None
        self._changed.set()
        self._drained.set()
        done, self._on_closed = self._on_closed, []
        for do in done:
            do()

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the messages until the stream ends. `write` returns when the connection has accepted the bytes."""
        try:
            await write(b":\n\n")  # the comment shows the client immediately that the stream is open
            while not self.closed:
                if self._events:
                    await self._write(write)
                elif self._ending and self._frame is None:
                    return
                else:
                    await self._wait(write)
        finally:
            self.close()

    async def _write(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        events, size = self._events, 0
        piece = []
        while events and (not size or size + len(events[0]) <= WRITE_BYTES):
            piece.append(events.popleft())
            size += len(piece[-1])
        await write(b"".join(piece) if len(piece) > 1 else piece[0])
        if self.closed:
            return
        self._unread -= size
        if not events:
            self._drained.set()
        if self._full and self._unread <= LOW_WATER_BYTES:
            self._full = False
        if self._frame is not None:
            self._frame.wake()
        self._wake()

    async def _wait(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(self._comment_seconds):
                await self._changed.wait()
        except TimeoutError:
            if self._frame is None:  # a comment in the middle of a message would corrupt the message
                await write(b":\n\n")

    def _wake(self) -> None:
        """Wake the senders that wait for space in the buffer, one after another, until the buffer is full."""
        for _ in range(len(self._waiting)):
            if not self.writable or not self._waiting:
                return
            self._waiting.popleft()()


class _OpenFrame:
    """A message that is sent in parts."""

    def __init__(self, stream: EventStream, event_id: str | None) -> None:
        self._stream, self._room = stream, asyncio.Event()
        stream.write_part(b"data: " if event_id is None else b"id: %b\ndata: " % event_id.encode())

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def write(self, part: bytes) -> None:
        self._stream.write_part(part)

    async def room(self) -> None:
        await asyncio.sleep(0)  # let other tasks run
        while not self._stream.closed and self._stream.is_behind:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        if not self._stream.closed:
            self._stream.write_part(b"\n\n")
            self._stream.end_frame()

    def wake(self) -> None:
        self._room.set()
