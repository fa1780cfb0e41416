"""Checks whether `find` with given arguments only reads and prints.

The arguments of `find` are starting points and an expression of tests and actions. The lists in this module omit
the parts of an expression that run programs, delete files, write files, or read lists of files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["find_only_reads"]

_ALONE: Final = frozenset(
    {"-H", "-L", "-P", "-a", "-and", "-not", "-o", "-or"}
    | {"-daystart", "-depth", "-follow", "-mount", "-noleaf", "-nowarn", "-warn", "-xdev"}
    | {"-empty", "-executable", "-false", "-nogroup", "-nouser", "-readable", "-true", "-writable"}
    | {"-ls", "-print", "-print0", "-prune", "-quit"}
)
_WITH_TEXT: Final = frozenset(
    {"-iname", "-ipath", "-iregex", "-iwholename", "-name", "-path", "-regex", "-regextype", "-wholename"}
    | {"-anewer", "-cnewer", "-fstype", "-group", "-ilname", "-lname", "-newer", "-newermt", "-samefile", "-user"}
    | {"-printf"}
)
_NUMBER: Final = re.compile(r"[+-]?[0-9]+[bcwkMG]?")
_KINDS: Final = re.compile(r"[bcdpfls](?:,[bcdpfls])*")
_WITH_VALUE: Final = {
    **dict.fromkeys(("-amin", "-atime", "-cmin", "-ctime", "-mmin", "-mtime", "-used"), _NUMBER),
    **dict.fromkeys(("-gid", "-inum", "-links", "-maxdepth", "-mindepth", "-size", "-uid"), _NUMBER),
    **dict.fromkeys(("-type", "-xtype"), _KINDS),
    "-perm": re.compile(r"[-/]?[0-7augorwxXst,+=-]+"),
}


def find_only_reads(words: Sequence[str]) -> bool:
    """Return whether `find` with these arguments only reads and prints."""
    left = list(reversed(words))
    while left:
        word = left.pop()
        if not word.startswith("-") or word in _ALONE:
            continue  # this word is a starting point, an operator such as `(`, or a test without a value
        if not left or not _is_value(left.pop(), of=word):
            return False
    return True


def _is_value(value: str, *, of: str) -> bool:
    """Return whether `value` is a valid value for the `find` test with the name `of`, and is not itself a test."""
    if of in _WITH_TEXT:
        return not value.startswith("-")
    return of in _WITH_VALUE and _WITH_VALUE[of].fullmatch(value) is not None
