"""The open database of a home: one connection that writes, a few that read, and the locks.

Opening and closing need the write lock, because both may recover or checkpoint the database. While another process
holds that lock, `read_only.py` reads.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from sqlite3 import Connection
from typing import Final, TypeVar

import parley.stores.sqlite.blobs  # noqa: F401  # imported here, so that the first read does not wait for other imports
from parley.common.threads import checked_pool
from parley.errors import BadHome, HomeLost
from parley.stores.search import contains_text, normalize_path
from parley.stores.sqlite.batch import AT_ONCE
from parley.stores.sqlite.errors import opening_error, store_error
from parley.stores.sqlite.files import (
    DATABASE,
    LOG,
    SHARED_MEMORY,
    AtomicFile,
    DatabaseFiles,
    prepare_home,
    sync_directory,
)
from parley.stores.sqlite.locks import LOCKS, LeaseLocks, WriteLock, open_lease_locks
from parley.stores.sqlite.queries import as_text
from parley.stores.sqlite.schema import MIGRATIONS

__all__ = [
    "Database",
    "Home",
    "make_database",
    "open_database",
    "open_home",
    "open_locks",
    "prepare_reader",
    "version_of",
]

LEFT_BY_SERVERS: Final = (*LOCKS, "run", LOG, SHARED_MEMORY)
"""Files and directories that a server leaves in a home that it has used."""

READERS: Final = 4
"""The number of connections that read. More would wait for the interpreter lock."""

BUSY_SECONDS: Final = 2.0
"""How long SQLite waits for its own locks. The write lock excludes other writers, but not a recovery."""

STATEMENTS: Final = 32 + 4 * AT_ONCE
"""The number of cached statements. Those that write many rows differ for each number of rows."""

WAL_BYTES: Final = 64 * 1024 * 1024
"""The size to which the write-ahead log is truncated after a long read made it grow."""

OLDEST_SQLITE: Final = (3, 33, 0)
"""The first version that can update many rows with one statement."""

T = TypeVar("T")


class Home:
    """The locks of a home and the threads that read it. They exist before the database is open."""

    def __init__(self, path: str) -> None:
        """Open the locks of a home and start its reading threads. Raises OSError."""
        self.path = path
        self.was_used = was_used(path)
        self.lock = WriteLock(path)
        try:
            self.lease_locks: LeaseLocks = open_lease_locks(path)
        except OSError:
            self.lock.close()
            raise
        self.pool = checked_pool(max_workers=READERS, name="parley-read")
        self.read_only_lock = threading.Lock()
        """Held while the database is read by a read-only connection, and while it is opened: SQLite would share the
        mapped memory between both kinds of connections, and it would be read-only for both."""
        self.is_closed = False

    def close(self) -> None:
        """Release everything except the locks of leases."""
        with self.read_only_lock:
            self.is_closed = True
            self.lock.close()
        self.pool.shutdown(wait=False)


class Database:
    """The open database of a home."""

    def __init__(self, home: Home, writer: Connection, readers: list[Connection]) -> None:
        self.lock, self.lease_locks, self.pool = home.lock, home.lease_locks, home.pool
        self.home, self.writer = home.path, writer
        self._home = home
        self._path = os.path.join(home.path, DATABASE)
        self._files = DatabaseFiles(home.path)
        self._has_written = False
        self._losing = threading.Lock()
        self._lost: HomeLost | None = None
        self.on_lost: Callable[[HomeLost], None] = lambda lost: None
        """Called once, in any thread, when the files were removed or replaced."""
        self._readers = readers
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for reader in readers:
            self._free.put(reader)

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query with one of the reading connections. Must be called in a thread of the pool."""
        db = self._free.get()
        try:
            self.refuse_when_lost(db)
            return ask(db)
        except Exception as error:
            raise store_error(self.home, error) from error
        finally:
            self._free.put(db)

    def check(self) -> None:
        """Check that the files of the home are in place. Must be called in a thread of the pool. Raises
        HomeLost."""
        self.read(lambda db: None)

    def refuse_when_lost(self, db: Connection, *, has_written: bool = False) -> None:
        """Check that the files of the home are in place. Called before `db` is used and before a write is
        confirmed.

        `has_written`: this process has just written.

        Raises:
            HomeLost: the files were removed or replaced. Conversations that only this process can read were
                saved.
        """
        self._has_written = self._has_written or has_written
        if self._lost is None and (changed := self._files.changed(has_written=self._has_written)):
            with self._losing:
                if self._lost is None:
                    self._lost = HomeLost(self.home, changed, self._saved(db, changed))
                    self.on_lost(self._lost)
        if self._lost is not None:
            raise HomeLost(self.home, self._lost.files, self._lost.saved)

    def _saved(self, db: Connection, changed: list[str]) -> str:
        from parley.stores.sqlite.emergency_export import save_unreachable  # rarely needed

        if changed == [SHARED_MEMORY]:
            return "Nothing is lost: the database and its log are complete."
        place, count, left_out = save_unreachable(db, self.home, self._path)
        if left_out is None:
            return "What it lacks could not be read, and was not saved."
        lost = f"{left_out} conversations could not be saved." if left_out else ""
        if place is None:
            return lost or "There was nothing to save."
        what = "one conversation" if count == 1 else f"{count} conversations"
        saved = f"What it lacks of {what} is saved: run `parley import {place}` after the restart."
        return f"{saved} {lost}" if lost else saved

    def refuse_newer(self) -> None:
        """Check, inside a writing transaction, that the format is still known.

        Raises:
            BadHome: a newer version of Parley has changed the format since the database was opened.
        """
        version_of(self.home, self.writer)

    def close(self) -> None:
        """Wait for the readers, then close the database. The locks of leases stay open."""
        self.pool.shutdown()
        with self.lock:
            try:
                self.refuse_when_lost(self.writer)
            except HomeLost:
                self._abandon()
            else:
                for db in (*self._readers, self.writer):
                    db.close()
        self._home.close()

    def _abandon(self) -> None:
        """Leave the connections open until the process ends. Closing the last one would checkpoint and remove
        files, which may belong to other processes by now.
        """
        import ctypes

        for db in (*self._readers, self.writer):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def open_locks(home: str) -> Home:
    """Create a home if it does not exist, and open its locks, without waiting.

    Raises:
        BadHome: the home cannot hold conversations; the text says why.
    """
    refuse_old_sqlite(home)
    prepare_home(home)
    try:
        return Home(home)
    except OSError as error:
        raise opening_error(home, error) from error


