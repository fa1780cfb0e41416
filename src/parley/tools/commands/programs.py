"""Finds a command's program file by name, and identifies the file by device and inode.

This module imports only the standard library, because the supervisors load it.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    Identity = tuple[int, int]
    """The device and inode of a file."""

__all__ = ["DEFAULT_PATH", "NOTHING", "candidates", "identity", "runnable"]

DEFAULT_PATH: Final = b"/bin:/usr/bin"
"""The PATH that is used if the command's environment has no PATH."""

NOTHING: Final = (0, 0)
"""The identity of a missing file. No existing file has this device and inode."""


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def candidates(name: bytes, path: bytes, *, folder: int | None = None) -> Iterator[bytes]:
    """Yield the paths at which the program `name` may be found.

    A name with a slash is a path and is yielded unchanged. Any other name is looked up in each directory of the
    search path `path`, and only existing files are yielded.

    `folder` is a descriptor of the working directory; None means the current directory.
    """
    if b"/" in name:
        yield name
    elif name:
        for directory in path.split(b":"):
            place = os.path.join(directory or b".", name)
            if os.access(place, os.F_OK, dir_fd=folder):
                yield place


def runnable(place: bytes, *, folder: int | None = None) -> Identity | None:
    """Return the identity of the file at the path `place`; None if there is no executable regular file.

    `folder` is a descriptor of the directory to which the path is relative; None means the current directory.
    """
    try:
        found = os.stat(place, dir_fd=folder)
        may_run = stat.S_ISREG(found.st_mode) and os.access(place, os.X_OK, dir_fd=folder)
    except OSError:
        return None
    return identity(found) if may_run else None
