"""What SIGHUP is to the programs that a test starts, whatever it is to whoever started the tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hangups"]


@contextmanager
def hangups(*, ignored: bool) -> Iterator[None]:
    """Programs that are started meanwhile ignore it, as under `nohup`, or know nothing of it yet."""
    # A handler is not passed on to a program, and keeps us from being ended ourselves.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
