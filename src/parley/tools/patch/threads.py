"""Work on files in threads of its own.

The event loop's own threads are few, are shared with everything else, and are joined when it
ends. A file system that does not answer would hold up all of that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


def in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Begin `work` in a new thread; the future has what comes of it.

    Cancelling the future does not end the work, and nothing waits for it at the end of the process.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(how: Callable[[Any], None], what: object) -> None:
        if not outcome.done():  # otherwise nobody waits any more
            how(what)

    def run() -> None:
        told: tuple[Callable[[Any], None], object]
        try:
            told = outcome.set_result, work()
        except BaseException as error:
            told = outcome.set_exception, error
        try:
            loop.call_soon_threadsafe(settle, *told)
        except RuntimeError:
            pass  # the loop has ended meanwhile

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
