"""Finds the file of a command's program by name, and identifies it by device and inode.

Uses the standard library alone, because the supervisors load it.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # as in `typing`, whose import would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    Identity = tuple[int, int]
    """Device and inode."""

__all__ = ["DEFAULT_PATH", "NOTHING", "candidates", "identity", "runnable"]

DEFAULT_PATH: Final = b"/bin:/usr/bin"
"""Where programs are looked up if the command's environment has no PATH."""

NOTHING: Final = (0, 0)
"""The identity that stands for a missing file. No file has it."""


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def candidates(name: bytes, path: bytes, *, folder: int | None = None) -> Iterator[bytes]:
    """Yield the paths of existing files: the name itself if it has a slash, else in each directory of `path`.

    `folder` is a descriptor of the working directory; None is the current directory.
    """
    if b"/" in name:
        yield name
    elif name:
        for directory in path.split(b":"):
            place = os.path.join(directory or b".", name)
            if os.access(place, os.F_OK, dir_fd=folder):
                yield place


def runnable(place: bytes, *, folder: int | None = None) -> Identity | None:
    """Return the identity of an executable file, or None if there is none at that path."""
    try:
        found = os.stat(place, dir_fd=folder)
        may_run = stat.S_ISREG(found.st_mode) and os.access(place, os.X_OK, dir_fd=folder)
    except OSError:
        return None
    return identity(found) if may_run else None
