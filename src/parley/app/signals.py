"""The signals that end a program, from where they are first held back to where somebody takes them."""

from __future__ import annotations

import signal
from typing import Final

__all__ = ["KILLED", "SIGNALS", "ignore_signals"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

KILLED: Final = 128
"""The exit code of what a signal has ended, as the shell says it: this and the number of the signal."""


def ignore_signals() -> None:
    """From here on: one that comes late must not turn an orderly end into a kill.

    The loop would give them back when it closes, and there are threads that do not block them.
    """
    import asyncio  # long loaded by now; whoever only wants to hold signals back does not wait for it

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
