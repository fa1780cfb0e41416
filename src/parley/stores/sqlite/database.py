"""The open database of a home: one connection for writing, several connections for reading, and the locks of the
home.

Opening and closing need the write lock, because both may recover or checkpoint the database. While another process
holds this lock, `read_only.py` reads the database.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from queue import SimpleQueue
from sqlite3 import Connection
from typing import Final, TypeVar

import parley.stores.blobs  # noqa: F401  # imported early, so that the first read does not wait for the import
from parley.common.threads import checked_pool
from parley.errors import BadHome, HomeLost
from parley.stores.search import contains_text, normalize_path
from parley.stores.sqlite.batch import AT_ONCE
from parley.stores.sqlite.columns import as_text
from parley.stores.sqlite.errors import REPAIR, opening_error, store_error
from parley.stores.sqlite.files import (
    DATABASE,
    LOG,
    SHARED_MEMORY,
    AtomicFile,
    DatabaseFiles,
    log_bytes,
    prepare_home,
    sync_directory,
)
from parley.stores.sqlite.locks import LeaseLocks, WriteLock, open_lease_locks
from parley.stores.sqlite.schema import MIGRATIONS
from parley.wire.text import quoted

__all__ = [
    "Database",
    "Home",
    "is_new",
    "make_database",
    "open_database",
    "open_locks",
    "prepare_reader",
    "version_of",
]

READERS: Final = 4
"""The number of connections for reading, and of threads that use them. More threads would only wait for the
interpreter lock.
"""

BUSY_SECONDS: Final = 2.0
"""The time for which SQLite waits for its own locks, in seconds. The wait is necessary because the write lock of
the home excludes other writers, but not another process that is recovering the database.
"""

STATEMENTS: Final = 32 + 4 * AT_ONCE
"""The number of prepared statements that a connection caches. The number is large, because a statement that writes
many rows has a different text for each number of rows.
"""

WAL_BYTES: Final = 16 * 1024 * 1024
"""The size of the write-ahead log, in bytes, above which every process tries to checkpoint the log. After a
checkpoint, SQLite truncates a larger log to this size. If only one process writes to the log, the process normally
checkpoints the log before the log reaches this size.
"""

OLDEST_SQLITE: Final = (3, 33, 0)
"""The oldest supported version of SQLite. Older versions cannot update many rows with one statement."""

T = TypeVar("T")


class Home:
    """The locks of a home and the threads that read its database.

    The locks and the threads exist before the database is open, so that read-only connections can use them.
    """

    def __init__(self, path: str) -> None:
        """Open the locks of the home at `path`, without acquiring them, and create the pool of its reader threads.

        Raises:
            OSError: the files of the locks cannot be opened.
        """
        self.path = path
        self.lock = WriteLock(path)
        try:
            self.lease_locks: LeaseLocks = open_lease_locks(path)
        except OSError:
            self.lock.close()
            raise
        self.pool = checked_pool(max_workers=READERS, name="parley-read")
        self.read_only_lock = threading.Lock()
        """The lock that is held while a read-only connection reads, and while the database is being opened.

        Without this lock, SQLite would share mapped memory between read-only connections and other connections, and
        the memory would be read-only for all of them.
        """
        self.is_closed = False

    def close(self) -> None:
        """Close the write lock and end the reader threads. The lease locks stay held until the store closes
        them.
        """
        with self.read_only_lock:
            self.is_closed = True
            self.lock.close()
        self.pool.shutdown(wait=False)


class Database:
    """The open database of a home."""

    def __init__(
        self, home: Home, writer: Connection, readers: list[Connection], on_lost: Callable[[HomeLost], None]
    ) -> None:
        """Create the object from open connections. `on_lost` is called once, in any thread, with the error that is
        raised when a check finds that a database file was removed or replaced.
        """
        self.lock, self.lease_locks, self.pool = home.lock, home.lease_locks, home.pool
        self.home, self.writer = home.path, writer
        self._home = home
        self._path = os.path.join(home.path, DATABASE)
        self._files = DatabaseFiles(home.path)
        self._has_written = False
        self._losing = threading.Lock()
        self._lost: HomeLost | None = None
        self._on_lost = on_lost
        self._kept_bytes = WAL_BYTES
        """The size to which the write-ahead log is truncated after a checkpoint, in bytes."""
        self._readers = readers
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for reader in readers:
            self._free.put(reader)

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Call `ask` with a connection for reading, and return the result of `ask`. Call this method only in a
        thread of `pool`.
        """
        db = self._free.get()
        try:
            self.refuse_when_lost(db)
            return ask(db)
        except Exception as error:
            raise store_error(self.home, error) from error
        finally:
            self._free.put(db)

    def check(self) -> None:
        """Check that the database files are in place. Call this method only in a thread of `pool`.

        Raises:
            HomeLost: a file was removed or replaced.
        """
        self.read(lambda db: None)

    def refuse_when_lost(self, db: Connection, *, has_written: bool = False) -> None:
        """Check that the database files are in place. Call this method before `db` is used, and again before a
        write is confirmed.

        `has_written` is True if this process has just written to the database.

        Raises:
            HomeLost: a file was removed or replaced. Before the first `HomeLost`, conversations that only this
                process can still read are saved to files, as far as possible.
        """
        self._has_written = has_written = self._has_written or has_written
        if self._lost is None and (changed := self._files.changed(has_written=has_written)):
            with self._losing:
                if self._lost is None:
                    changed = self._files.changed(has_written=has_written) or changed
                    self._lost = HomeLost(self.home, changed, self._saved(db, changed))
                    self._on_lost(self._lost)
        if self._lost is not None:
            raise HomeLost(self.home, self._lost.files, self._lost.saved)

    def _saved(self, db: Connection, changed: list[str]) -> str:
        from parley.stores.sqlite.emergency_export import save_unreachable  # imported here: rarely needed

        if changed == [SHARED_MEMORY]:
            return "Nothing is lost: the database and its log are complete."
        place, count, left_out = save_unreachable(db, self.home, self._path)
        if left_out is None:
            return "The part that is missing on disk could not be read, and was not saved."
        lost = f"{left_out} conversations could not be saved." if left_out else ""
        if place is None:
            return lost or "There was nothing to save."
        what = "1 conversation" if count == 1 else f"{count} conversations"
        saved = (
            f"The part that is missing on disk was saved ({what}): run `parley import {place}` after the restart."
        )
        return f"{saved} {lost}" if lost else saved

    def checkpoint(self, *, keep_bytes: int | None) -> None:
        """Copy the write-ahead log into the database file, up to the oldest snapshot that is still being read.

        If the whole log was copied, the next write begins at the start of the log, and truncates the log to
        `keep_bytes` if the log is larger. None means `WAL_BYTES`.
        """
        limit = WAL_BYTES if keep_bytes is None else keep_bytes
        if limit != self._kept_bytes:
            self._kept_bytes = limit
            self.writer.execute(f"PRAGMA journal_size_limit = {limit}").fetchone()
        self.writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def log_bytes(self) -> int:
        """Return the size of the write-ahead log, in bytes."""
        return log_bytes(self.home)

    def is_log_large(self) -> bool:
        """Return whether the write-ahead log is larger than `WAL_BYTES`."""
        return self.log_bytes() > WAL_BYTES

    def refuse_newer(self) -> None:
        """Check that this version of Parley can still use the database. The caller must be in a write transaction.

        Raises:
            BadHome: a newer version of Parley has migrated the database since this process opened it.
        """
        version_of(self.home, self.writer)

    def close(self) -> None:
        """Wait until no reader thread uses the database, and close the database. The lease locks stay held until
        the store closes them.
        """
        self.pool.shutdown()
        with self.lock:
            try:
                self.refuse_when_lost(self.writer)
            except HomeLost:
                self._abandon()
            else:
                for db in (*self._readers, self.writer):
                    db.close()
        self._files.close()
        self._home.close()

    def _abandon(self) -> None:
        """Leave the connections open until the process exits.

        Closing the last connection would checkpoint and remove files that may now belong to other processes.
        """
        import ctypes

        for db in (*self._readers, self.writer):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def open_locks(home: str) -> Home:
    """Open the locks of a home, without acquiring them. Create the home if it does not exist.

    Raises:
        BadHome: the home cannot be used to store conversations; the message gives the reason.
    """
    refuse_old_sqlite(home)
    prepare_home(home)
    try:
        return Home(home)
    except OSError as error:
        raise opening_error(home, error) from error


