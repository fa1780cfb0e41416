"""The database of a home, opened: one connection that writes, a few that read, and the locks.

Opening and closing happen under the write lock, for each may recover or checkpoint the database. `peeking.py` reads
while another process holds that lock.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from sqlite3 import Connection
from typing import Final, TypeVar

import parley.stores.blobs  # noqa: F401  # or the first who reads waits for whatever else is being imported
from parley.errors import BadHome, StoreFailed
from parley.stores.batch import AT_ONCE
from parley.stores.home import prepare_home, sync_directory
from parley.stores.locks import Owners, WriteLock, owners_of
from parley.stores.paths import plain_path
from parley.stores.refusals import refused, refused_at_opening
from parley.stores.rows import as_text
from parley.stores.schema import MIGRATIONS
from parley.stores.wording import said

__all__ = [
    "DATABASE",
    "Home",
    "Opened",
    "connect_read_only",
    "look_at_database",
    "open_database",
    "open_home",
    "open_locks",
    "prepare_reader",
    "traces",
    "version_of",
]

DATABASE: Final = "parley.db"

READERS: Final = 4
"""Connections that read at the same time; more would wait for the interpreter anyway."""

BUSY_SECONDS: Final = 2.0
"""Nobody else writes while we do. Only a recovery, which whoever comes first may do, is waited for."""

STATEMENTS: Final = 32 + 4 * AT_ONCE
"""That are remembered. Those that write many rows are others for each number of rows."""

WAL_BYTES: Final = 64 * 1024 * 1024
"""What a file of the log may keep when it begins anew, after a reader had kept it from doing so."""

OLDEST_SQLITE: Final = (3, 33, 0)
"""The first that can update many rows by one statement."""

LOOKS: Final = 10
"""How often a look is taken at a database that others change meanwhile; then there is somebody who can use it."""

T = TypeVar("T")


class Home:
    """The locks of a home and the threads that read it: all that is open before its database is."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self.path = path
        self.lock = WriteLock(path)
        try:
            self.owners: Owners = owners_of(path)
        except OSError:
            self.lock.close()
            raise
        self.pool = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="parley-read")
        self.peeking = threading.Lock()
        """Held while the database is read without being open, and while it is opened: connections of the two kinds
        would share the same mapped memory, read-only."""
        self.is_closed = False

    def close(self) -> None:
        """Release everything but the locks of conversations."""
        with self.peeking:
            self.is_closed = True
            self.lock.close()
        self.pool.shutdown(wait=False)


class Opened:
    """The open database of a home."""

    def __init__(self, home: Home, writer: Connection, readers: list[Connection]) -> None:
        self.lock, self.owners, self.pool = home.lock, home.owners, home.pool
        self.home, self.writer = home.path, writer
        self._home = home
        self._path = os.path.join(home.path, DATABASE)
        self._file = os.stat(self._path)
        self._readers = readers
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for reader in readers:
            self._free.put(reader)

    def read(self, ask: Callable[[Connection], T]) -> T:
        """What it finds; called in a thread of the pool."""
        db = self._free.get()
        try:
            return ask(db)
        except Exception as error:
            raise refused(self.home, error) from error
        finally:
            self._free.put(db)

    def refuse_what_would_be_lost(self) -> None:
        """Called under the lock, before anything is written.

        Raises:
            StoreFailed: the database is not in its place any more, and nobody would ever read what is written.
        """
        try:
            in_place = os.path.samestat(os.stat(self._path), self._file)
        except FileNotFoundError:
            in_place = False
        if not in_place:
            raise StoreFailed(f"{self._path} was removed or replaced while it was open; start Parley anew")

    def refuse_newer(self) -> None:
        """Called in the transaction in which something is written.

        Raises:
            BadHome: a newer version of Parley has changed the format since it was opened.
        """
        version_of(self.home, self.writer)

    def close(self) -> None:
        """Wait for those that read, then let go of the database. The locks of conversations are left."""
        self.pool.shutdown()
        with self.lock:
            for db in (*self._readers, self.writer):
                db.close()
        self._home.close()


def open_locks(home: str) -> Home:
    """Prepare a home, which is made where it is missing. Nothing is waited for.

    Raises:
        BadHome: it cannot hold conversations, with the reason.
    """
    _refuse_old_sqlite(home)
    prepare_home(home)
    try:
        return Home(home)
    except OSError as error:
        raise refused_at_opening(home, error) from error


