"""Sets the disposition of SIGHUP for programs that a test starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hangups"]


@contextmanager
def hangups(*, ignored: bool) -> Iterator[None]:
    """Start programs with SIGHUP ignored, as under `nohup`, or with the default disposition."""
    # A program does not inherit a handler. The handler keeps SIGHUP from ending the test.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