def open_database(home: Home, on_lost: Callable[[HomeLost], None] = lambda lost: None) -> Database:
    """Open the database of a home, and create or migrate it if necessary. The caller must hold the write lock.

    `on_lost` is called once, in any thread, when a check finds that a database file was removed or replaced.

    Raises:
        BadHome: the home cannot be used to store conversations; the message gives the reason.
        StoreFailed: SQLite reported an error that may be transient, or memory ran out.
    """
    connections: list[Connection] = []
    try:
        with home.read_only_lock:
            _open_all(home, connections)
        writer, *readers = connections
        return Database(home, writer, readers, on_lost)
    except Exception as error:
        for db in connections:
            db.close()
        raise opening_error(home.path, error) from error


def refuse_old_sqlite(home: str) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise BadHome(home, f"this Python has SQLite {sqlite3.sqlite_version}, and Parley needs {needed} or newer")


def _open_all(home: Home, connections: list[Connection]) -> None:
    path = os.path.join(home.path, DATABASE)
    if is_new(home.path):
        _make(home.path, path)
    writer = _connect(path, connections)
    _migrate(home.path, writer)
    for _ in range(READERS):
        reader = _connect(path, connections)
        reader.execute("PRAGMA query_only = ON")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        prepare_reader(reader)


def prepare_reader(reader: Connection) -> None:
    """Define on the connection `reader` the SQL functions that the queries call."""
    reader.create_function("normalize_path", 1, lambda path: normalize_path(as_text(path)), deterministic=True)
    reader.create_function("contains_text", 2, contains_text, deterministic=True)
    reader.create_function("title_contains", 2, _title_contains, deterministic=True)


