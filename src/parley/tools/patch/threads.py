"""Work on files in threads of its own.

The event loop's own threads are few, are shared with everything else, and are joined when it
ends. A file system that does not answer would hold up all of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from parley.threads import start_thread

__all__ = ["all_written", "begun_in_thread", "written_in_thread"]

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

WRITING_SECONDS: Final = 10.0
"""How long the end of the process waits for what is being written: the largest patch takes less, also on a
busy computer, and a file system that does not answer holds up nobody for longer."""

_WRITING: Final[set[asyncio.Future[Any]]] = set()


def begun_in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Begin `work` in a new thread; the future has what comes of it.

    Cancelling the future does not end the work, and the end of the process does not wait for it.
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

    start_thread(run, name=name)
    return outcome


def written_in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """As `begun_in_thread`, for work that must not be left half done: `all_written` waits for it."""
    outcome = begun_in_thread(work, name=name)
    _WRITING.add(outcome)
    outcome.add_done_callback(_WRITING.discard)
    return outcome


async def all_written() -> None:
    """Return when all that is being written has been, or when that takes too long.

    To be called before the process ends, and before what runs commands is closed.
    """
    if _WRITING:
        _, unfinished = await asyncio.wait(_WRITING, timeout=WRITING_SECONDS)
        if unfinished:
            log.warning("the server ends while a patch is still being written")
