"""Texts to compare, and what diffs of them say."""

from __future__ import annotations

__all__ = ["changed_lines", "distinct"]


def distinct(lines: int = 200_000) -> list[bytes]:
    """So many lines, each of which is there once."""
    return [b"line number %d\n" % number for number in range(lines)]


def changed_lines(hunks: str) -> int:
    """How many lines these hunks add and remove."""
    return sum(line[:1] in ("+", "-") for line in hunks.split("\n"))
