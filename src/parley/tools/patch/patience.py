"""How long a patch may be worked at: as long as somebody waits for it, and matching for some seconds."""

from __future__ import annotations

import time
from typing import Final

from parley.tools.errors import PatchRefused

__all__ = ["SECONDS", "Deadline", "Wanted"]

SECONDS: Final = 5.0
"""For all of one patch; ample for the largest that the limits allow and that anybody means."""


class Wanted:
    """Whether somebody still waits for what a thread works out. Nobody can end a thread: it has to ask."""

    __slots__ = ("_is_over",)

    def __init__(self) -> None:
        self._is_over = False

    def give_up(self) -> None:
        """May be called from any thread, at any time."""
        self._is_over = True

    def check(self) -> None:
        """
        Raises:
            PatchRefused: nobody waits any more.
        """
        if self._is_over:
            raise PatchRefused("error: interrupted")


class Deadline:
    """Counts the steps of matching, and ends it when it takes too long or nobody waits for it."""

    def __init__(self, seconds: float = SECONDS, *, wanted: Wanted | None = None) -> None:
        self.steps = 0
        """So far: whether they grow with the size of file and patch is for tests to see."""
        self._ends_at = time.monotonic() + seconds
        self._wanted = wanted or Wanted()

    def spend(self, steps: int) -> None:
        """
        Raises:
            PatchRefused: the time is over, or nobody waits any more.
        """
        self.steps += steps
        self._wanted.check()
        if time.monotonic() > self._ends_at:
            raise PatchRefused("error: the patch takes too long to match; make it smaller")
