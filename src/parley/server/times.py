"""Formats times for clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["iso"]

_FIRST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST: Final = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def iso(seconds: float) -> str:
    """Format a time as a string in UTC with milliseconds, such as `2026-01-31T12:00:00.000Z`.

    `seconds` is the time in seconds since the epoch. If `datetime` cannot represent this time, for example because
    a clock was wrong, the earliest or latest possible time is formatted instead.
    """
    moment = min(_LAST, max(_FIRST, seconds))  # this order also handles NaN
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
