"""Splits the arguments of a program into options, their values and operands.

This module defines the syntax of options. `programs.py` lists the options of each program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

__all__ = ["Options", "operands_of", "options"]

_COUNT: Final = re.compile(r"[+-]?[0-9]+(?:b|[kKMGTPE](?:i?B)?)?")
_OPTIONAL: Final = re.compile(r"[A-Za-z0-9_,.%/-]*")
_NUMBER: Final = re.compile(r"-[0-9]+")


class Options(Struct, frozen=True, kw_only=True):
    """The known options of a program. Abbreviated options are treated as unknown."""

    plain: frozenset[str]
    """Options without a value. One-letter options may be combined, as in `-la`."""
    counts: frozenset[str]
    """Options whose value is a number, in the same argument or in the next argument."""
    texts: frozenset[str]
    """Options whose value is any string, in the same argument or in the next argument. A value in the next argument
    must not begin with a dash.
    """
    optional: frozenset[str]
    """Options with an optional value in the same argument. The value may contain only letters, digits and the
    characters `_,.%/-`.
    """
    formats: frozenset[str]
    """Options with an optional value in the same argument. The value must match `formatted`."""
    formatted: re.Pattern[str]
    numbers: bool
    """True if a number may be an option, as in `-20`."""


def options(
    *,
    plain: str = "",
    counts: str = "",
    texts: str = "",
    optional: str = "",
    formats: str = "",
    formatted: re.Pattern[str] = _OPTIONAL,
    numbers: bool = False,
) -> Options:
    """Create `Options`. Each string argument is a list of option names, separated by spaces, such as `-n --lines`.
    The names go into the field of `Options` that has the name of the argument. `formatted` is the pattern of the
    values of the options in `formats`. `numbers` is True if a number may be an option.
    """
    return Options(
        plain=frozenset(plain.split()),
        counts=frozenset(counts.split()),
        texts=frozenset(texts.split()),
        optional=frozenset(optional.split()),
        formats=frozenset(formats.split()),
        formatted=formatted,
        numbers=numbers,
    )


def operands_of(words: Sequence[str], known: Options) -> list[str] | None:
    """Return the operands among a program's arguments; None if an option is unknown or has an invalid value.

    An argument that begins with a dash counts as an option in any position before `--`. Some programs read options
    only before the first operand, and for these programs the check is stricter than necessary.
    """
    operands: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            return operands + left[::-1]
        if word == "-" or not word.startswith("-"):
            operands.append(word)
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            if not _fits(name, value if equals else None, left, known):
                return None
        elif not (known.numbers and _NUMBER.fullmatch(word)) and not _bundle_fits(word[1:], left, known):
            return None
    return operands


def _bundle_fits(letters: str, left: list[str], known: Options) -> bool:
    for place, letter in enumerate(letters):
        name = f"-{letter}"
        if name not in known.plain:
            return _fits(name, letters[place + 1 :] or None, left, known)
    return True


def _fits(name: str, value: str | None, left: list[str], known: Options) -> bool:
    """Return whether an option is known and its value is valid.

    `name` is the option, and `value` is its value in the same argument; None if the same argument contains no
    value. `left` contains the arguments after the option in reverse order. If the next argument is the value, it is
    removed from `left`.
    """
    if name in known.plain:
        return value is None
    if name in known.optional:
        return value is None or _OPTIONAL.fullmatch(value) is not None
    if name in known.formats:
        return value is None or known.formatted.fullmatch(value) is not None
    if name in known.counts:
        value = left.pop() if value is None and left else value
        return value is not None and _COUNT.fullmatch(value) is not None
    if name in known.texts:
        if value is None:
            return bool(left) and not left.pop().startswith("-")
        return True
    return False
