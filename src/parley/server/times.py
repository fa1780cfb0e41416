"""Moments as clients read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["iso"]

_FIRST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST: Final = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def iso(seconds: float) -> str:
    """A moment in UTC, to the millisecond: `2026-01-31T12:00:00.000Z`.

    One that is in no calendar, which only a broken clock has written down, is the first or the last that there is.
    """
    moment = min(_LAST, max(_FIRST, seconds))  # in this order also where it is no number
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
