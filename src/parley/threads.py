"""Threads that are started only where there is memory for them.

`threading.Thread.start` returns when the new thread runs. Where the memory ends in that moment, the new thread dies
first, and the caller waits for ever. So no thread is started below a reserve; the caller gets a `MemoryError`.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["checked_pool", "start_thread"]

Args = ParamSpec("Args")
Result = TypeVar("Result")

ROOM_BYTES: Final = 24 * 1024 * 1024
"""Memory that must be left: 8 MB for the stack of the thread, and what it needs before it runs our code."""


def start_thread(target: Callable[..., object], *args: Any, name: str) -> None:
    """Start a daemon thread.

    Raises:
        MemoryError: the limits of this process leave too little memory.
        RuntimeError: the system starts no more threads.
    """
    _check_room()
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def checked_pool(*, max_workers: int | None = None, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads whose `submit` raises `MemoryError` where memory is too short for a thread."""
    from concurrent.futures import Future, ThreadPoolExecutor  # start-up does not need it

    class CheckedPool(ThreadPoolExecutor):
        def submit(self, fn: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs) -> Future[Result]:
            _check_room()
            return super().submit(fn, *args, **kwargs)

    return CheckedPool(max_workers=max_workers, thread_name_prefix=name)


def _check_room() -> None:
    most = min(
        (
            limit
            for limit, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA))
            if limit != resource.RLIM_INFINITY
        ),
        default=None,
    )
    if most is None:
        return
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[0])
    if most - pages * resource.getpagesize() < ROOM_BYTES:
        raise MemoryError("too little memory is left to start a thread")
