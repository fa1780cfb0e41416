"""Identifies the working directory and the program file of a command, and detects whether they were replaced.

An approval is valid only for the directory, the program file and the words of the command. `CommandTarget` keeps
the directory open, so that its inode number is not reused while the user decides.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Self

from parley.conversation.records import Changed
from parley.ports.commands import Approved
from parley.tools.commands.programs import DEFAULT_PATH, NOTHING, candidates, identity, runnable

__all__ = ["CommandTarget"]

_HOLD: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class CommandTarget:
    """The working directory and the program of a command, as they were when this object was created."""

    def __init__(self, argv: Sequence[str], cwd: str, search_path: str | None) -> None:
        self._argv, self._cwd, self._search_path = argv, cwd, search_path
        self._folder = _held(cwd)
        directory = NOTHING if self._folder is None else identity(os.fstat(self._folder))
        self._place, program = self._program()
        self.approved = Approved(directory=directory, program=program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            os.close(self._folder)

    @property
    def covers(self) -> str:
        """The string that identifies the working directory and the program in the record of an approval."""
        its = self.approved
        numbers = " ".join(f"{device}:{inode}" for device, inode in (its.directory, its.program))
        return f"{numbers} {self._place.decode(errors='backslashreplace')}"

    def change(self) -> Changed | None:
        """Return `directory` or `program` if the directory or the program has been replaced since this object was
        created. Return None if neither has been replaced.
        """
        with CommandTarget(self._argv, self._cwd, self._search_path) as now:
            if now.approved.directory != self.approved.directory:
                return "directory"
            return None if now.covers == self.covers else "program"

    def _program(self) -> tuple[bytes, tuple[int, int]]:
        try:
            name = os.fsencode(self._argv[0])
            path = DEFAULT_PATH if self._search_path is None else os.fsencode(self._search_path)
            if self._folder is not None:
                for place in candidates(name, path, folder=self._folder):
                    if (found := runnable(place, folder=self._folder)) is not None:
                        return place, found
        except ValueError:
            pass  # the name contains a NUL or cannot be encoded; the error is reported when the command is started
        return b"", NOTHING


def _held(cwd: str) -> int | None:
    try:
        return os.open(cwd, _HOLD)
    except (OSError, ValueError):
        return None  # the error is reported when the command is started
