"""Waiting for what must not be left half done."""

from __future__ import annotations

import asyncio

__all__ = ["outlast"]


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
