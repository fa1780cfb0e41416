"""Reads the user's small files, such as settings, keys and scripts.

`guarded_files.py` reads files that a repository or a model may have written. The server is blocked while it reads a
file. Opening a pipe or a device therefore raises an error, because reading from it could block the server forever.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import BinaryIO, Final, NamedTuple

__all__ = ["INVALID_PATH", "FileVersion", "file_version", "open_file", "read_file", "read_now"]

SETTLED_SECONDS: Final = 1.0
"""The number of seconds for which a file has no version after a change. The time is longer than a tick of the
kernel's clock, because two changes within one tick give a file the same timestamps.
"""

INVALID_PATH: Final = "not a valid file path"
"""The error text for a path that no file can have, because it contains a NUL or an unpaired surrogate."""


class FileVersion(NamedTuple):
    """The identity and the times of a file. If two versions of a path are equal, the contents are equal as well."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def read_file(path: str | os.PathLike[str], *, limit: int = -1) -> bytes:
    """Return the content of a regular file, at most `limit` bytes. A negative limit means no limit. Symbolic links
    are followed.

    Raises:
        OSError: the file does not exist, is not a regular file, or cannot be read without blocking.
    """
    with open_file(path) as file:
        return read_now(file, limit=limit)


def file_version(path: str | os.PathLike[str]) -> FileVersion | None:
    """Return the version of a file. Every later change of the file changes its version. Symbolic links are
    followed.

    Return None if the file does not exist, or if it changed less than `SETTLED_SECONDS` ago.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if found.st_ctime + SETTLED_SECONDS > time.time():
        return None
    return FileVersion(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file with O_NONBLOCK, and return it. `read_now` reads such a file. Symbolic links are
    followed.

    Raises:
        OSError: the file does not exist, is not a regular file, or cannot be opened.
    """
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - the caller closes it
    except ValueError:
        raise OSError(0, INVALID_PATH) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "not a regular file")
    return file


def read_now(file: BinaryIO, *, limit: int = -1) -> bytes:
    """Return the content of a file that was opened with O_NONBLOCK, at most `limit` bytes. A negative limit means
    no limit.

    Raises:
        OSError: the file cannot be read without blocking. Some regular files in /proc block like pipes.
    """
    content: bytes | None = file.read(limit)
    if content is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content
