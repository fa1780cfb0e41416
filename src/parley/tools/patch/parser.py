"""Parses a patch into hunks (docs/protocol.md#apply_patch).

Markers may be surrounded by whitespace, and the patch may be wrapped in a heredoc. Any other deviation raises
`PatchNotApplied`, which names the line.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NoReturn

from msgspec import Struct

from parley.tools.errors import PatchNotApplied
from parley.tools.patch.deadline import CancelToken

__all__ = ["AddFile", "Chunk", "DeleteFile", "Hunk", "Line", "Mark", "UpdateFile", "parse"]

_BEGIN: Final = "*** Begin Patch"
_END: Final = "*** End Patch"
_ADD: Final = "*** Add File: "
_DELETE: Final = "*** Delete File: "
_UPDATE: Final = "*** Update File: "
_MOVE: Final = "*** Move to: "
_END_OF_FILE: Final = "*** End of File"
_CONTEXT: Final = "@@"

_HEADERS: Final = "'*** Add File: {path}', '*** Delete File: {path}', '*** Update File: {path}'"
_HEREDOC: Final = re.compile(r"<<\s*(['\"]?)(\w+)\1")

Mark = Literal[" ", "-", "+"]
Line = tuple[Mark, str]
"""A line of a chunk: its mark (unchanged, removed or added), and its text without the line ending."""

_MARKS: Final[dict[str, Mark]] = {" ": " ", "-": "-", "+": "+"}


class Chunk(Struct, frozen=True):
    """A change to adjacent lines of a file."""

    contexts: tuple[str, ...]
    """The lines that the patch names after `@@`. They precede the chunk in the file, in this order, and other lines
    may lie between them.
    """
    lines: tuple[Line, ...]
    at_end: bool
    """True if the chunk must match the last lines of the file."""
    blanks: int
    """The number of empty lines at the end of the chunk. They are either unchanged lines of the file, or empty
    lines that separate two hunks.
    """


class AddFile(Struct, frozen=True):
    path: str
    lines: tuple[str, ...]


class DeleteFile(Struct, frozen=True):
    path: str


class UpdateFile(Struct, frozen=True):
    path: str
    move_to: str | None
    chunks: tuple[Chunk, ...]
    """The changes to the file; empty if the patch only moves the file."""


Hunk = AddFile | DeleteFile | UpdateFile


def parse(patch: str, *, cancel: CancelToken | None = None) -> tuple[Hunk, ...]:
    """Return the hunks of a patch, in order. A patch may have no hunks.

    Raises:
        PatchNotApplied: the text is not a patch, or the work was cancelled.
    """
    lines = _without_returns(patch.strip().split("\n"))
    wrapper = _HEREDOC.fullmatch(lines[0].strip())
    if wrapper and lines[-1].strip() == wrapper[2]:
        lines = "\n".join(lines[1:-1]).strip().split("\n")
    if lines[0].strip() != _BEGIN:
        raise PatchNotApplied(f"error: invalid patch: The first line of the patch must be '{_BEGIN}'")
    if lines[-1].strip() != _END:
        raise PatchNotApplied(f"error: invalid patch: The last line of the patch must be '{_END}'")
    return _Reader(lines[:-1], cancel or CancelToken()).hunks()


def _without_returns(lines: list[str]) -> list[str]:
    """Return the lines without the carriage returns that belong to the line endings of the patch.

    If some lines of the patch have no carriage return, the carriage return of an added line is part of its text.
    """
    if all(line.endswith("\r") for line in lines[:-1]):
        return [line.removesuffix("\r") for line in lines]
    return [line if line.startswith("+") else line.removesuffix("\r") for line in lines]


class _Reader:
    """Reads the lines between the begin and end markers of a patch, in one pass."""

    def __init__(self, lines: list[str], cancel: CancelToken) -> None:
        self._lines, self._cancel = lines, cancel
        self._at = 1
        """The number of lines that were read, including the begin marker."""

    def hunks(self) -> tuple[Hunk, ...]:
        hunks: list[Hunk] = []
        while self._skip_blanks():
            self._cancel.check()
            header = self._next().strip()
            if header.startswith(_ADD):
                hunks.append(AddFile(header[len(_ADD) :].strip(), self._added()))
            elif header.startswith(_DELETE):
                hunks.append(DeleteFile(header[len(_DELETE) :].strip()))
            elif header.startswith(_UPDATE):
                hunks.append(self._update(header[len(_UPDATE) :].strip()))
            else:
                self._refuse(f"'{header}' is not a valid hunk header. Valid hunk headers: {_HEADERS}")
        return tuple(hunks)

    def _added(self) -> tuple[str, ...]:
        start = self._at
        while (line := self._peek()) is not None and line.startswith("+"):
            self._at += 1
        return tuple(line[1:] for line in self._lines[start : self._at])

    def _update(self, path: str) -> UpdateFile:
        move_to = None
        if (line := self._peek()) is not None and line.strip().startswith(_MOVE):
            move_to = self._next().strip()[len(_MOVE) :].strip()
        number = self._at
        chunks: list[Chunk] = []
        while self._skip_blanks() and not self._lines[self._at].startswith("***"):
            self._cancel.check()
            chunks.append(self._chunk(is_first=not chunks))
        if not chunks and move_to is None:
            self._refuse(f"Update file hunk for path '{path}' is empty", number=number)
        return UpdateFile(path, move_to, tuple(chunks))

    def _chunk(self, *, is_first: bool) -> Chunk:
        contexts = self._contexts()
        if contexts is None and not is_first:
            self._refuse(f"Expected update hunk to start with a @@ context marker, got: '{self._next()}'")
        lines: list[Line] = []
        blanks, at_end = 0, False
        while (line := self._peek()) is not None:
            if line.rstrip() == _END_OF_FILE:
                at_end = bool(lines)
                break
            if line == "":
                lines.append((" ", ""))
                blanks += 1
            elif (mark := _MARKS.get(line[0])) is not None:
                lines.append((mark, line[1:]))
                blanks = 0
            else:
                break
            self._at += 1
        if not lines:
            self._refuse_empty_chunk()
        if at_end:
            self._at += 1
        return Chunk(contexts or (), tuple(lines), at_end, blanks)

    def _contexts(self) -> tuple[str, ...] | None:
        """Read the next lines as long as they begin with `@@`. Return the part of each line after the `@@`, except
        parts that contain only whitespace. Return None if the next line does not begin with `@@`.
        """
        start = self._at
        while (line := self._peek()) is not None and (line == _CONTEXT or line.startswith(f"{_CONTEXT} ")):
            self._at += 1
        if start == self._at:
            return None
        texts = (line[len(_CONTEXT) + 1 :] for line in self._lines[start : self._at])
        return tuple(text for text in texts if text.strip())

    def _refuse_empty_chunk(self) -> NoReturn:
        line = self._peek()
        if line is None or line.startswith("***"):
            self._refuse("Update hunk does not contain any lines")
        self._at += 1
        self._refuse(
            f"Unexpected line found in update hunk: '{line}'. Every line should start with "
            "' ' (context line), '+' (added line), or '-' (removed line)"
        )

    # --- single lines ----------------------------------------------------------

    def _peek(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _next(self) -> str:
        self._at += 1
        return self._lines[self._at - 1]

    def _skip_blanks(self) -> bool:
        """Skip empty lines. Return whether another line follows."""
        while self._peek() == "":
            self._at += 1
        return self._at < len(self._lines)

    def _refuse(self, why: str, *, number: int | None = None) -> NoReturn:
        raise PatchNotApplied(f"error: invalid hunk at line {self._at if number is None else number}, {why}")
