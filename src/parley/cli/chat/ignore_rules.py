"""Interprets the rules of `.gitignore` files, which determine the files that completion offers.

The module does not run Git, because Git would run programs that the settings of a repository name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ["IgnoreRules"]

MAX_RULES: Final = 1000
"""The maximum number of lines that are read from one file. The rules in all other lines have no effect."""

ANY: Final = "**"
"""The segment of a pattern that matches any number of directories."""

_CLASS: Final = re.compile(r"\[[!^]?\]?[^\]]*\]")


class IgnoreRules:
    """The ignore rules of one file. If several rules match a path, the last one takes precedence."""

    def __init__(self, text: str) -> None:
        rules = [rule for line in text.splitlines()[:MAX_RULES] if (rule := _parse(line)) is not None]
        self._rules = tuple(reversed(rules))

    def decide(self, path: Sequence[str], *, is_directory: bool) -> bool | None:
        """Return whether a path is ignored; None if no rule matches the path.

        `path` is a sequence of names, relative to the directory that contains the file with the rules.
        `is_directory` is True if `path` is a directory. Some rules match only directories.
        """
        for rule in self._rules:
            if (is_directory or not rule.only_directories) and rule.matches(path):
                return rule.ignores
        return None


class _Rule(NamedTuple):
    segments: tuple[_Segment | None, ...]
    """The segments of the pattern, which `/` separates. None stands for any number of directories."""
    is_name: bool
    """True if the pattern is a name without `/`. Such a pattern matches the name in every directory."""
    ignores: bool
    """True if the rule ignores matching paths, False if the rule begins with `!`."""
    only_directories: bool

    def matches(self, path: Sequence[str]) -> bool:
        if self.is_name:
            segment = self.segments[0]
            return segment is not None and segment.matches(path[-1])
        return _match(self.segments, path)


def _parse(line: str) -> _Rule | None:
    """Return the rule in a line; None for a comment or an empty line."""
    line = line.rstrip("\r")
    stripped = line.rstrip(" ")
    if stripped.endswith("\\") and stripped != line:
        stripped += " "  # an escaped space at the end of the line
    pattern = stripped.removeprefix("!")
    if not pattern or stripped.startswith("#"):
        return None
    only_directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    is_name = "/" not in pattern
    names = [name for name in pattern.split("/") if name]
    if not names:
        return None
    segments = tuple(None if name == ANY and not is_name else _Segment(name) for name in names)
    return _Rule(segments, is_name, not stripped.startswith("!"), only_directories)


def _match(segments: Sequence[_Segment | None], path: Sequence[str]) -> bool:
    """Return whether the segments of a pattern match a whole path. A segment that is None stands for `**`. On a
    mismatch, let the last `**` match one more directory, and try again.
    """
    at = place = 0
    retry: tuple[int, int] | None = None
    while place < len(path):
        if at < len(segments):
            segment = segments[at]
            if segment is None:
                if at == len(segments) - 1:
                    return True
                retry = (at, place)
                at += 1
                continue
            if segment.matches(path[place]):
                at, place = at + 1, place + 1
                continue
        if retry is None:
            return False
        at, place = retry[0] + 1, retry[1] + 1
        retry = (retry[0], place)
    return at == len(segments)


class _Segment:
    """The pattern for one name in a path. The pattern consists of pieces of fixed length, with `*` between them."""

    def __init__(self, pattern: str) -> None:
        pieces: list[list[str]] = [[]]
        self._literal: str | None = ""
        for token, character in _tokens(pattern):
            if token == "*":
                pieces.append([])
            else:
                pieces[-1].append(token)
            self._literal = None if character is None or self._literal is None else self._literal + character
        self._lengths = tuple(map(len, pieces))
        self._pieces = tuple(re.compile("".join(piece), re.DOTALL) for piece in pieces)

    def matches(self, name: str) -> bool:
        if self._literal is not None:
            return name == self._literal
        if len(name) < sum(self._lengths):
            return False
        first, *middle = self._pieces
        if not middle:
            return first.fullmatch(name) is not None
        last = middle.pop()
        begin, end = self._lengths[0], len(name) - self._lengths[-1]
        if first.match(name) is None or last.match(name, end) is None:
            return False
        for piece in middle:
            if (found := piece.search(name, begin, end)) is None:
                return False
            begin = found.end()
        return True


def _tokens(pattern: str) -> Iterable[tuple[str, str | None]]:
    """For each element of a pattern, such as a character or `?`, yield a regular expression and the only character
    that the element matches. For `*`, yield `*` instead of a regular expression. If an element can match several
    characters, yield None as the character.
    """
    place = 0
    while place < len(pattern):
        one = pattern[place]
        if one == "\\" and place + 1 < len(pattern):
            yield re.escape(pattern[place + 1]), pattern[place + 1]
            place += 2
        elif one == "*":
            yield "*", None
            place += 1
        elif one == "?":
            yield ".", None
            place += 1
        elif one == "[" and (found := _CLASS.match(pattern, place)) is not None:
            yield _class(found.group()), None
            place = found.end()
        else:
            yield re.escape(one), one
            place += 1


def _class(text: str) -> str:
    """Return a character class, such as `[!a-z]`, as a regular expression.

    An invalid class matches no character.
    """
    inside = text[1:-1]
    negated = inside[:1] in ("!", "^")
    inside = inside[1:] if negated else inside
    inside = inside.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    for mark in ("&&", "~~", "||"):
        inside = inside.replace(mark, mark[0] + "\\" + mark[1])
    expression = f"[{'^' if negated else ''}{inside}]"
    try:
        re.compile(expression)
    except re.error:
        return "(?!)"
    return expression
