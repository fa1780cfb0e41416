"""A copy of a database that others go on using."""

from __future__ import annotations

import os
import sqlite3

from parley.stores.home import sync_directory

__all__ = ["copy_to"]


def copy_to(db: sqlite3.Connection, path: str) -> bool:
    """Write the whole database as of one moment into one file, which has its name when it is complete.

    Says whether it did: a file that is there stays as it is.
    """
    if os.path.lexists(path):
        return False
    unfinished = f"{path}.{os.getpid()}.part"
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        copy = sqlite3.connect(unfinished, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = OFF")  # the whole file is synced below
            db.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        fd = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(unfinished, path)
    except BaseException:
        for leftover in (unfinished, f"{unfinished}-journal", f"{unfinished}-wal", f"{unfinished}-shm"):
            if os.path.exists(leftover):
                os.unlink(leftover)
        raise
    sync_directory(os.path.dirname(os.path.abspath(path)))
    return True
