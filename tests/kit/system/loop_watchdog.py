"""Measures the callbacks of an event loop in CPU time, which is the same on a busy machine and on an idle one."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Watchdog", "watching_the_loop"]


class Watchdog:
    """A record of the longest callback so far."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.callback = ""

    def reset(self) -> None:
        self.cpu_seconds, self.callback = 0.0, ""


@contextmanager
def watching_the_loop() -> Iterator[Watchdog]:
    """Measure each callback of the event loops of this process.

    The garbage collector is disabled in the block. A server runs it rarely, and here it would also collect objects
    of earlier tests.
    """
    watchdog, run = Watchdog(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > watchdog.cpu_seconds:
            watchdog.cpu_seconds, watchdog.callback = took, repr(handle)

    gc.disable()
    asyncio.Handle._run = measured  # type: ignore[method-assign,assignment]  # it is not ours
    try:
        yield watchdog
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]  # it is not ours
        gc.enable()