def _title_contains(text: str, title: bytes) -> bool:
    return text in as_text(title).casefold()


def is_new(home: str) -> bool:
    """Return whether the home has no database yet, so that a database has to be created.

    The database file is not opened here, because closing its descriptor would release the locks that SQLite holds
    on it.

    Raises:
        BadHome: the database is a symbolic link, or the home had a database that is now missing or empty.
        OSError: the home cannot be examined.
    """
    path, log = os.path.join(home, DATABASE), os.path.join(home, LOG)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.exists(log) or not os.path.getsize(log):
            return True
        damage = f"{DATABASE} is missing, but its log {LOG} exists"
        remedy = f"restore both from a backup, or remove the log to start with an empty home. {REPAIR}"
    else:
        if stat.S_ISLNK(found.st_mode):
            where = f"{DATABASE} is a symbolic link to {quoted(os.readlink(path))}"
            raise BadHome(
                home,
                f"{where}, and SQLite would keep its log there; move the database into the home, or "
                "set PARLEY_HOME to the directory of the database",
            )
        if found.st_size or not stat.S_ISREG(found.st_mode):
            return False
        damage = f"{DATABASE} is empty"
        remedy = "restore it from a backup, or remove it to start with an empty home"
    raise BadHome(home, f"the database is damaged: {damage}; {remedy}")


def _make(home: str, path: str) -> None:
    """Create a database without tables at `path`. The file appears at `path` only when it is complete. Otherwise,
    another process could find a file of 0 bytes, which counts as damaged.

    The database file gets the mode 0600. SQLite creates the write-ahead log with the same mode.
    """
    with AtomicFile(path) as file:
        db = sqlite3.connect(file.name, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")  # the whole file is synced below
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _use_log(home, db)
        finally:
            db.close()
        file.commit(overwrite=True)
    sync_directory(home)


def make_database(home: str, path: str) -> None:
    """Create a database with all tables at `path`, without acquiring a lock. `home` is used only in error
    messages.
    """
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
    """Return the number of migrations that were applied to the database.

    Raises:
        BadHome: a newer version of Parley or another program created the database.
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
        raise BadHome(home, "conversations cannot be stored here: the file system does not support shared memory")


def _migrate(home: str, db: Connection) -> None:
    version = version_of(home, db)
    _use_log(home, db)
    db.execute("BEGIN IMMEDIATE")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    db.execute("COMMIT")
