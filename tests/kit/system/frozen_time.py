"""Stops the clock of the test process, so that no time limit in it is reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["frozen_time"]


@contextmanager
def frozen_time() -> Iterator[None]:
    """Stop the clocks of Python, including the clock of the event loop, until the end of the block.

    During the block, no sleep and no timeout of the event loop ends, so the test must wait for events. The clocks
    of child processes are not stopped.
    """
    now, monotonic = time.time(), time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: now)
        patched.setattr(time, "monotonic", lambda: monotonic)
        yield
