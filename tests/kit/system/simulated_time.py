"""An event loop whose clock does not wait: when nothing is ready, its time moves to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run_in_simulated_time"]

T = TypeVar("T")


class _SimulatedSelector(selectors.DefaultSelector):
    """A selector that adds a timeout to `now` instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._simulated = _SimulatedSelector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run_in_simulated_time(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that `make` returns, on an event loop with simulated time, and return its result.

    A descriptor that is readable is handled before the time moves. Threads need real time, in which the simulated
    time can move far.
    """
    with asyncio.Runner(loop_factory=_SimulatedLoop) as runner:
        return runner.run(make())
