"""Finds the positions of a patch's chunks in a file, and applies the chunks.

The unchanged and removed lines of a chunk must match contiguous lines of the file after the previous chunk. Lines
are compared at four levels: exactly, without trailing whitespace, without surrounding whitespace, and with
typographic characters replaced with ASCII characters. A match at an earlier level takes precedence over a nearer
match at a later level.

Unchanged lines keep the whitespace that they have in the file.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from json import dumps
from typing import Final

from msgspec import Struct

from parley.tools.errors import PatchNotApplied
from parley.tools.patch.deadline import Deadline
from parley.tools.patch.parser import Chunk, Line

__all__ = ["Text", "apply_chunks"]

_BOM: Final = "\ufeff"

_BLOCK: Final = 4096
"""The maximum number of lines that are processed between two checks of the deadline."""

_OTHER: Final = "\0"
"""The code of each line of a file that is not searched for."""

_MAX_WANTED: Final = sys.maxunicode
"""The maximum number of distinct lines that are searched for in one file, because each one has a character as its
code.
"""

_QUOTED_LINES: Final = 20
"""The maximum number of expected but missing lines that an error message quotes."""


# --- a file as lines ---------------------------------------------------------------------


class Text(Struct, frozen=True):
    """A file as lines without line feeds. A carriage return stays part of its line.

    If a file is converted to this form and back, its bytes do not change.
    """

    lines: list[str]
    has_bom: bool
    open_end: str | None
    """The last line of a file that does not end with a line feed; None if the file ends with one. In `lines`, this
    line ends like the line before it: with a carriage return or without.
    """

    @classmethod
    def of(cls, content: bytes) -> Text:
        text = content.decode("utf-8", "surrogateescape")
        has_bom = text.startswith(_BOM)
        lines = text.removeprefix(_BOM).split("\n")
        last = lines.pop()
        if not last:
            return cls(lines, has_bom, None)
        lines.append(last + _return_of(lines[-1] if lines else ""))
        return cls(lines, has_bom, last)

    def with_lines(self, lines: list[str]) -> bytes:
        """Return the bytes of this file after its lines are replaced with `lines`. The byte order mark and a
        missing newline at the end are kept.
        """
        text = "\n".join(lines)
        if lines and self.open_end is None:
            text += "\n"
        elif lines and self.open_end is not None:
            is_unchanged = lines[-1] == self.lines[-1]
            last = self.open_end if is_unchanged else lines[-1].removesuffix("\r")
            text = text[: len(text) - len(lines[-1])] + last
        return f"{_BOM if self.has_bom else ''}{text}".encode("utf-8", "surrogateescape")


def _return_of(line: str) -> str:
    """Return the carriage return at the end of a line, or an empty string."""
    return "\r" if line.endswith("\r") else ""


# --- the four levels ---------------------------------------------------------------------

_PLAIN: Final = str.maketrans(
    dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("‘’‚‛", "'")
    | dict.fromkeys("“”„‟", '"')
    | dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)


def _exact(line: str) -> str:
    return line.removesuffix("\r")


def _with_plain_characters(line: str) -> str:
    return line.removeprefix(_BOM).strip().translate(_PLAIN)


_LEVELS: Final[tuple[Callable[[str], str], ...]] = (_exact, str.rstrip, str.strip, _with_plain_characters)

_Run = tuple[str, ...]
"""Adjacent lines that are searched for as a unit."""


def _blocks(lines: Iterable[str], deadline: Deadline) -> Iterator[list[str]]:
    """Yield the lines in blocks of at most `_BLOCK` lines. Check the deadline before each block."""
    rest = iter(lines)
    while block := list(islice(rest, _BLOCK)):
        deadline.check()
        yield block


class _Level:
    """The lines of the file at one comparison level. Each distinct line to search for has a code, which is one
    character. The file and a run are strings of these codes, so that the search takes linear time even if both
    consist of the same few lines.
    """

    def __init__(
        self, key: Callable[[str], str], lines: list[str], wanted: Iterable[str], deadline: Deadline
    ) -> None:
        """Encode the `lines` of the file. Two lines are equal at this comparison level if `key` returns the same
        text for both. `wanted` contains the at most `_MAX_WANTED` distinct lines to search for.
        """
        self._key, self._deadline = key, deadline
        self._codes: dict[str, str] = {}
        for block in _blocks(wanted, deadline):
            for line in block:
                self._codes.setdefault(key(line), chr(len(self._codes) + 1))
        self._positions: dict[str, list[int]] = {}
        """The positions of each code that occurs in the file."""
        parts: list[str] = []
        start = 0
        for block in _blocks(lines, deadline):
            codes = [self._codes.get(key(line), _OTHER) for line in block]
            for at, code in enumerate(codes, start):
                if code is not _OTHER:
                    self._positions.setdefault(code, []).append(at)
            parts.append("".join(codes))
            start += len(block)
        self._file = "".join(parts)

    def find(self, run: _Run, start: int) -> int | None:
        """Return the first position at or after `start` where all lines of a run match; None if there is no such
        position.
        """
        codes = self._encoded(run)
        rarest = codes[0]
        for block in _blocks(codes, self._deadline):
            rarest = min({rarest, *block}, key=self._count)
        offset, positions = codes.index(rarest), self._positions.get(rarest, [])
        first = bisect_left(positions, start + offset)
        if (len(positions) - first) * len(codes) > len(self._file) - start:
            at = self._file.find(codes, start)
            return at if at >= 0 else None
        candidates = (at - offset for at in islice(positions, first, None))
        return next((at for at in candidates if self._file.startswith(codes, at)), None)

    def matches_at(self, run: _Run, at: int) -> bool:
        return self._file.startswith(self._encoded(run), at)

    def _count(self, code: str) -> int:
        return len(self._positions.get(code, ()))

    def _encoded(self, run: _Run) -> str:
        blocks = _blocks(run, self._deadline)
        return "".join([self._codes[self._key(line)] for block in blocks for line in block])


class _Search:
    """Finds the positions of a patch's chunks in one file. The lines of the file are normalised for each level of
    comparison (exact, without trailing whitespace, and so on) only when this level is first needed.
    """

    def __init__(
        self, text: Text, chunks: Sequence[Chunk], *, path: str, deadline: Deadline, max_wanted: int
    ) -> None:
        self._lines, self._path, self._deadline = text.lines, path, deadline
        self._levels: list[_Level] = []
        self._wanted: dict[str, None] = {}
        """The distinct lines that are searched for, in the order of the patch."""
        for chunk in chunks:
            deadline.check()
            for block in _blocks((*chunk.contexts, *_old(chunk.lines)), deadline):
                self._wanted.update(dict.fromkeys(block))
        if len(self._wanted) > max_wanted:
            raise PatchNotApplied(
                f"error: the patch has more than {max_wanted} distinct context and removed lines for {path}; "
                "split it into smaller patches"
            )

    def after_contexts(self, chunk: Chunk, start: int) -> int:
        """Search for the lines that the chunk names after `@@` (`Chunk.contexts`), from `start` on. Return the
        position after the last of them, where the search for the lines of the chunk begins.

        Raises:
            PatchNotApplied: one of these lines was not found.
        """
        for context in chunk.contexts:
            at = self._find((context,), start)
            if at is None:
                raise PatchNotApplied(f"error: Failed to find context '{context}' in {self._path}")
            start = at + 1
        return start

    def place(self, chunk: Chunk, start: int) -> tuple[int, Sequence[Line]]:
        """Return the position of the old lines (unchanged and removed lines) of a chunk, at or after `start`, and
        the lines of the chunk that match there: either all lines, or all except the empty lines at the end.

        Raises:
            PatchNotApplied: the lines were not found.
        """
        for lines in _readings(chunk):
            old = _old(lines)
            at = self._at_end(old, start) if chunk.at_end else self._find(old, start)
            if at is not None:
                return at, lines
        missing = _old(chunk.lines)
        expected = dumps(missing[:_QUOTED_LINES], ensure_ascii=False)
        more = f" and {len(missing) - _QUOTED_LINES} more" if len(missing) > _QUOTED_LINES else ""
        raise PatchNotApplied(f"error: Failed to find expected lines {expected}{more} in {self._path}")

    def _find(self, run: _Run, start: int) -> int | None:
        found = (level.find(run, start) for level in self._every_level())
        return next((at for at in found if at is not None), None)

    def _at_end(self, run: _Run, start: int) -> int | None:
        at = len(self._lines) - len(run)
        if at < start or not any(level.matches_at(run, at) for level in self._every_level()):
            return None
        return at

    def _every_level(self) -> Iterator[_Level]:
        for number, key in enumerate(_LEVELS):
            if number == len(self._levels):
                self._levels.append(_Level(key, self._lines, self._wanted, self._deadline))
            yield self._levels[number]


def _old(lines: Sequence[Line]) -> _Run:
    return tuple(text for mark, text in lines if mark != "+")


def _readings(chunk: Chunk) -> Iterator[Sequence[Line]]:
    """Yield the variants of a chunk that may match: all of its lines, and its lines without the empty lines at the
    end.
    """
    yield chunk.lines
    if chunk.blanks:
        yield chunk.lines[: -chunk.blanks]


# --- applying chunks -------------------------------------------------------------


def apply_chunks(
    content: bytes, chunks: Sequence[Chunk], *, path: str, deadline: Deadline, max_wanted: int = _MAX_WANTED
) -> bytes:
    """Return the content of the file after all chunks are applied. `path` is the path of the file in error
    messages. `max_wanted` is the maximum number of distinct lines to search for, at most `_MAX_WANTED`.

    Raises:
        PatchNotApplied: the lines of a chunk were not found, the chunks have too many distinct lines, or the search
            took too long.
    """
    if not chunks:
        return content
    text = Text.of(content)
    deadline.check()
    search = _Search(text, chunks, path=path, deadline=deadline, max_wanted=max_wanted)
    lines: list[str] = []
    appended: list[str] = []
    copied = start = 0
    for chunk in chunks:
        start = search.after_contexts(chunk, start)
        *_, shortest = _readings(chunk)
        if all(mark == "+" for mark, _ in shortest):
            appended += _with_ends([added for _, added in shortest], text.lines[-1:])
            continue
        at, found = search.place(chunk, start)
        lines += text.lines[copied:at]
        new, copied = _replaced(found, text.lines, at)
        first = next((mark for mark, _ in found if mark != "-"), None)
        if text.has_bom and not lines and first == "+":
            new[0] = new[0].removeprefix(_BOM)
        lines += new
        start = copied
    return text.with_lines(lines + text.lines[copied:] + appended)


def _replaced(lines: Sequence[Line], old: list[str], at: int) -> tuple[list[str], int]:
    """Apply the lines of a chunk to the file at the position `at`. Return the new lines, and the position in the
    file after the replaced lines. `lines` are the lines of the chunk, and `old` contains all lines of the file.
    """
    new: list[str] = []
    for is_kept, group in groupby(lines, key=lambda line: line[0] == " "):
        run = list(group)
        if is_kept:
            new += old[at : at + len(run)]
            at += len(run)
            continue
        added = [text for mark, text in run if mark == "+"]
        removed = old[at : at + len(run) - len(added)]
        at += len(removed)
        new += _with_ends(added, removed or old[at - 1 : at] or old[at : at + 1])
    return new, at


def _with_ends(added: list[str], like: list[str]) -> list[str]:
    """Return the added lines with the line endings of the lines `like`. Each line ends like the line with the same
    index in `like`. Lines beyond the length of `like` end like the last line in `like`.

    An added line that ends with a carriage return is not changed.
    """
    if not like:
        return added
    ends = [_return_of(line) for line in like]
    return [
        line if line.endswith("\r") else line + ends[min(number, len(ends) - 1)]
        for number, line in enumerate(added)
    ]
