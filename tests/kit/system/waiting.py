"""Waits for conditions that the system does not announce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["until"]

CHECK_SECONDS: Final = 0.005


async def until(
    holds: Callable[[], bool], otherwise: Callable[[], str] | None = None, *, check_seconds: float = CHECK_SECONDS
) -> None:
    """Wait until a condition is true, which is checked every `check_seconds`.

    Raises:
        AssertionError: the condition was not true in time. The text is the result of `otherwise`.
    """
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(check_seconds)
    except TimeoutError:
        raise AssertionError(otherwise() if otherwise else "the condition did not become true in time") from None
