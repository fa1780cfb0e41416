"""A log for lines that another party can cause as often as it likes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LimitedLog"]

SECONDS: Final = 60.0
"""There is one line of each kind in this time."""


class LimitedLog:
    """Writes one line of each kind per minute, with the number of those that were left out before it."""

    def __init__(self, log: logging.Logger, *, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._kinds: dict[str, tuple[float, int]] = {}
        """By text: when the last line was written, and how many were left out since."""

    def warning(self, text: str, *args: object) -> None:
        """Log a warning. `text`, before its arguments are inserted, is the kind."""
        now = self._now()
        written_at, left_out = self._kinds.get(text, (now - SECONDS, 0))
        if now - written_at < SECONDS:
            self._kinds[text] = (written_at, left_out + 1)
            return
        self._kinds[text] = (now, 0)
        if left_out:
            self._log.warning(f"{text} (and %d more times since the last such line)", *args, left_out)
        else:
            self._log.warning(text, *args)
