"""Reading a home while another process holds its write lock, before the database could be opened here.

Each read has a connection of its own, which changes no file. So nothing is left open that the opening would have to
take into account.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from sqlite3 import Connection
from typing import Final, TypeVar

from parley.errors import BadHome, StoreFailed, WriteLockHeld
from parley.stores.locks import Owners, write_lock_holder
from parley.stores.opening import (
    DATABASE,
    Home,
    Opened,
    connect_read_only,
    prepare_reader,
    traces,
    version_of,
)
from parley.stores.schema import MIGRATIONS

__all__ = ["Peek"]

TIMES: Final = 10
"""How often a read is repeated that other processes have disturbed."""

BUSY_SECONDS: Final = 1.0
"""How long a read waits for the locks of SQLite itself."""

T = TypeVar("T")


class Peek:
    """Reads like `Opened`, from a home that is not open."""

    def __init__(self, home: Home, opened: Callable[[], Opened | None]) -> None:
        """`opened` returns the open database as soon as there is one."""
        self._home, self._opened = home, opened
        self.owners: Owners = home.owners
        self.pool: ThreadPoolExecutor = home.pool

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Return what `ask` finds; called in a thread of the pool.

        Raises:
            WriteLockHeld: there is no database yet.
            BadHome: the database has to be recovered or migrated first.
        """
        with self._home.peeking:
            if (opened := self._opened()) is None:
                if self._home.is_closed:
                    raise StoreFailed("the store is closed")
                return self._read(ask)
        return opened.read(ask)

    def _read(self, ask: Callable[[Connection], T]) -> T:
        path = os.path.join(self._home.path, DATABASE)
        for _ in range(TIMES):
            before = traces(path)
            if before[0] is None:
                raise WriteLockHeld(write_lock_holder(self._home.path))
            try:
                found = self._read_once(path, ask)
            except sqlite3.Error as error:
                if traces(path) == before:
                    raise self._refused(f"its database cannot be read before it is recovered ({error})") from error
                continue
            # A connection to a file without a log does not notice that another process begins one.
            if before[2] is not None or traces(path) == before:
                return found
        raise self._refused("other processes keep changing it")

    def _read_once(self, path: str, ask: Callable[[Connection], T]) -> T:
        db = connect_read_only(path, timeout_seconds=BUSY_SECONDS)
        if db is None:
            raise self._refused("its database cannot be read before it is recovered")
        try:
            if version_of(self._home.path, db) < len(MIGRATIONS):
                raise self._refused("its database cannot be read before it is migrated")
            prepare_reader(db)
            return ask(db)
        finally:
            db.close()

    def _refused(self, why: str) -> BadHome:
        return BadHome(self._home.path, f"{why}, and {write_lock_holder(self._home.path)} holds the write lock")
