"""Lengths of time on a command line."""

from __future__ import annotations

import argparse

import pytest

from parley.cli.durations import seconds, time_limit


def test_a_length_is_a_number_and_a_unit() -> None:
    assert [seconds(text) for text in ("30m", "12h", "7d", "4w", "3660d")] == [
        1800.0,
        43_200.0,
        604_800.0,
        2_419_200.0,
        316_224_000.0,
    ]


@pytest.mark.parametrize(
    "text", ["", "7", "d", "0d", "07d", "-1d", "1.5h", "7 d", "7D", "1y", "3661d", "9999999999m", "٧d"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give a number and m, h, d or w"):
        seconds(text)


def test_a_time_limit_is_a_number_of_seconds_or_has_a_unit() -> None:
    assert [time_limit(text) for text in ("90", "90s", "10m", "2h")] == [90.0, 90.0, 600.0, 7200.0]


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "10 m", "1d", "9999999999", "soon"])
def test_another_time_limit_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give a number of seconds, or 90s, 10m or 2h"):
        time_limit(text)
