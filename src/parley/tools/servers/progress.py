"""Reports the progress of a tool call to clients, at a rate that a person can read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from parley.tools.servers.failures import one_line

__all__ = ["progress_text", "throttled_progress"]

INTERVAL_SECONDS: Final = 0.25
"""The minimum number of seconds between two reports. The rate is limited because a tool may send thousands of
reports per second.
"""


def progress_text(server: str, tool: str, done: float, total: float | None, message: str | None) -> str:
    how_far = f"{done:g}" if total is None else f"{done:g} of {total:g}"
    text = f"Progress of {server}/{tool}: {how_far}"
    return f"{text} ({one_line(message)})" if message and not message.isspace() else text


@asynccontextmanager
async def throttled_progress(report: Callable[[str], Awaitable[None]]) -> AsyncIterator[Callable[[str], None]]:
    """Yield a function to which the caller passes progress messages. `report` is called with the latest message, at
    most once per `INTERVAL_SECONDS`. Messages between two calls of `report` are discarded, except the latest.

    `report` is always called with the last message, except after a cancellation.
    """
    pending: list[str] = []
    changed, is_over = asyncio.Event(), asyncio.Event()

    async def report_latest() -> None:
        await changed.wait()
        while pending:
            changed.clear()
            await report(pending.pop())
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await is_over.wait()
            except TimeoutError:
                await changed.wait()

    def put(text: str) -> None:
        pending[:] = [text]
        changed.set()

    reporting = asyncio.create_task(report_latest())
    try:
        yield put
    except asyncio.CancelledError:
        pending.clear()
        raise
    finally:
        is_over.set()
        changed.set()
        await reporting
