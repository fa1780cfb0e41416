"""Files and directories that somebody else may have put there: what they are, and reading small ones.

Files of the home and of a project are read while clients wait: what is no regular file, a pipe
or a device, is refused before it can make anybody wait for a writer.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import BinaryIO, Final

__all__ = ["is_hidden", "is_repository", "read_file", "read_now"]

_NO_PATH: Final = "not the path of a file"
"""Said of what no file can be called, because of a NUL in it or half a surrogate pair."""

_MAY_NOT: Final = "may not be read"

_LONGEST: Final = 1024
"""No path on macOS is longer."""


def is_hidden(path: str | os.PathLike[str], hidden: Iterable[str]) -> bool:
    """Whether a path leads, through whatever links, to one of those that are hidden, or into it."""
    try:
        real, places = os.path.realpath(path), [os.path.realpath(place) for place in hidden]
    except ValueError:
        return False  # nothing can be called that
    except OSError:
        return True  # somebody moves a directory on the way about just now
    return any(os.path.commonpath((real, place)) == place for place in places)


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


def read_file(path: str | os.PathLike[str], *, limit: int = -1, hidden: Sequence[str] = ()) -> bytes:
    """The content of a regular file, at most `limit` bytes of it.

    It must not be one of the `hidden` paths, nor in one of them. What has been opened is looked at too: the
    path may lead elsewhere by then.

    Raises:
        OSError: there is none nor can be, it may not be read, at all or now, or it is something else.
    """
    if is_hidden(path, hidden):
        raise OSError(0, _MAY_NOT)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "not a regular file")
            if hidden and is_hidden(_path_of(file.fileno()), hidden):
                raise OSError(0, _MAY_NOT)
            return read_now(file, limit=limit)
    except ValueError:
        raise OSError(0, _NO_PATH) from None


def _path_of(descriptor: int) -> str:
    """Where an open file lies, whatever path it was opened by."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(_LONGEST)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}")


def read_now(file: BinaryIO, *, limit: int = -1) -> bytes:
    """What an open file has, at most `limit` bytes, without waiting for more where it was opened like that.

    Raises:
        OSError: it cannot be read, or has nothing yet: some that are called regular, as in /proc, are like pipes.
    """
    content: bytes | None = file.read(limit)
    if content is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content
