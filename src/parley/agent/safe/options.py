"""How the words of a command split into options, their values and operands, by what a program is known to take.

Knows how options are written. Does not know any program: `programs.py` does.
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
    """The options that a program may be given. What is not among them is not known, shortened ones included."""

    plain: frozenset[str]
    """Without a value. Those of one letter may be bundled."""
    counts: frozenset[str]
    """With a number, behind it in the same word or in the next."""
    texts: frozenset[str]
    """With any text, behind it in the same word or in the next; in the next it does not begin with a dash."""
    optional: frozenset[str]
    """With or without a simple value, and that in the same word."""
    formats: frozenset[str]
    """With or without a value that `formatted` describes, and that in the same word."""
    formatted: re.Pattern[str]
    numbers: bool
    """A number may stand for an option, as in `-20`."""


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
    """As they are written in full, `-n` or `--lines`, with blanks between them."""
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
    """What is no option among the words behind the program; None: there is something unknown.

    An option is one wherever it stands, up to `--`. Programs that stop looking for options sooner
    read the rest as operands, which are free to be anything.
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
    """Whether it is known, and what is behind it is a value of it. One in the next word is taken from `left`."""
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
