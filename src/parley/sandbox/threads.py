"""Runs file operations in threads, so that they do not block the event loop and are always completed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

from parley.common.shield import run_to_completion
from parley.common.threads import reporting, start_thread
from parley.errors import CommandNotStarted

__all__ = ["in_thread"]

T = TypeVar("T")

_MAX_IDLE: Final = 4
"""The maximum number of idle threads that are kept for more work. Idle threads are kept because starting a thread
can take as long as the work itself.
"""

_idle: Final[list[_Worker]] = []


async def in_thread(work: Callable[[], T], *, needs_one: bool = True) -> T:
    """Run `work` in another thread and return its result. The work must end by itself, because it cannot be
    cancelled.

    If the calling task is cancelled, `CancelledError` is raised when the work is done. Work that waits for a file
    system does not block other work, and does not keep the process from exiting. If no thread can be started and
    `needs_one` is False, the work is done in the calling thread.

    Raises:
        CommandNotStarted: no thread can be started and `needs_one` is True. `work` was not called.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        worker = _idle.pop()
    except IndexError:
        try:
            worker = _Worker()
        except (MemoryError, RuntimeError):
            if needs_one:
                raise CommandNotStarted("the server cannot start more threads") from None
            return work()
    worker.do(reporting(work, outcome))
    return await run_to_completion(outcome)


class _Worker:
    """A thread that calls the functions passed to `do` one after another."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        start_thread(self._run, name="sandbox")

    def do(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()
            if len(_idle) >= _MAX_IDLE:
                return
            _idle.append(self)
