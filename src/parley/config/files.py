"""Reading small files that somebody else may have put there.

Files of the home and of a project are read while clients wait: what is no regular file, a pipe
or a device, is refused before it can make anybody wait for a writer.
"""

from __future__ import annotations

import os
import stat

__all__ = ["read_file"]


def read_file(path: str | os.PathLike[str], *, limit: int = -1) -> bytes:
    """The content of a regular file, at most `limit` bytes of it.

    Raises:
        OSError: there is none, it may not be read, or it is something else.
        ValueError: the path holds a NUL.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file")
        return file.read(limit)
