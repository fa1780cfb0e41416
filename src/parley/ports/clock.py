"""The interface of the clock. Tests replace the real clock with their own implementation."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """A source of the current time and of delays."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for the given number of seconds. If the caller is cancelled, the wait ends immediately."""
        ...