def open_database(home: Home) -> Opened:
    """Open the database of a home; make or migrate it first where needed. The caller holds the write lock.

    Raises:
        BadHome: it cannot hold conversations, with the reason.
        StoreFailed: the system refuses for the moment.
    """
    connections: list[Connection] = []
    try:
        with home.peeking:
            _open_all(home.path, connections)
        writer, *readers = connections
        return Opened(home, writer, readers)
    except Exception as error:
        for db in connections:
            db.close()
        raise refused_at_opening(home.path, error) from error


def open_home(path: str) -> Opened:
    """Open the locks and the database of a home, waiting for the write lock. Raises what the two parts raise."""
    home = open_locks(path)
    try:
        with home.lock:
            return open_database(home)
    except BaseException:
        home.owners.close()
        home.close()
        raise


def look_at_database(home: str) -> None:
    """See whether the database of a home, if there is one, can be opened, whoever uses it meanwhile.

    Nothing is changed or waited for. What only somebody who opens it could tell is not held against it.

    Raises:
        BadHome: it cannot, with the reason.
        StoreFailed: the system refuses for the moment.
    """
    _refuse_old_sqlite(home)
    path = os.path.join(home, DATABASE)
    for _ in range(LOOKS):
        if not os.path.lexists(path):
            return
        before = traces(path)
        try:
            _look(home, path)
        except Exception as error:
            if not isinstance(error, sqlite3.Error | FileNotFoundError) or traces(path) == before:
                raise refused_at_opening(home, error) from error
        else:
            return


def _refuse_old_sqlite(home: str) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise BadHome(home, f"this Python has SQLite {sqlite3.sqlite_version}, and Parley needs {needed} or newer")


def _look(home: str, path: str) -> None:
    is_shared = os.path.exists(f"{path}-shm")
    if (db := connect_read_only(path)) is None:
        return  # the log counts, and SQLite reads none without making a file beside it
    try:
        version_of(home, db)
    except sqlite3.OperationalError:
        if not is_shared:  # otherwise somebody opens or closes it just now
            raise
    finally:
        db.close()


def connect_read_only(path: str, *, timeout_seconds: float = 0) -> Connection | None:
    """Connect to a database without changing any file. None: its log has to be recovered first."""
    from urllib.parse import quote  # rarely needed

    is_shared = os.path.exists(f"{path}-shm") and os.path.exists(f"{path}-wal")
    if not is_shared and os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
        return None
    # Where no process has it open, all of it is in the file. Otherwise the shared memory is read and not written.
    how = "mode=ro&readonly_shm=1" if is_shared else "mode=rw&immutable=1"
    address = f"file:{quote(path)}?{how}"
    return sqlite3.connect(address, uri=True, timeout=timeout_seconds, isolation_level=None)


def traces(path: str) -> list[tuple[int, int] | None]:
    """What is different when somebody has written to a database."""
    found: list[tuple[int, int] | None] = []
    for file in (path, f"{path}-wal", f"{path}-shm"):
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_size, status.st_mtime_ns))
    return found


def _open_all(home: str, connections: list[Connection]) -> None:
    path = os.path.join(home, DATABASE)
    _make(path)
    writer = _connect(path, connections)
    _migrate(home, writer)
    for _ in range(READERS):
        reader = _connect(path, connections)
        reader.execute("PRAGMA query_only = ON")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        prepare_reader(reader)


def prepare_reader(reader: Connection) -> None:
    """Define the functions that queries use."""
    reader.create_function("plain_path", 1, lambda path: plain_path(as_text(path)), deterministic=True)
    reader.create_function("said", 2, said, deterministic=True)
    reader.create_function("holds", 2, _holds, deterministic=True)


def _holds(text: str, title: bytes) -> bool:
    return text in as_text(title).casefold()


def _make(path: str) -> None:
    """An empty file is an empty database; SQLite would let others read it, and its log has the same mode.

    A database that is there is never opened but by SQLite: closing it would free SQLite's own locks.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    sync_directory(os.path.dirname(path))


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
    """How many migrations it has seen.

    Raises:
        BadHome: more than there are here, or it is of another program.
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


def _migrate(home: str, db: Connection) -> None:
    version = version_of(home, db)
    if version == 0:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise BadHome(home, "conversations cannot be kept here: the file system has no memory that processes share")
    db.execute("BEGIN IMMEDIATE")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    db.execute("COMMIT")
