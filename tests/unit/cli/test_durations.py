"""Lengths of time on a command line."""

from __future__ import annotations

import argparse

import pytest

from parley.cli.durations import seconds


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
