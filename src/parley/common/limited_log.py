"""Limits the rate of log lines for warnings that an untrusted party can trigger any number of times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LimitedLog"]

SECONDS: Final = 60.0
"""The minimum time, in seconds, between two log lines for the same warning text."""


class LimitedLog:
    """Writes at most one line per minute for each kind of warning. The kind is the warning text before arguments
    are inserted. A line states how many warnings of its kind were suppressed since the previous line.
    """

    def __init__(self, log: logging.Logger, *, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._kinds: dict[str, tuple[float, int]] = {}
        """Maps the text of each warning to the monotonic time of its last line and to the number of lines that were
        suppressed since then.
        """

    def warning(self, text: str, *args: object) -> None:
        """Log the warning `text` with `args` inserted, unless a warning with the same `text` was logged less than a
        minute ago.
        """
        now = self._now()
        written_at, left_out = self._kinds.get(text, (now - SECONDS, 0))
        if now - written_at < SECONDS:
            self._kinds[text] = (written_at, left_out + 1)
            return
        self._kinds[text] = (now, 0)
        if left_out:
            self._log.warning(f"{text} (and %d more times since the last line of this kind)", *args, left_out)
        else:
            self._log.warning(text, *args)
