"""The open streams of one conversation to clients of this process. When a client opens an exclusive stream, all
other streams of the conversation end. This is called a takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from parley.ports.clock import Clock

__all__ = ["OpenStreams"]


class OpenStreams:
    """The streams of one conversation that are open in this process, each with the time when it was opened."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[Hashable, tuple[float, Callable[[str], None]]] = {}

    def add(self, stream: Hashable, end: Callable[[str], None]) -> None:
        """Add a stream. When a takeover ends the stream, `end` is called with the name of the principal that opened
        the exclusive stream.
        """
        self._streams[stream] = self._clock.now(), end

    def remove(self, stream: Hashable) -> None:
        """Remove a stream. Do nothing if the stream is not open."""
        self._streams.pop(stream, None)

    def take_over(self, stream: Hashable, by: str) -> float:
        """End all streams of the conversation in this process, except `stream`. `stream` is the exclusive stream,
        and `by` is the name of the principal that opened it.

        Return the time when `stream` was opened, in seconds since the epoch. Other processes use this time as the
        time of the takeover.
        """
        opened_at, _ = self._streams[stream]
        for other in tuple(self._streams):
            if other is not stream:
                self._end(other, by)
        return opened_at

    def end(self, by: str, *, opened_before: float) -> None:
        """End the streams that were opened before a takeover by the principal `by` in another process.

        `opened_before` is the time of the takeover, in seconds since the epoch.
        """
        for stream, (opened_at, _) in tuple(self._streams.items()):
            if opened_at < opened_before:
                self._end(stream, by)

    def _end(self, stream: Hashable, by: str) -> None:
        if (found := self._streams.pop(stream, None)) is not None:
            found[1](by)
