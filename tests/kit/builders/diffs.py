"""Texts to compare, and properties of their diffs."""

from __future__ import annotations

__all__ = ["changed_lines", "distinct"]


def distinct(lines: int = 200_000) -> list[bytes]:
    """Return this many lines, all different."""
    return [b"line number %d\n" % number for number in range(lines)]


def changed_lines(hunks: str) -> int:
    """Return how many lines these hunks add and remove."""
    return sum(line[:1] in ("+", "-") for line in hunks.split("\n"))
