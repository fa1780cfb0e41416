"""Keeps the event loop responsive while another thread imports modules."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["SWITCH_SECONDS", "short_switch_interval"]

SWITCH_SECONDS: Final = 0.0005
"""The maximum time, in seconds, for which an import holds the interpreter lock before the event loop can
continue.
"""


class _Shortened:
    """The number of `short_switch_interval` blocks that are running in all threads, with the switch interval to
    restore.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.before = 0.0
        """The switch interval before the first of these blocks began, in seconds."""


_shortened: Final = _Shortened()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shorten the interpreter's switch interval to `SWITCH_SECONDS` while the `with` block runs, so that waiting
    threads get the interpreter lock sooner. Several threads may run such blocks at the same time. The interval is
    restored when no such block is running.
    """
    with _shortened.lock:
        if not _shortened.count:
            _shortened.before = sys.getswitchinterval()
            sys.setswitchinterval(min(_shortened.before, SWITCH_SECONDS))
        _shortened.count += 1
    try:
        yield
    finally:
        with _shortened.lock:
            _shortened.count -= 1
            if not _shortened.count:
                sys.setswitchinterval(_shortened.before)
