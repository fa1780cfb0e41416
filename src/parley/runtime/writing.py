"""The right to write to one conversation, for one after another: `async with writing`.

Whoever has it finds the conversation ready to be written to. It is given back to other processes where no turn
needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Writing"]


class Writing:
    def __init__(self, *, get_ready: Callable[[], Awaitable[None]], rest: Callable[[], Awaitable[None]]) -> None:
        """`get_ready` takes the right to write, and `rest` gives it back where no turn needs it."""
        self._get_ready, self._rest = get_ready, rest
        self._resting: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()
        """Messages are taken in the order in which they came, also where one has to wait."""

    async def __aenter__(self) -> None:
        await self.lock.acquire()
        try:
            await self._get_ready()
        except BaseException:
            await self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        try:
            await self._rest()
        finally:
            self.lock.release()

    def rest_soon(self) -> None:
        """When it is nobody else's turn, give the right to write back."""
        self._resting = asyncio.create_task(self._rest_in_line())

    async def rested(self) -> None:
        """Return when what `rest_soon` began is done."""
        if self._resting is not None:
            await asyncio.wait({self._resting})

    async def _rest_in_line(self) -> None:
        async with self.lock:
            await self._rest()
