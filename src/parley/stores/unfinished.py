"""Files that have their name once they are whole.

Until then they stand beside it under another one, and are locked by whoever writes them: what a process that was
killed has left is removed by the next that writes there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from secrets import token_hex
from typing import Final, Self

__all__ = ["Unfinished", "folder_of"]

_BESIDE: Final = ("", "-journal", "-wal", "-shm")
"""What SQLite may have put beside a file, by how the names end."""

_LEFT: Final = re.compile(rf"(\.parley-[0-9a-f]{{16}}\.part)(?:{'|'.join(_BESIDE)})")

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems say on which a file has one name."""


def folder_of(path: str) -> str:
    """The directory that a path leads to, as the system reads it."""
    return os.path.dirname(path) or os.curdir


class Unfinished:
    """`with Unfinished(path) as file`: an empty file of the name `file.name`, gone when the block ends. Who has
    written it whole gives it its name before.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self.name = ""

    def __enter__(self) -> Self:
        folder = folder_of(self._path)
        with suppress(PermissionError):  # one may be allowed to write where one may not look
            for name in {match[1] for one in os.listdir(folder) if (match := _LEFT.fullmatch(one))}:
                _remove_if_left(os.path.join(folder, name))
        while self._fd < 0:
            self.name = os.path.join(os.path.dirname(self._path), f".parley-{token_hex(8)}.part")
            self._fd = os.open(self.name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # there are file systems without locks; nobody removes anything there
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            if not os.fstat(self._fd).st_nlink:  # somebody took it for left before it was locked
                self._close()
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self.name)
        self._close()

    def give_name(self, *, over: bool) -> None:
        """Let it be `path`, now that it is whole: in place of what has that name, or not at all.

        Raises:
            FileExistsError: there is something of that name, and it stays.
            OSError: it cannot be.
        """
        os.fsync(self._fd)
        if over:
            os.replace(self.name, self._path)
            return
        try:
            os.link(self.name, self._path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self._path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path) from None
            os.rename(self.name, self._path)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def _remove_if_left(name: str) -> None:
    try:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        _remove(name)  # only what SQLite has put beside it is there
        return
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(name)
    except OSError:
        pass  # somebody writes it
    finally:
        os.close(fd)


def _remove(name: str) -> None:
    """With all that SQLite has put beside it."""
    for ending in _BESIDE:
        with suppress(FileNotFoundError):
            os.unlink(name + ending)
