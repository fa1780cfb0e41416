"""What is wished for in one conversation, in the order in which it came.

A wish is done where the turn runs, and again where that has changed meanwhile, and one takes longer than another:
so each has a place in line from when it comes until it is done. Does not know what is wished for, nor how it is
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Final

__all__ = ["HERE", "Line", "Place"]

HERE: Final = object()
"""Where something is done that this process does itself."""


class Line:
    def __init__(self, where: Callable[[], object | None]) -> None:
        """`where` says where the turn is for certain: `HERE`, or what stands for another process; None: that is to
        be found out, or there is no turn."""
        self._where = where
        self._places: dict[Place, None] = {}
        self._cleared = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._places

    @contextmanager
    def place(self, *, holds_up: bool = False) -> Iterator[Place]:
        """Stand in line; if it `holds_up`, nobody behind it begins before it is done."""
        place = Place(self, holds_up=holds_up)
        self._places[place] = None
        self._cleared.clear()
        try:
            yield place
        finally:
            del self._places[place]
            if not self._places:
                self._cleared.set()
            self.move()

    async def cleared(self) -> None:
        """Return when nobody stands in line."""
        if self._places:
            await self._cleared.wait()

    def move(self) -> None:
        """Whoever waits first looks whether it is his turn: before that nobody behind him has one."""
        first = next((place for place in self._places if place.at is None), None)
        if first is not None:
            first.look()

    def begin(self, place: Place) -> bool:
        """Whether it is its turn; if so, it is under way.

        That is so when nobody stands before it, or all who do are under way to where the turn is: there they are
        done in the order in which they get there, and an interrupt need not wait for a message that takes long.
        Nobody begins behind one that holds up the others.
        """
        where, before = self._where(), takewhile(lambda one: one is not place, self._places)
        if any(where is None or one.at is not where or one.holds_up for one in before):
            return False
        place.at = where or HERE
        self.move()
        return True


class Place:
    def __init__(self, line: Line, *, holds_up: bool) -> None:
        self._line, self.holds_up = line, holds_up
        self._looks: asyncio.Future[None] | None = None
        self.at: object | None = None
        """Where it is under way to; None: it waits."""

    async def begin(self) -> None:
        """Return when it is its turn; also to begin again, where it was done in vain."""
        self.at = None
        while not self._line.begin(self):
            self._looks = asyncio.get_running_loop().create_future()
            await self._looks

    def look(self) -> None:
        """It may be its turn now."""
        if self._looks is not None and not self._looks.done():
            self._looks.set_result(None)
