"""Looking for many at once: all who come before somebody looks share what he sees, and go on in the order in which
they came."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Rounds"]


class Rounds:
    """One look after another. Whoever comes while one is under way is there for the next: it may have begun before
    what he wants to see."""

    def __init__(self) -> None:
        self._next: asyncio.Task[None] | None = None
        """The round that has not begun, if there is one."""
        self._last: asyncio.Task[None] | None = None
        """The one behind which the next begins, be it over."""
        self._waiting = 0

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody came before and has not gone on."""
        return self._waiting > 0

    async def join(self, look: Callable[[], Awaitable[None]]) -> None:
        """Return when it was looked. Raises what `look` does."""
        if self._next is None:
            self._last = self._next = asyncio.create_task(self._round(look, behind=self._last))
            self._next.add_done_callback(_heard)
        looked = self._next
        self._waiting += 1
        try:
            await asyncio.wait({looked})  # whoever is told to stop must not stop it for the others
        finally:
            self._waiting -= 1
        looked.result()

    async def pass_by(self) -> None:
        """Return when whoever came before has gone on, whatever he saw."""
        if self._last is not None:
            # Also where it is over: whoever waited for it may be about to go on.
            await asyncio.wait({self._last})

    async def _round(self, look: Callable[[], Awaitable[None]], *, behind: asyncio.Task[None] | None) -> None:
        if behind is not None and not behind.done():
            await asyncio.wait({behind})
        self._next = None
        await look()


def _heard(looked: asyncio.Task[None]) -> None:
    """It may have failed when nobody was there any more who could be told."""
    if not looked.cancelled():
        looked.exception()
