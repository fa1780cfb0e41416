"""Finds the known name that is nearest to a misspelt one.

Callers decide whether an unknown name is refused or reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["forms_of", "is_about_safety", "letters_of", "near_miss", "nearest", "shown_name"]

MOST_EDITS: Final = 2
"""A name within this edit distance of a known one counts as a misspelling of it."""

FEWEST_LETTERS: Final = 5
"""The length from which a known name is compared: a shorter one is within two edits of too many words."""

_SAFETY: Final = ("sandbox", "approval", "policy")
_LONGEST_SHOWN: Final = 80


def letters_of(name: str) -> str:
    """Return the name without case, hyphens and underscores."""
    return name.casefold().replace("-", "").replace("_", "")


def forms_of(name: str) -> tuple[str, ...]:
    """Return a name in snake, kebab and camel case."""
    first, *rest = re.sub("([A-Z])", r"_\1", name.replace("-", "_")).lower().split("_")
    return "_".join((first, *rest)), "-".join((first, *rest)), first + "".join(word.capitalize() for word in rest)


def is_about_safety(name: str) -> bool:
    """Return whether a name looks like a setting that restricts the agent."""
    letters = letters_of(name)
    return any(word in letters for word in _SAFETY)


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the same letters, or the nearest one within two edits; None: there is none."""
    letters = letters_of(name)
    candidates = [(each, letters_of(each)) for each in known]
    for each, theirs in candidates:
        if theirs == letters:
            return each
    long_enough = [(each, theirs) for each, theirs in candidates if len(theirs) >= FEWEST_LETTERS]
    return _closest(letters, long_enough, MOST_EDITS)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name; None: none is similar enough."""
    letters = letters_of(name)
    return _closest(letters, [(each, letters_of(each)) for each in known], max(MOST_EDITS, len(letters) // 3))


def _closest(letters: str, candidates: list[tuple[str, str]], most: int) -> str | None:
    close = [(each, theirs) for each, theirs in candidates if abs(len(theirs) - len(letters)) <= most]
    distances = {each: _edit_distance(letters, theirs) for each, theirs in close}
    best = min(distances, key=distances.__getitem__, default=None)
    return best if best is not None and distances[best] <= most else None


def _edit_distance(one: str, other: str) -> int:
    """Return how many characters must be inserted, removed or replaced to turn one name into the other."""
    row = list(range(len(other) + 1))
    for place, character in enumerate(one, start=1):
        before, row[0] = row[0], place
        for column, theirs in enumerate(other, start=1):
            before, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, before + (character != theirs)),
            )
    return row[-1]


def shown_name(name: str) -> str:
    """Return a name for an error message; a long one is cut."""
    return f"`{name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + '…'}`"
