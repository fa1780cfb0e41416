"""How a call gets on, told no more often than a person can read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from parley.tools.servers.failures import one_line

__all__ = ["progress_words", "telling"]

INTERVAL_SECONDS: Final = 0.25
"""As fast as a person can read; a tool may report thousands of steps a second."""


def progress_words(server: str, tool: str, done: float, total: float | None, message: str | None) -> str:
    how_far = f"{done:g}" if total is None else f"{done:g} of {total:g}"
    words = f"Progress of {server}/{tool}: {how_far}"
    return f"{words} ({one_line(message)})" if message and not message.isspace() else words


@asynccontextmanager
async def telling(say: Callable[[str], Awaitable[None]]) -> AsyncIterator[Callable[[str], None]]:
    """Yields what to call with news. Of news that come too fast only the latest are said, the last
    always; after a cancellation nothing more is."""
    unsaid: list[str] = []
    news, is_over = asyncio.Event(), asyncio.Event()

    async def tell() -> None:
        await news.wait()
        while unsaid:
            news.clear()
            await say(unsaid.pop())
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await is_over.wait()
            except TimeoutError:
                await news.wait()

    def put(text: str) -> None:
        unsaid[:] = [text]
        news.set()

    teller = asyncio.create_task(tell())
    try:
        yield put
    except asyncio.CancelledError:
        unsaid.clear()
        raise
    finally:
        is_over.set()
        news.set()
        await teller
