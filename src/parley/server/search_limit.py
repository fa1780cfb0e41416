"""Limits how many searches of one principal run at the same time."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

__all__ = ["SearchLimit"]

MAX_SEARCHES: Final = 2
"""The maximum number of searches that one principal runs at the same time. The store has four threads for all
reads. Because of this limit, the searches of one principal cannot use all four threads.
"""


class SearchLimit:
    """Limits the number of searches that run at the same time, separately for each principal."""

    def __init__(self) -> None:
        self._running: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, principal: str) -> asyncio.Semaphore:
        """Return the semaphore that every search of a principal must acquire. `principal` is the `Principal.key` of
        this principal.
        """
        return self._running.setdefault(principal, asyncio.Semaphore(MAX_SEARCHES))
