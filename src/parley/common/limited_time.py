"""Limits the processor time of a computation on untrusted text, such as a regular expression.

During such a computation, the event loop does not run, so neither Ctrl-C nor a timeout has an effect.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["TookTooLong", "limited_time"]


class TookTooLong(Exception):
    """Raised when a computation has used more processor time than its limit."""


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the `with` block if the block uses more than `seconds` of processor time. The limit is
    enforced only in the main thread, because other threads receive no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
