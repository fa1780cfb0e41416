"""Applies patches in threads, one thread for each patch. The event loop's default thread pool is not used. That
pool is small and shared by the whole server, so a file system that does not respond could block the whole server.
Its threads also delay the end of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from parley.common.threads import begin_in_thread

__all__ = ["all_written", "written_in_thread"]

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

WRITING_SECONDS: Final = 10.0
"""The maximum time, in seconds, that the process waits for unfinished patches before it exits. The largest patch
takes less time, even on a busy computer. A file system that does not respond delays the exit by at most this time.
"""

_WRITING: Final[set[asyncio.Future[Any]]] = set()


def written_in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Call `work`, which applies a patch, in a thread with the given name, and return a future for its result. The
    work must not be interrupted, so `all_written` waits for it.
    """
    outcome = begin_in_thread(work, name=name)
    _WRITING.add(outcome)
    outcome.add_done_callback(_WRITING.discard)
    return outcome


async def all_written() -> None:
    """Wait until all patches that are being applied are finished, but for at most `WRITING_SECONDS`.

    Call this before the process ends and before the command runner is closed.
    """
    if _WRITING:
        _, unfinished = await asyncio.wait(_WRITING, timeout=WRITING_SECONDS)
        if unfinished:
            log.warning("the server exits while a patch is still being written")
