"""Patches that are being written, each in a thread of its own.

The event loop's default threads are few, are shared by the whole server, and are joined when the loop ends. So a
file system that does not answer could block the whole server.
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
"""How long the end of the process waits for patches: longer than the largest patch takes on a busy computer. A
file system that does not answer delays the end by at most this time.
"""

_WRITING: Final[set[asyncio.Future[Any]]] = set()


def written_in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Begin work in a thread as `begin_in_thread` does. The work must be completed: `all_written` waits for it."""
    outcome = begin_in_thread(work, name=name)
    _WRITING.add(outcome)
    outcome.add_done_callback(_WRITING.discard)
    return outcome


async def all_written() -> None:
    """Wait until every patch is written, or for `WRITING_SECONDS`.

    Call it before the process ends and before the command runner is closed.
    """
    if _WRITING:
        _, unfinished = await asyncio.wait(_WRITING, timeout=WRITING_SECONDS)
        if unfinished:
            log.warning("the server ends while a patch is still being written")
