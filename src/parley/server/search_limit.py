"""Limits how many searches of one principal run at the same time."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

__all__ = ["SearchLimit"]

MAX_SEARCHES: Final = 2
"""The maximum number of searches that one principal runs at the same time. All reads share the four threads of the
store. Because of the limit, the searches of one principal cannot use all of these threads.
"""


class SearchLimit:
    """The searches that are running, counted for each principal."""

    def __init__(self) -> None:
        self._running: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, principal: str) -> asyncio.Semaphore:
        """Return the semaphore that the searches of a principal hold while they run. `principal` is the key of the
        principal (`Principal.key`).
        """
        return self._running.setdefault(principal, asyncio.Semaphore(MAX_SEARCHES))
