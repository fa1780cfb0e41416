"""Parses the durations in command-line arguments, such as `7d`."""

from __future__ import annotations

import argparse
import re
from typing import Final

__all__ = ["seconds", "time_limit"]

UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
MAX_SECONDS: Final = 3660 * 86_400

LIMIT_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}

_LIMIT: Final = re.compile(r"([1-9][0-9]{0,8})([smh]?)")
_LENGTH: Final = re.compile(r"([1-9][0-9]{0,8})([mhdw])")


def seconds(text: str) -> float:
    """Parse a duration such as `30m`, `12h`, `7d` or `4w`, and return it in seconds.

    Raises:
        argparse.ArgumentTypeError: the text is not a number followed by a unit, or the duration is too long.
    """
    found = _LENGTH.fullmatch(text)
    length = int(found[1]) * UNITS[found[2]] if found else 0
    if not 0 < length <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"invalid time {text!r} (give a number and m, h, d or w, such as 7d)")
    return float(length)


def time_limit(text: str) -> float:
    """Parse a time limit such as `90`, `90s`, `10m` or `2h`, and return it in seconds.

    Raises:
        argparse.ArgumentTypeError: the text is not a number of seconds, minutes or hours, or the time limit is too
            long.
    """
    found = _LIMIT.fullmatch(text)
    length = int(found[1]) * LIMIT_UNITS[found[2]] if found else 0
    if not 0 < length <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"invalid time {text!r} (give a number of seconds, or 90s, 10m or 2h)")
    return float(length)
