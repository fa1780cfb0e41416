"""Waiting for work that must not be left half done."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

__all__ = ["to_the_end"]

log: Final = logging.getLogger(__name__)

T = TypeVar("T")


async def to_the_end(work: asyncio.Future[T]) -> T:
    """Return what came of `work`, which must be bounded by itself.

    Cancelling does not reach the work: it is raised when the work is done, whose result the caller
    may then still ask for. Whatever the work raises is raised here; where we were cancelled
    besides, that goes first, and a failure of the work is logged.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as asked:
            cancelled = asked
    if cancelled is None:
        return work.result()
    if not work.cancelled() and (bug := work.exception()) is not None:
        log.error("work failed that could not be cancelled", exc_info=bug)
    raise cancelled
