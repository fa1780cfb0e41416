"""Starts a thread only if there is enough memory for it. The result of work in a thread is returned as a future.

`threading.Thread.start` returns when the new thread has started to run. If memory runs out before that, the new
thread dies and the caller waits forever. Therefore, if less than `ROOM_BYTES` are free, no thread is started and
the caller gets a `MemoryError`.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["begin_in_thread", "checked_pool", "reporting", "start_thread"]

Args = ParamSpec("Args")
Result = TypeVar("Result")

ROOM_BYTES: Final = 24 * 1024 * 1024
"""The number of bytes of memory that must be free to start a thread: 8 MB for its stack, and the memory that Python
needs before it runs the function of the thread.
"""


def start_thread(target: Callable[..., object], *args: Any, name: str) -> None:
    """Start a daemon thread with the name `name`, which calls `target` with the arguments `args`.

    Raises:
        MemoryError: the memory limits of this process leave too little memory.
        RuntimeError: the operating system cannot start another thread.
    """
    _check_room()
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def begin_in_thread(work: Callable[[], Result], *, name: str) -> asyncio.Future[Result]:
    """Begin `work` in a new daemon thread and return a future for its result.

    Cancelling the future does not stop the work, and the process can exit before the work is done.

    Raises:
        MemoryError, RuntimeError: the thread cannot be started, as for `start_thread`.
    """
    import asyncio

    outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    start_thread(reporting(work, outcome), name=name)
    return outcome


def reporting(work: Callable[[], Result], outcome: asyncio.Future[Result]) -> Callable[[], None]:
    """Return a function that runs `work` and stores its result or its error in the future `outcome`.

    Any thread may call the function, because the function sets the result in the event loop of the future.
    """
    loop = outcome.get_loop()

    def settle(how: Callable[[Any], None], value: object) -> None:
        if not outcome.done():  # the caller may have cancelled the future
            how(value)

    def run() -> None:
        result: tuple[Callable[[Any], None], object]
        try:
            result = outcome.set_result, work()
        except BaseException as error:
            result = outcome.set_exception, error
        try:
            loop.call_soon_threadsafe(settle, *result)
        except RuntimeError:
            pass  # the event loop was closed

    return run


def checked_pool(*, max_workers: int | None = None, name: str) -> ThreadPoolExecutor:
    """Return a thread pool whose `submit` raises `MemoryError` if there is too little memory for a thread. If
    `max_workers` is None, the pool has the default maximum number of threads of `ThreadPoolExecutor`.
    """
    from concurrent.futures import Future, ThreadPoolExecutor  # imported here: start-up does not need this module

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
