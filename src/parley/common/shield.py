"""Waits for work that must complete even if the waiting task is cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

__all__ = ["run_to_completion"]

log: Final = logging.getLogger(__name__)

T = TypeVar("T")


async def run_to_completion(work: asyncio.Future[T]) -> T:
    """Wait until `work` is done and return its result. This function never cancels the work.

    If the caller is cancelled, `CancelledError` is raised when the work is done. If the work has failed, its error
    is then only logged.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    if not work.cancelled() and (failure := work.exception()) is not None:
        log.error("work failed after its caller was cancelled", exc_info=failure)
    try:
        raise cancelled
    finally:
        del cancelled  # otherwise the error and this frame would refer to each other
