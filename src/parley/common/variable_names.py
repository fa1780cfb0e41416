"""Matches the names of environment variables with patterns, such as the patterns for variables that hold
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import Final

__all__ = ["SECRETS", "matches", "names_a_secret"]

SECRETS: Final = (
    "*KEY*",
    "*SECRET*",
    "*TOKEN*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*CREDENTIAL*",
    "*AUTH*",
    "*COOKIE*",
    "*PRIVATE*",
    "*BEARER*",
    "*DSN*",
    "*JWT*",
    "*WEBHOOK*",
    "*CONNECTION_STRING*",
    "*_PAT",
    "*_PASS",
    "*_PWD",
    "*DATABASE_URL",
    "*DB_URL",
    "*MONGO*_UR?",
    "*POSTGRES*_UR?",
    "*REDIS*_URL",
    "*AMQP*_URL",
    "KRB5CCNAME",
)
"""Name patterns of variables that usually hold secrets."""


def names_a_secret(name: str) -> bool:
    """Return whether a variable with this name usually holds a secret."""
    return matches(name, SECRETS)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether one of the patterns matches the whole name, ignoring case. `*` matches any string, and `?`
    matches any single character.
    """
    return _compiled(patterns).fullmatch(name) is not None


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    names = (f"part{number}" for number in count())
    return re.compile("|".join(_as_expression(pattern, names) for pattern in patterns), re.IGNORECASE | re.DOTALL)


def _as_expression(pattern: str, names: Iterator[str]) -> str:
    """Return a pattern as a regular expression that matches in linear time.

    Text between two stars matches at its first occurrence, without backtracking: a lookahead finds the text in a
    named group, and a reference to that group consumes it. `names` supplies the names of the groups.
    """
    first, *rest = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not rest:
        return first
    middle = (_first_found(part, next(names)) for part in rest[:-1] if part)
    return first + "".join(middle) + f".*{rest[-1]}"


def _first_found(part: str, name: str) -> str:
    return f"(?=(?P<{name}>.*?{part}))(?P={name})"
