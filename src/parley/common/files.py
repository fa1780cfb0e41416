"""Reads small files of the user: settings, keys, scripts.

Files that a repository or a model may have written are read by `guarded_files.py` instead. Clients wait while a
file is read, so a pipe or a device is refused before it can block the server.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final

__all__ = ["read_file", "read_now"]

_NO_PATH: Final = "not the path of a file"
"""The reason for a name with a NUL or an unpaired surrogate, which no file can have."""


def read_file(path: str | os.PathLike[str], *, limit: int = -1) -> bytes:
    """Return the content of a regular file, at most `limit` bytes. Symbolic links are followed.

    Raises:
        OSError: the file does not exist, is not a regular file, or cannot be read without waiting.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "not a regular file")
            return read_now(file, limit=limit)
    except ValueError:
        raise OSError(0, _NO_PATH) from None


def read_now(file: BinaryIO, *, limit: int = -1) -> bytes:
    """Return the content of a file that was opened with O_NONBLOCK, at most `limit` bytes.

    Raises:
        OSError: it cannot be read, or not yet: some regular files, as in /proc, behave like pipes.
    """
    content: bytes | None = file.read(limit)
    if content is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content
