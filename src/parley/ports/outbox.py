"""The port of frames sent to one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Outbox"]


class Outbox(Protocol):
    """Sends frames to one client, in order. Sending never waits and never fails."""

    @property
    def writable(self) -> bool:
        """False while more bytes are unread than the high-water mark. A sender that can wait should wait then."""
        ...

    def send(self, frame: bytes) -> None:
        """Send one message, without its line end, together with the others of this tick of the event loop."""
        ...

    def when_writable(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when the outbox is writable again. Waiters are called in turn, and not after the
        end."""
        ...
