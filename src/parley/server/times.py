"""Formats times for clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["iso"]

_FIRST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST: Final = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def iso(seconds: float) -> str:
    """Format a time in UTC with milliseconds: `2026-01-31T12:00:00.000Z`.

    A time outside of the calendar, as a broken clock may have written, becomes the first or the last possible time.
    """
    moment = min(_LAST, max(_FIRST, seconds))  # in this order, which also handles NaN
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
