"""The port of frames sent to one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["FrameOutbox", "OpenFrame", "Outbox"]


class Outbox(Protocol):
    """Sends frames to one client, in order. Sending never waits and never fails."""

    @property
    def writable(self) -> bool:
        """False while more bytes are unread than the high-water mark. A sender that can wait should wait then."""
        ...

    def send(self, frame: bytes) -> None:
        """Send one message, without its line end. Messages of the same tick of the event loop are written
        together.
        """
        ...

    def when_writable(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when the outbox is writable again. Waiters are called in the order of their
        registration, and not after the client has left.
        """
        ...


class OpenFrame(Protocol):
    """One message that is sent in parts."""

    @property
    def closed(self) -> bool:
        """True if the client has left: nothing more is sent."""
        ...

    def write(self, part: bytes) -> None:
        """Send the next part."""
        ...

    async def room(self) -> None:
        """Wait until the client has read enough for the next part, or has left."""
        ...

    def end(self) -> None:
        """End the message, and send the messages that wait for its end."""
        ...


class FrameOutbox(Outbox, Protocol):
    """An outbox that can send a message in parts."""

    def begin_frame(self) -> OpenFrame:
        """Begin a message that is sent in parts. The outbox must be writable; it is not writable until the
        message ends. Messages that are sent meanwhile wait for its end.
        """
        ...
