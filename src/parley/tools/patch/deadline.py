"""The time limit and the cancellation of work on a patch."""

from __future__ import annotations

import time
from typing import Final

from parley.tools.errors import PatchNotApplied

__all__ = ["SECONDS", "CancelToken", "Deadline"]

SECONDS: Final = 5.0
"""The maximum time, in seconds, for matching one patch. This time is sufficient for every useful patch within the
size limits.
"""


class CancelToken:
    """A flag that tells a thread to stop its work. The thread must check the flag, because Python cannot stop a
    thread from another thread.
    """

    __slots__ = ("_is_cancelled",)

    def __init__(self) -> None:
        self._is_cancelled = False

    def cancel(self) -> None:
        """Tell the thread to stop: its next call of `check` raises an error. Any thread may call this method."""
        self._is_cancelled = True

    def check(self) -> None:
        """Check that the work was not cancelled.

        Raises:
            PatchNotApplied: the work was cancelled.
        """
        if self._is_cancelled:
            raise PatchNotApplied("error: interrupted")


class Deadline:
    """Ends the matching of a patch when it takes too long or is cancelled."""

    def __init__(self, seconds: float = SECONDS, *, cancel: CancelToken | None = None) -> None:
        self._ends_at = time.monotonic() + seconds
        self._cancel = cancel or CancelToken()

    def check(self) -> None:
        """Check that the time limit has not passed and the work was not cancelled.

        Raises:
            PatchNotApplied: the time limit has passed, or the work was cancelled.
        """
        self._cancel.check()
        if time.monotonic() > self._ends_at:
            raise PatchNotApplied("error: the patch takes too long to match; make it smaller")
