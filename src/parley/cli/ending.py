"""Work that a signal ends in order: what it has begun is taken back before the program ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from parley.app.signals import KILLED, SIGNALS

__all__ = ["run_unless_ended"]


def run_unless_ended(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of the work, or of the signal that ended it."""
    ended_by: list[int] = []

    async def run() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def end(number: int) -> None:
            if not ended_by:
                ended_by.append(number)
                task.cancel()

        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
                loop.add_signal_handler(number, end, number)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        return KILLED + ended_by[0]
