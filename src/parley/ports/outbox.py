"""The way out to one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Outbox"]


class Outbox(Protocol):
    """Frames to one client, in order. Sending never waits and never fails."""

    @property
    def writable(self) -> bool:
        """False while more is unread than the high-water mark: whoever can wait should."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand over one message, without its line end; it leaves with the others of this loop tick."""
        ...

    def when_writable(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when there is room again; those who wait take turns. Not called after the end."""
        ...
