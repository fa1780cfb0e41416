"""The signals that end a program, from where they are first held back to where somebody takes them."""

from __future__ import annotations

import signal
from typing import Final

__all__ = ["KILLED", "SIGNALS"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

KILLED: Final = 128
"""The exit code of what a signal has ended, as the shell says it: this and the number of the signal."""
