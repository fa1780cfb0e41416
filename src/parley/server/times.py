"""Moments as clients read them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["iso"]


def iso(seconds: float) -> str:
    """A moment in UTC, to the millisecond: `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
