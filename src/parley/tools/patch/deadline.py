"""Limits on the time that the work on a patch may take."""

from __future__ import annotations

import time
from typing import Final

from parley.tools.errors import PatchRefused

__all__ = ["SECONDS", "CancelToken", "Deadline"]

SECONDS: Final = 5.0
"""Time for matching one patch; ample for the largest useful patch within the limits."""


class CancelToken:
    """A flag that ends the work of a thread. The thread must check it, because a thread cannot be ended from
    outside.
    """

    __slots__ = ("_is_cancelled",)

    def __init__(self) -> None:
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the work. May be called from any thread."""
        self._is_cancelled = True

    def check(self) -> None:
        """Check whether to continue.

        Raises:
            PatchRefused: the work was cancelled.
        """
        if self._is_cancelled:
            raise PatchRefused("error: interrupted")


class Deadline:
    """Ends the matching of a patch when it takes too long or is cancelled."""

    def __init__(self, seconds: float = SECONDS, *, cancel: CancelToken | None = None) -> None:
        self._ends_at = time.monotonic() + seconds
        self._cancel = cancel or CancelToken()

    def check(self) -> None:
        """Check whether to continue.

        Raises:
            PatchRefused: the time is over, or the work was cancelled.
        """
        self._cancel.check()
        if time.monotonic() > self._ends_at:
            raise PatchRefused("error: the patch takes too long to match; make it smaller")
