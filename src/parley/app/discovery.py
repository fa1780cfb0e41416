"""Lets the processes of a home find its resident server by a lock, a socket and a file that describes the server.

The lock `serve.lock` says whether a server runs, since the system releases it when the server dies. The file
`serve.json` describes the server. It may be left over from a server that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import Any, Final

__all__ = ["ResidentLock", "describe", "read_description", "remove_description", "wait_until_stopped"]

LOCK: Final = "serve.lock"
DESCRIPTION: Final = "serve.json"


class ResidentLock:
    """The lock that the resident server of a home holds while it runs."""

    def __init__(self, home: str) -> None:
        """Open the lock of a home. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(os.path.join(home, LOCK), flags, 0o600)

    def acquire(self) -> bool:
        """Acquire the lock; return False if another resident server holds it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        os.close(self._fd)


def wait_until_stopped(home: str) -> None:
    """Block until no resident server of the home runs. Raises OSError."""
    try:
        fd = os.open(os.path.join(home, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def describe(home: str, description: dict[str, Any]) -> None:
    """Write the description of this server, which holds the lock. Raises OSError."""
    path = os.path.join(home, DESCRIPTION)
    unfinished = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished)  # of a server that was killed
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(description, file)
    os.rename(unfinished, path)


def remove_description(home: str) -> None:
    with suppress(OSError):
        os.unlink(os.path.join(home, DESCRIPTION))


def read_description(home: str) -> dict[str, Any]:
    """Return the description of the server that was started last; empty if there is none."""
    try:
        with open(os.path.join(home, DESCRIPTION), "rb") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
