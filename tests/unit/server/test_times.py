"""Formatted times, including invalid values."""

from __future__ import annotations

import math

import pytest

from parley.server.times import iso


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1754654400.123, "2025-08-08T12:00:00.123Z"),
        (-1.0, "1969-12-31T23:59:59.000Z"),
        (1e300, "9999-12-31T23:59:59.000Z"),
        (math.inf, "9999-12-31T23:59:59.000Z"),
        (-1e300, "0001-01-01T00:00:00.000Z"),
        (math.nan, "0001-01-01T00:00:00.000Z"),
    ],
)
def test_every_moment_can_be_shown(seconds: float, shown: str) -> None:
    assert iso(seconds) == shown
