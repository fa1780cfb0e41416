"""Reads the database of a home without opening the home and without changing any file.

A server uses this module while it cannot open the home because another process holds the write lock. Each read uses
its own connection, because all read-only connections must be closed before this process opens the home.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from sqlite3 import Connection
from typing import Final, TypeVar

from parley.errors import BadHome, StoreError, StoreFailed, WriteLockHeld
from parley.ports.store import CALL_SECONDS
from parley.stores.sqlite.database import (
    Database,
    Home,
    is_new,
    prepare_reader,
    refuse_old_sqlite,
    version_of,
)
from parley.stores.sqlite.errors import opening_error
from parley.stores.sqlite.files import SHARED_MEMORY, file_states
from parley.stores.sqlite.lock_holders import UNKNOWN
from parley.stores.sqlite.locks import LeaseLocks, write_lock_holder
from parley.stores.sqlite.read_only_connection import connect_read_only
from parley.stores.sqlite.schema import MIGRATIONS

__all__ = ["ReadOnlyHome", "check_database"]

MAX_TRIES: Final = 10
"""The maximum number of attempts to read the database. An attempt fails if another process changes the database
files at the same time.
"""

BUSY_SECONDS: Final = 1.0
"""The time for which a read waits for SQLite's own locks, in seconds."""

CHECK_SECONDS: Final = 0.02
"""The time between two checks whether this process has opened the home, in seconds."""

T = TypeVar("T")


class _NotYetOpen(Exception):
    """Raised when the database cannot be read before this process has opened the home, although no other process
    holds the write lock.

    The writer thread of this process may be opening the home at this moment, so the caller waits and tries again.
    """

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error
        """The error that the caller gets if the home is not opened in time."""


class ReadOnlyHome:
    """Reads the database of a home that this process has not opened yet. The methods for reading are the same as
    the methods of `Database`.
    """

    def __init__(self, home: Home, database_if_open: Callable[[], Database | None]) -> None:
        """Create the reader. `database_if_open` is a function that returns the open database, or None if this
        process has not opened it yet.
        """
        self._home, self._database_if_open = home, database_if_open
        self.lease_locks: LeaseLocks = home.lease_locks
        self.pool: ThreadPoolExecutor = home.pool

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Call `ask` with a connection for reading, and return the result of `ask`. If this process has opened
        the home in the meantime, use the open database. `ask` may be called again if other processes change the
        database files. Call this method only in a thread of `pool`.

        Raises:
            WriteLockHeld: the database does not exist yet, and another process holds the write lock.
            BadHome: the database has to be recovered or migrated first, or other processes keep changing it.
            StoreFailed: the store is closed.
        """
        until = time.monotonic() + CALL_SECONDS
        while True:
            with self._home.read_only_lock:
                if (opened := self._database_if_open()) is None:
                    if self._home.is_closed:
                        raise StoreFailed("the store is closed")
                    try:
                        return self._read(ask)
                    except _NotYetOpen as refused:
                        if time.monotonic() >= until:
                            raise refused.error from refused
            if opened is not None:
                return opened.read(ask)
            time.sleep(CHECK_SECONDS)

    def _read(self, ask: Callable[[Connection], T]) -> T:
        for _ in range(MAX_TRIES):
            before = file_states(self._home.path)
            if before[0] is None:
                raise self._refused(None)
            try:
                found = self._read_once(ask)
            except sqlite3.Error as error:
                if file_states(self._home.path) == before:
                    raise self._refused(f"its database cannot be read before it is recovered ({error})") from error
                continue
            # A connection to a database without a log does not detect when another process creates the log.
            if before[2] is not None or file_states(self._home.path) == before:
                return found
        raise self._refused("other processes keep changing it")

    def _read_once(self, ask: Callable[[Connection], T]) -> T:
        db = connect_read_only(self._home.path, timeout_seconds=BUSY_SECONDS)
        if db is None:
            raise self._refused("its database cannot be read before it is recovered")
        try:
            if version_of(self._home.path, db) < len(MIGRATIONS):
                raise self._refused("its database cannot be read before it is migrated")
            prepare_reader(db)
            return ask(db)
        finally:
            db.close()

    def _refused(self, why: str | None) -> StoreError | _NotYetOpen:
        found = write_lock_holder(self._home.path)
        holder = found or UNKNOWN
        error = (
            BadHome(self._home.path, f"{why}, and {holder} holds the write lock") if why else WriteLockHeld(holder)
        )
        return error if found else _NotYetOpen(error)


def check_database(home: str) -> None:
    """Check the database of a home without opening the home. A missing database passes the check.

    Other processes may use the database during the check. The check changes no file and never waits. Some faults
    are found only when the home is opened.

    Raises:
        BadHome: the database cannot be opened; the message gives the reason.
        StoreFailed: SQLite reported an error that may be transient, or memory ran out.
    """
    refuse_old_sqlite(home)
    for _ in range(MAX_TRIES):
        if is_new(home):
            return
        before = file_states(home)
        try:
            _check(home)
        except Exception as error:
            if not isinstance(error, sqlite3.Error | FileNotFoundError) or file_states(home) == before:
                raise opening_error(home, error) from error
        else:
            return


def _check(home: str) -> None:
    is_shared = os.path.exists(os.path.join(home, SHARED_MEMORY))
    if (db := connect_read_only(home)) is None:
        return  # SQLite cannot read the log without creating the shared memory file
    try:
        version_of(home, db)
    except sqlite3.OperationalError:
        if not is_shared:  # if the lock is held, another process is opening or closing the database
            raise
    finally:
        db.close()