def open_database(home: Home) -> Database:
    """Open the database of a home; create or migrate it if needed. The caller holds the write lock.

    Raises:
        BadHome: the home cannot hold conversations; the text says why.
        StoreFailed: a transient error of the system.
    """
    connections: list[Connection] = []
    try:
        with home.read_only_lock:
            _open_all(home, connections)
        writer, *readers = connections
        return Database(home, writer, readers)
    except Exception as error:
        for db in connections:
            db.close()
        raise opening_error(home.path, error) from error


def open_home(path: str) -> Database:
    """Open the locks and the database of a home, waiting for the write lock. Raises the errors of both."""
    home = open_locks(path)
    try:
        with home.lock:
            return open_database(home)
    except BaseException:
        home.lease_locks.close()
        home.close()
        raise


def refuse_old_sqlite(home: str) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise BadHome(home, f"this Python has SQLite {sqlite3.sqlite_version}, and Parley needs {needed} or newer")


def _open_all(home: Home, connections: list[Connection]) -> None:
    path = os.path.join(home.path, DATABASE)
    if is_new(home.path, was_used=home.was_used):
        _make(home.path, path)
    writer = _connect(path, connections)
    _migrate(home.path, writer)
    for _ in range(READERS):
        reader = _connect(path, connections)
        reader.execute("PRAGMA query_only = ON")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        prepare_reader(reader)


def prepare_reader(reader: Connection) -> None:
    """Define the functions that queries use."""
    reader.create_function("normalize_path", 1, lambda path: normalize_path(as_text(path)), deterministic=True)
    reader.create_function("contains_text", 2, contains_text, deterministic=True)
    reader.create_function("title_contains", 2, _title_contains, deterministic=True)


def _title_contains(text: str, title: bytes) -> bool:
    return text in as_text(title).casefold()


def was_used(home: str) -> bool:
    """Return whether a server has used the home before: it left locks, sockets or a log."""
    return any(os.path.lexists(os.path.join(home, name)) for name in LEFT_BY_SERVERS)


def is_new(home: str, *, was_used: bool) -> bool:
    """Return whether the database has to be created.

    Only SQLite opens an existing database, because closing another descriptor would release the locks of SQLite.

    Raises:
        BadHome: there was a database, and it is missing or empty.
    """
    path = os.path.join(home, DATABASE)
    try:
        if os.stat(path).st_size:
            return False
    except FileNotFoundError:
        pass
    else:
        if was_used:
            raise BadHome(
                home,
                f"the database is damaged: {DATABASE} is empty, though the home was used before; "
                f"restore it from a backup, or remove it to start with an empty home",
            )
    log = os.path.join(home, LOG)
    if os.path.exists(log) and os.path.getsize(log):
        raise BadHome(
            home,
            f"the database is damaged: {DATABASE} is missing, and its log {LOG} is there; "
            f"restore both from a backup, or remove the log to start with an empty home",
        )
    return True


def _make(home: str, path: str) -> None:
    """Create an empty database. The file appears together with its first page, because a file of 0 bytes counts as
    damaged.

    SQLite gives its log the same mode.
    """
    with AtomicFile(path) as file:
        db = sqlite3.connect(file.name, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")  # the file is synced below
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _use_log(home, db)
        finally:
            db.close()
        file.commit(overwrite=True)
    sync_directory(home)


def make_database(home: str, path: str) -> None:
    """Create a database with all tables, without a lock. Errors name the home."""
    _make(home, path)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        _migrate(home, db)
    finally:
        db.close()


def _connect(path: str, connections: list[Connection]) -> Connection:
    db = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
    )
    connections.append(db)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    return db


def version_of(home: str, db: Connection) -> int:
    """Return the number of migrations that a database has had.

    Raises:
        BadHome: there are more than this version knows, or it is the database of another program.
    """
    version: int
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise BadHome(
            home,
            f"the conversations here were written by a newer version of Parley "
            f"(format {version}; this one knows {len(MIGRATIONS)})",
        )
    if version == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise BadHome(home, f"{DATABASE} is not a database of Parley")
    return version


def _use_log(home: str, db: Connection) -> None:
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise BadHome(
            home, "conversations cannot be stored here: the file system has no memory that processes share"
        )


def _migrate(home: str, db: Connection) -> None:
    version = version_of(home, db)
    _use_log(home, db)
    db.execute("BEGIN IMMEDIATE")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    db.execute("COMMIT")
