"""Opens the database of a home without a store."""

from __future__ import annotations

from parley.stores.sqlite.database import Database, open_database, open_locks

__all__ = ["open_home"]


def open_home(path: str) -> Database:
    """Open the locks and the database of a home. Wait for the write lock if another process holds it."""
    home = open_locks(path)
    try:
        with home.lock:
            return open_database(home)
    except BaseException:
        home.lease_locks.close()
        home.close()
        raise
