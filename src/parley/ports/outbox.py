"""The interface for sending frames to one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["FrameOutbox", "OpenFrame", "Outbox"]


class Outbox(Protocol):
    """Sends frames to one client, in order. Sending never waits and never fails."""

    @property
    def writable(self) -> bool:
        """False while more bytes than the high-water mark are waiting for the client to read them. A sender should
        then wait (`when_writable`) if it can. Sending is still possible.
        """
        ...

    def send(self, frame: bytes) -> None:
        """Send one message. `frame` has no line end.

        Messages that are sent in the same iteration of the event loop are written together.
        """
        ...

    def when_writable(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as the outbox is writable. If the outbox is already writable, call `wake` soon
        after this method returns.

        Callbacks are called in the order of their registration. They are not called after the client has
        disconnected.
        """
        ...


class OpenFrame(Protocol):
    """A message that is sent in parts."""

    @property
    def closed(self) -> bool:
        """True if the client has disconnected. Further parts are then discarded."""
        ...

    def write(self, part: bytes) -> None:
        """Send the next part of the message."""
        ...

    async def room(self) -> None:
        """Wait until the client has read enough for the next part to be sent, or until the client has
        disconnected.
        """
        ...

    def end(self) -> None:
        """End the message. Then send the other messages that were delayed since the message began."""
        ...


class FrameOutbox(Outbox, Protocol):
    """An outbox that can send a message in parts."""

    def begin_frame(self) -> OpenFrame:
        """Begin a message that is sent in parts, and return the object to which the parts are written.

        The outbox must be writable. Until the message ends, the outbox is not writable, and other messages are
        delayed.
        """
        ...
