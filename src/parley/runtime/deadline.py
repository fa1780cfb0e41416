"""Deadlines, measured by the clock of the event loop."""

from __future__ import annotations

import asyncio

__all__ = ["Deadline"]


class Deadline:
    """A point in time after which an operation fails."""

    def __init__(self, seconds: float) -> None:
        """Create a deadline that is `seconds` seconds from now."""
        self._loop = asyncio.get_running_loop()
        self.at = self._loop.time() + seconds
        """The time of the deadline, in seconds on the clock of the event loop."""

    @property
    def is_past(self) -> bool:
        return self._loop.time() > self.at
