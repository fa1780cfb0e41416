"""Files that have their name once they are whole.

Until then they stand beside it under a name that tells which process writes them: what one that was killed has left
is removed by the next that writes there.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import Final

__all__ = ["folder_of", "give_name", "remove_unfinished", "unfinished_beside"]

_BESIDE: Final = ("", "-journal", "-wal", "-shm")
"""What SQLite may have put beside a file, by how the names end."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems say on which a file has one name."""


def folder_of(path: str) -> str:
    """The directory that a path leads to, as the system reads it."""
    return os.path.dirname(path) or os.curdir


def unfinished_beside(path: str) -> str:
    """A name for a file that is to become `path`; what others left unfinished there is gone.

    Raises:
        OSError: nothing can be written there.
    """
    name = os.path.basename(path)
    left = re.compile(re.escape(f".{name}.") + rf"(\d+)\.part({'|'.join(_BESIDE)})")
    with suppress(PermissionError):  # one may be allowed to write where one may not look
        for found in os.listdir(folder_of(path)):
            if (match := left.fullmatch(found)) is not None and not _is_another(int(match[1])):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder_of(path), found))
    return os.path.join(os.path.dirname(path), f".{name}.{os.getpid()}.part")


def _is_another(pid: int) -> bool:
    """Whether it is a process besides this one."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def give_name(unfinished: str, path: str, *, over: bool) -> None:
    """Let a file that is whole be `path`: in place of what has that name, or not at all.

    Raises:
        FileExistsError: there is something of that name, and it stays.
        OSError: it cannot be.
    """
    if over:
        os.replace(unfinished, path)
        return
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.rename(unfinished, path)
    else:
        os.unlink(unfinished)


def remove_unfinished(unfinished: str) -> None:
    """With all that SQLite has put beside it."""
    for ending in _BESIDE:
        with suppress(FileNotFoundError):
            os.unlink(unfinished + ending)
