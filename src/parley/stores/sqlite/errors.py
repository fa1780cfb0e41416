"""Converts errors from SQLite and the operating system to Parley errors."""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from parley.common.os_errors import OUT_OF_MEMORY, os_detail
from parley.errors import BadHome, StoreFailed
from parley.stores.sqlite.files import DATABASE, SHARED_MEMORY
from parley.stores.sqlite.lock_holders import holder_of

__all__ = ["REPAIR", "opening_error", "store_error"]

REPAIR: Final = "`parley doctor --repair DIRECTORY` saves what can be read into a new home"

_PRIMARY: Final = 0xFF
"""The mask that selects the primary result code from an extended result code of SQLite."""

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def store_error(home: str, error: Exception) -> Exception:
    """Convert an error from SQLite or the operating system, or a `MemoryError`, to a Parley error. Return any other
    error unchanged.
    """
    if isinstance(error, MemoryError):
        return StoreFailed(OUT_OF_MEMORY)
    if isinstance(error, OSError):
        return StoreFailed(os_detail(error))
    if not isinstance(error, sqlite3.Error):
        return error
    code = _code(error)
    if code in _DAMAGED:
        return BadHome(home, f"the database is damaged ({error}); nothing in it was changed. {REPAIR}")
    if code == sqlite3.SQLITE_READONLY:
        return BadHome(home, "conversations cannot be stored here: it is read-only")
    if code == sqlite3.SQLITE_BUSY:
        holder = holder_of(os.path.join(home, SHARED_MEMORY), os.path.join(home, DATABASE))
        return StoreFailed(f"{error}, by {holder}" if holder is not None else str(error))
    if code == sqlite3.SQLITE_FULL:
        return StoreFailed(f"{error}; free some space on the disk of {home}")
    if code == sqlite3.SQLITE_IOERR:
        return StoreFailed(f"{error} ({error.sqlite_errorname})")
    return StoreFailed(str(error))


def opening_error(home: str, error: Exception) -> Exception:
    """Return the error to raise after `error` has occurred during the opening of a home.

    An error from the operating system becomes `BadHome`. An SQLite error that reports that a file cannot be opened
    also becomes `BadHome`. For all other errors, the result is the same as that of `store_error`.
    """
    if isinstance(error, OSError):
        return BadHome(home, f"conversations cannot be stored here: {os_detail(error)}")
    if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_CANTOPEN:
        return BadHome(home, f"conversations cannot be stored here: {_no_file_can_be_opened() or error}")
    return store_error(home, error)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY


def _no_file_can_be_opened() -> str | None:
    """Return the reason why this process cannot open any file; None if this process can open files.

    SQLite reports only that it could not open its own file. This function determines whether the cause is in the
    process, for example that all descriptors are in use.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return os_detail(error)
    return None
