"""Finds the known name that is most similar to a misspelt name.

The caller decides whether an unknown name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["forms_of", "is_about_safety", "letters_of", "near_miss", "nearest", "shortened", "shown_name"]

MAX_EDITS: Final = 2
"""The maximum edit distance at which a name counts as a misspelling of a known name."""

MIN_LETTERS: Final = 5
"""The minimum length, in letters, of a known name that is compared by edit distance. A shorter name is within two
edits of many unrelated words.
"""

_SAFETY: Final = ("sandbox", "approval", "policy")
_MAX_SHOWN: Final = 80


def letters_of(name: str) -> str:
    """Return the name in lower case, without hyphens and underscores."""
    return name.casefold().replace("-", "").replace("_", "")


def forms_of(name: str) -> tuple[str, ...]:
    """Return the spellings of a name in snake, kebab and camel case."""
    first, *rest = re.sub("([A-Z])", r"_\1", name.replace("-", "_")).lower().split("_")
    return "_".join((first, *rest)), "-".join((first, *rest)), first + "".join(word.capitalize() for word in rest)


def is_about_safety(name: str) -> bool:
    """Return whether a name contains a word that occurs in the names of the settings that restrict the agent.
    Ignoring an unknown setting with this name could leave the agent unrestricted.
    """
    letters = letters_of(name)
    return any(word in letters for word in _SAFETY)


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that differs from `name` only in case, hyphens or underscores. If there is none, return
    the closest known name within `MAX_EDITS` edits. Return None if no known name is similar enough.
    """
    letters = letters_of(name)
    candidates = [(each, letters_of(each)) for each in known]
    for each, other in candidates:
        if other == letters:
            return each
    long_enough = [(each, other) for each, other in candidates if len(other) >= MIN_LETTERS]
    return _closest(letters, long_enough, MAX_EDITS)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the smallest edit distance from `name`. Return None if this distance exceeds both
    `MAX_EDITS` and a third of the length of `name`.
    """
    letters = letters_of(name)
    return _closest(letters, [(each, letters_of(each)) for each in known], max(MAX_EDITS, len(letters) // 3))


def _closest(letters: str, candidates: list[tuple[str, str]], max_distance: int) -> str | None:
    close = [(each, other) for each, other in candidates if abs(len(other) - len(letters)) <= max_distance]
    distances = {each: _edit_distance(letters, other) for each, other in close}
    best = min(distances, key=distances.__getitem__, default=None)
    return best if best is not None and distances[best] <= max_distance else None


def _edit_distance(one: str, other: str) -> int:
    """Return the minimum number of characters that must be inserted, removed or replaced to convert one name to the
    other.
    """
    row = list(range(len(other) + 1))
    for place, character in enumerate(one, start=1):
        before, row[0] = row[0], place
        for column, other_character in enumerate(other, start=1):
            before, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, before + (character != other_character)),
            )
    return row[-1]


def shown_name(name: str) -> str:
    """Return a name in backquotes for an error message, truncated if it is long."""
    return f"`{shortened(name)}`"


def shortened(text: str, max_length: int = _MAX_SHOWN) -> str:
    """Return `text`, for an error message or a log line. If it is longer than `max_length` characters, truncate it
    to this length, including an ellipsis at the end.
    """
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
