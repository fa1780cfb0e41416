"""What is wished for in one conversation, in the order in which it came.

A wish is done where the turn runs, and again where that has changed meanwhile, and one takes longer than another:
so each has a place in line from when it comes until it is done. Does not know what is wished for, nor how it is
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["HERE", "Line", "Place"]

HERE: Final = object()
"""Where something is done that this process does itself."""


class Line:
    def __init__(self, where: Callable[[], object | None]) -> None:
        """`where` says where the turn is for certain: `HERE`, or what stands for another process; None: that is to
        be found out, or there is no turn."""
        self._where = where
        self._places: list[Place] = []
        self._moved: list[asyncio.Future[None]] = []

    @property
    def is_empty(self) -> bool:
        return not self._places

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Stand in line."""
        place = Place(self)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)
            self.move()

    async def cleared(self) -> None:
        """Return when nobody stands in line."""
        while self._places:
            await self.moves()

    async def moves(self) -> None:
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moved.append(moved)
        await moved

    def move(self) -> None:
        """Whoever stands in line looks whether it is his turn."""
        moved, self._moved = self._moved, []
        for one in moved:
            if not one.done():
                one.set_result(None)

    def begin(self, place: Place) -> bool:
        """Whether it is its turn; if so, it is under way.

        That is so when nobody stands before it, or all who do are under way to where the turn is: there they are
        done in the order in which they get there, and an interrupt need not wait for a message that takes long.
        """
        where, before = self._where(), self._places[: self._places.index(place)]
        if before and (where is None or any(one.at is not where for one in before)):
            return False
        place.at = where or HERE
        self.move()
        return True


class Place:
    def __init__(self, line: Line) -> None:
        self._line = line
        self.at: object | None = None
        """Where it is under way to; None: it waits."""

    async def begin(self) -> None:
        """Return when it is its turn; also to begin again, where it was done in vain."""
        self.at = None
        while not self._line.begin(self):
            await self._line.moves()
