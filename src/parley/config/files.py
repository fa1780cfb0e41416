"""Reading small files that somebody else may have put there.

Files of the home and of a project are read while clients wait: what is no regular file, a pipe
or a device, is refused before it can make anybody wait for a writer.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final

__all__ = ["NO_PATH", "read_file", "read_now"]

NO_PATH: Final = "not the path of a file"
"""Said of what no file can be called, because of a NUL in it or half a surrogate pair."""


def read_file(path: str | os.PathLike[str], *, limit: int = -1) -> bytes:
    """The content of a regular file, at most `limit` bytes of it.

    Raises:
        OSError: there is none nor can be, it may not be read now, or it is something else.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "not a regular file")
            return read_now(file, limit=limit)
    except ValueError:
        raise OSError(0, NO_PATH) from None


def read_now(file: BinaryIO, *, limit: int = -1) -> bytes:
    """What an open file has, at most `limit` bytes, without waiting for more where it was opened like that.

    Raises:
        OSError: it cannot be read, or has nothing yet: some that are called regular, as in /proc, are like pipes.
    """
    content: bytes | None = file.read(limit)
    if content is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content
