"""The port of the clock, so that tests can replace it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """The time of day, and waiting."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds; a cancellation ends the wait at once."""
        ...
