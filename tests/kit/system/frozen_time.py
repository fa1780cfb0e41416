"""Stops the clock of the test process, so that no time limit in it is reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["frozen_time"]


@contextmanager
def frozen_time() -> Iterator[None]:
    """Stop the clocks of Python, and with them the clock of the event loop. Afterwards the real time counts again.

    In the meantime no sleep and no timeout of the event loop ends, so the test has to wait for events. Child
    processes have their own clocks, which go on.
    """
    now, monotonic = time.time(), time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: now)
        patched.setattr(time, "monotonic", lambda: monotonic)
        yield
