"""Reading the small files of the user: settings, keys, scripts.

What a repository or a model may have written is read by `common/guarded_files.py` instead.

Files are read while clients wait: a pipe or a device is refused before it can make the server wait for a writer.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Final

__all__ = ["is_repository", "read_file", "read_now"]

_NO_PATH: Final = "not the path of a file"
"""Said of what no file can be called, because of a NUL in it or half a surrogate pair."""


def is_repository(folder: str | os.PathLike[str]) -> bool:
    """Whether it has a `.git`; an empty one is none, such as a sandbox puts there to keep the place."""
    git = os.path.join(folder, ".git")
    try:
        with os.scandir(git) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False
    except OSError:
        return os.path.lexists(git)


def read_file(path: str | os.PathLike[str], *, limit: int = -1) -> bytes:
    """The content of a regular file, at most `limit` bytes of it. Links are followed: for files of the user alone.

    Raises:
        OSError: there is none nor can be, it may not be read, at all or now, or it is something else.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "not a regular file")
            return read_now(file, limit=limit)
    except ValueError:
        raise OSError(0, _NO_PATH) from None


def read_now(file: BinaryIO, *, limit: int = -1) -> bytes:
    """What an open file has, at most `limit` bytes, without waiting for more where it was opened like that.

    Raises:
        OSError: it cannot be read, or has nothing yet: some that are called regular, as in /proc, are like pipes.
    """
    content: bytes | None = file.read(limit)
    if content is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content
