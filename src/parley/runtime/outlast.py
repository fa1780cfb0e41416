"""Waiting for what must not be left half done."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["BETWEEN_TRIES_SECONDS", "outlast"]

BETWEEN_TRIES_SECONDS: Final = 1.0
"""How long until it is tried again to write down what could not be."""


async def outlast(written: asyncio.Future[None]) -> None:
    """Wait for what is under way, however often we are told to stop; then stop."""
    told: asyncio.CancelledError | None = None
    while not written.done():
        try:
            await asyncio.wait({written})
        except asyncio.CancelledError as stop:
            told = stop
    if told is not None:
        raise told
    written.result()
