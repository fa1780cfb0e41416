"""Lets processes find the resident server of a home directory by means of a lock, a socket and a description file.

A server holds a lock on the file `serve.lock` while it is running, and the operating system releases the lock when
the process of the server ends. If the lock file is removed, the running server creates it again. The file
`serve.json` describes the server. A server that is killed does not remove this file.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import Any, Final

from parley.common.files import read_file

__all__ = [
    "ResidentLock",
    "describe",
    "describe_holder",
    "is_running",
    "read_description",
    "remove_description",
    "wait_until_stopped",
]

LOCK: Final = "serve.lock"
DESCRIPTION: Final = "serve.json"
_MAX_DESCRIPTION_BYTES: Final = 64 * 1024


class ResidentLock:
    """The lock that the resident server of a home directory holds while it is running."""

    def __init__(self, home: str) -> None:
        """Open the lock file of a home directory, and create the file if it is missing. The lock is not acquired
        yet.

        Raises:
            OSError: the file cannot be opened or created.
        """
        self._path = os.path.join(home, LOCK)
        self._fd = self._open()

    def acquire(self) -> bool:
        """Acquire the lock, and return True. Return False if another resident server holds the lock.

        Raises:
            OSError: the lock file was removed and cannot be created again, or the file system does not support
                locks.
        """
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self._is_current():
                return True
            os.close(self._fd)  # the file was removed after this process had opened it
            self._fd = self._open()

    def keep(self) -> bool:
        """If the lock file was removed or replaced, acquire the lock of the new file. Return whether this was
        necessary.

        Raises:
            OSError: the file cannot be created, or another process holds the lock of the new file.
        """
        if self._is_current():
            return False
        held, self._fd = self._fd, self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            self._fd = held
            raise
        os.close(held)
        return True

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _is_current(self) -> bool:
        """Return whether the lock file that this object has open is still the lock file of the home directory."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        os.close(self._fd)


def is_running(home: str) -> bool:
    """Return whether a resident server of the home directory holds the lock."""
    try:
        fd = os.open(os.path.join(home, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def describe_holder(home: str) -> str:
    """Return a description of the process that holds the lock of the resident server, for error messages."""
    from parley.stores.sqlite.lock_holders import UNKNOWN, holder_of

    return holder_of(os.path.join(home, LOCK)) or UNKNOWN


def wait_until_stopped(home: str) -> None:
    """Block until no resident server of the home directory is running.

    Raises:
        OSError: the lock file exists and cannot be opened or locked.
    """
    try:
        fd = os.open(os.path.join(home, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def describe(home: str, description: dict[str, Any]) -> None:
    """Write the description of this server to `serve.json`. Only the server that holds the lock may call this
    function.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(home, DESCRIPTION)
    unfinished = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished)  # left over from a server that was killed
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(description, file)
    os.rename(unfinished, path)


def remove_description(home: str) -> None:
    with suppress(OSError):
        os.unlink(os.path.join(home, DESCRIPTION))


def read_description(home: str) -> dict[str, Any]:
    """Return the description of the server that was started last; an empty dictionary if there is no valid
    description.
    """
    try:
        found = json.loads(read_file(os.path.join(home, DESCRIPTION), limit=_MAX_DESCRIPTION_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
