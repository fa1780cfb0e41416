"""Which file a command's program is: looked up by its name, and recognised by its device and inode.

Needs the standard library alone: the supervisor of a command uses it, and the tool that asks about the command.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    Identity = tuple[int, int]
    """Device and inode."""

__all__ = ["DEFAULT_PATH", "NOTHING", "candidates", "identity", "runnable"]

DEFAULT_PATH: Final = b"/bin:/usr/bin"
"""Where a program is looked for when the command's environment has no PATH."""

NOTHING: Final = (0, 0)
"""The identity of what does not exist: no file has it."""


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def candidates(name: bytes, path: bytes, *, folder: int | None = None) -> Iterator[bytes]:
    """Where the program may be: in the directories of the command's own PATH, unless it names one itself.

    `folder` is the descriptor of the working directory; None: the current one.
    """
    if b"/" in name:
        yield name
    elif name:
        for directory in path.split(b":"):
            place = os.path.join(directory or b".", name)
            if os.access(place, os.F_OK, dir_fd=folder):
                yield place


def runnable(place: bytes, *, folder: int | None = None) -> Identity | None:
    """The identity of a program file; None: there is none that may be run."""
    try:
        found = os.stat(place, dir_fd=folder)
        may_run = stat.S_ISREG(found.st_mode) and os.access(place, os.X_OK, dir_fd=folder)
    except OSError:
        return None
    return identity(found) if may_run else None
