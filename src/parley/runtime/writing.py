"""The right to write to one conversation, for one task after another: `async with writing.within(deadline)`.

Inside the block the conversation is ready to be written to. The right is given back to other processes where no
turn needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from parley.runtime.deadline import Deadline

__all__ = ["Writing"]


class Writing:
    def __init__(
        self, *, get_ready: Callable[[Deadline], Awaitable[None]], rest: Callable[[], Awaitable[None]]
    ) -> None:
        """`get_ready` takes the right to write, and `rest` gives it back where no turn needs it."""
        self._get_ready, self._rest = get_ready, rest
        self._resting: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()
        """Messages are taken in the order in which they came, also where one has to wait."""

    @asynccontextmanager
    async def within(self, deadline: Deadline) -> AsyncIterator[None]:
        """Have the right to write in this block. Until the deadline other processes are waited for."""
        async with self.lock:
            try:
                await self._get_ready(deadline)
                yield
            finally:
                await self._rest()

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
