"""Sends the messages of a session that belong to no request from the client: events of conversation streams, and
requests from the server. These messages are sent on the GET stream that the client opened last. While the client
has no GET stream, events are not read from the logs, and other messages are kept for the next GET stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from parley.ports.http import MessageStream
from parley.ports.outbox import OpenFrame

__all__ = ["PushOutbox"]

MAX_STREAMS: Final = 4
"""The maximum number of GET streams of one session. When the client opens another stream, the oldest stream is
closed, because its connection is probably lost.
"""
MAX_FRAMES: Final = 256
"""The maximum number of messages that are kept for the next GET stream. Beyond this number, the oldest messages are
discarded.
"""


class PushOutbox:
    """The outbox for the messages of a session that belong to no request."""

    def __init__(self, *, on_lost: Callable[[], None] = lambda: None) -> None:
        """Create the outbox.

        `on_lost` is called when the GET stream that was opened last closes while an older GET stream is still open.
        Later messages are then sent on the older stream.
        """
        self._on_lost = on_lost
        self._streams: list[MessageStream] = []
        self._kept: deque[bytes] = deque(maxlen=MAX_FRAMES)
        self._waiting: deque[Callable[[], None]] = deque()
        self._asked: MessageStream | None = None
        """The stream that calls `_wake` when it becomes writable; None if `_wake` is not registered."""
        self.closed = False

    @property
    def streams(self) -> int:
        """The number of open GET streams."""
        return len(self._streams)

    @property
    def writable(self) -> bool:
        stream = self._current
        return stream is not None and stream.writable

    @property
    def _current(self) -> MessageStream | None:
        return self._streams[-1] if self._streams else None

    def attach(self, stream: MessageStream) -> list[bytes]:
        """Send the messages that were kept while no GET stream was open, and all later messages, on `stream`.
        Return the kept messages.

        If an older stream is sending a message in parts, close the older stream. The whole message is then sent
        again.
        """
        if self.closed:
            stream.end()
            return []
        self._streams.append(stream)
        if len(self._streams) > MAX_STREAMS:
            self._streams[0].end()
        kept = list(self._kept)
        self._kept.clear()
        for frame in kept:
            stream.send(frame)
        stream.on_closed(lambda: self._lost(stream))
        for older in self._streams[:-1]:
            if older.is_in_message:
                older.close()
        self._request_wake()
        return kept

    def send(self, frame: bytes, event_id: str | None = None) -> None:
        stream = self._current
        if stream is not None:
            stream.send(frame, event_id)
        elif not self.closed:
            self._kept.append(frame)

    def begin_frame(self, event_id: str | None = None) -> OpenFrame:
        """Begin a message that is sent in parts. The outbox must be writable."""
        assert self._streams
        return self._streams[-1].begin_frame(event_id)

    def when_writable(self, wake: Callable[[], None]) -> None:
        if not self.closed:
            self._waiting.append(wake)
            self._request_wake()

    async def flush(self) -> None:
        """Wait until all messages on the current stream have been written. Return immediately if no stream is
        open.
        """
        if (stream := self._current) is not None:
            await stream.flush()

    def close(self) -> None:
        """End all GET streams."""
        self.closed = True
        self._waiting.clear()
        self._kept.clear()
        for stream in tuple(self._streams):
            stream.end()

    def _lost(self, stream: MessageStream) -> None:
        carried = stream is self._current
        self._streams.remove(stream)
        if self._asked is stream:
            self._asked = None
        if carried and self._streams and not self.closed:
            self._on_lost()
            self._request_wake()

    def _request_wake(self) -> None:
        """Register `_wake` with the current stream, so that `_wake` is called when the stream is writable."""
        stream = self._current
        if self._waiting and stream is not None and self._asked is not stream:
            self._asked = stream
            if stream.writable:
                asyncio.get_running_loop().call_soon(self._wake, stream)
            else:
                stream.when_writable(lambda: self._wake(stream))

    def _wake(self, stream: MessageStream) -> None:
        """Wake the waiting senders one after another, as long as the outbox is writable. `stream` is the stream
        that has become writable.
        """
        if self._asked is stream:
            self._asked = None
        for _ in range(len(self._waiting)):
            if not self.writable or not self._waiting:
                break
            self._waiting.popleft()()
        self._request_wake()
