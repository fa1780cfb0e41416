"""The signals that terminate a program."""

from __future__ import annotations

import signal
from typing import Final

__all__ = ["KILLED", "SIGNALS", "ignore_signals"]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

KILLED: Final = 128
"""The number that is added to the number of a signal to obtain the exit code of a program that the signal has
terminated.
"""


def ignore_signals() -> None:
    """Ignore `SIGNALS` from now on, so that a late signal does not kill a program that is shutting down.

    Blocking the signals is not enough, because some threads do not block them and the event loop restores the
    default handlers when it closes.
    """
    import asyncio  # imported here: callers that only block signals do not need it

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
