"""Opens the database of a home without changing any file. This module imports little, so that it can be imported
quickly.
"""

from __future__ import annotations

import os
import sqlite3
from sqlite3 import Connection

from parley.stores.sqlite.files import DATABASE, LOG, SHARED_MEMORY

__all__ = ["connect_read_only"]


def connect_read_only(home: str, *, timeout_seconds: float = 0) -> Connection | None:
    """Connect to the database of a home without changing any file. Return None if SQLite has to recover the
    write-ahead log first, which changes files. `timeout_seconds` is the time for which SQLite waits for its own
    locks.
    """
    from urllib.parse import quote  # imported here: this module is rarely needed

    log, has_log = os.path.join(home, LOG), os.path.exists(os.path.join(home, LOG))
    is_shared = has_log and os.path.exists(os.path.join(home, SHARED_MEMORY))
    if not is_shared and has_log and os.path.getsize(log):
        return None
    # If no process has the database open, the file is complete by itself. Otherwise, the shared memory is also
    # read, but not written.
    how = "mode=ro&readonly_shm=1" if is_shared else "mode=rw&immutable=1"
    address = f"file:{quote(os.path.join(home, DATABASE))}?{how}"
    return sqlite3.connect(address, uri=True, timeout=timeout_seconds, isolation_level=None)
