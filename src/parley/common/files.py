"""Reads small files of the user, such as settings, keys and scripts.

`guarded_files.py` reads files that a repository or a model may have written. The server is blocked while it reads a
file. Reading a pipe or a device therefore raises an error, because they may never return data.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final

__all__ = ["open_file", "read_file", "read_now"]

_NO_PATH: Final = "not the path of a file"
"""The error text for a path that no file can have, because it contains a NUL or an unpaired surrogate."""


def read_file(path: str | os.PathLike[str], *, limit: int = -1) -> bytes:
    """Return the content of a regular file, at most `limit` bytes. A negative limit means no limit. Symbolic links
    are followed.

    Raises:
        OSError: the file does not exist, is not a regular file, or cannot be read without blocking.
    """
    with open_file(path) as file:
        return read_now(file, limit=limit)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for `read_now`. Symbolic links are followed.

    Raises:
        OSError: the file does not exist, is not a regular file, or cannot be opened.
    """
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - the caller closes it
    except ValueError:
        raise OSError(0, _NO_PATH) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "not a regular file")
    return file


def read_now(file: BinaryIO, *, limit: int = -1) -> bytes:
    """Return the content of a file that was opened with O_NONBLOCK, at most `limit` bytes. A negative limit means
    no limit.

    Raises:
        OSError: the file cannot be read without blocking. Some regular files, as in /proc, block like pipes.
    """
    content: bytes | None = file.read(limit)
    if content is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content
