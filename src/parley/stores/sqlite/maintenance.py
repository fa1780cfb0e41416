"""Maintenance of a database while other processes use it: freeing space, copying, and checking for damage."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from sqlite3 import Connection
from threading import Event
from typing import Final

from parley.errors import StoreFailed
from parley.ports.store import Freed
from parley.stores.blobs import decompress
from parley.stores.sqlite.database import BUSY_SECONDS
from parley.stores.sqlite.files import DATABASE, AtomicFile, directory_of, sync_directory
from parley.stores.sqlite.queries import read_snapshot
from parley.stores.sqlite.read_only_connection import connect_read_only

__all__ = [
    "copy_to",
    "find_damage",
    "log_bytes",
    "reclaimable_bytes",
    "remove_unused_blobs",
    "shrink",
    "unused_blobs",
]

# --- free space --------------------------------------------------------------------------

BLOBS_A_STEP: Final = 64
PAGES_A_STEP: Final = 1024
"""The maximum number of empty pages that one call of `shrink` removes from the database file. The number is small,
so that each call holds the write lock only briefly.
"""

_UNUSED: Final = "FROM blobs WHERE NOT EXISTS (SELECT 1 FROM cuts WHERE cuts.hash = blobs.hash)"
_INCREMENTAL: Final = 2


def unused_blobs(db: Connection) -> Freed:
    """Return the number and total size of the blobs that no entry refers to."""
    count, size = db.execute(f"SELECT count(*), coalesce(sum(length(data)), 0) {_UNUSED}").fetchone()
    return Freed(blobs=count, bytes=size)


def remove_unused_blobs(db: Connection) -> Freed:
    """Remove a limited number of the blobs that no entry refers to, and return the number and total size of the
    removed blobs.

    If the number is 0, all such blobs have been removed; otherwise, the caller should call the function again.
    """
    found = db.execute(f"SELECT hash, length(data) {_UNUSED} LIMIT {BLOBS_A_STEP}").fetchall()
    db.executemany("DELETE FROM blobs WHERE hash = ?", [(digest,) for digest, _ in found])
    return Freed(blobs=len(found), bytes=sum(size for _, size in found))


def log_bytes(db: Connection, conversation_id: str) -> int:
    """Return the total size of the given conversation's entries, in bytes. The bodies are not read.

    The bytes of blobs are counted as they are in the body: four base64 characters for every three bytes.
    """
    size: int | None
    (size,) = db.execute(
        """
        SELECT sum(size) FROM (
            SELECT length(e.body) AS size FROM conversations c JOIN entries e ON e.row = c.row WHERE c.id = ?1
            UNION ALL
            SELECT b.size / 3 * 4 FROM conversations c JOIN cuts k ON k.row = c.row JOIN blobs b ON b.hash = k.hash
            WHERE c.id = ?1
        )
        """,
        (conversation_id,),
    ).fetchone()
    return size or 0


def reclaimable_bytes(db: Connection, is_leased: Callable[[int], bool]) -> int:
    """Estimate by how many bytes `shrink` can reduce the database file after the entries of deleted conversations
    and abandoned drafts have been removed. `is_leased` returns whether the lease lock of a row is held; a draft
    whose lock is held is still being written.
    """
    deleted = [row for (row,) in db.execute("SELECT row FROM removed").fetchall() if not is_leased(row)]
    entries = "SELECT coalesce(sum(length(body)), 0) FROM entries WHERE row = ?"
    (page_size,) = db.execute("PRAGMA page_size").fetchone()
    size: int = _empty_pages(db) * page_size
    for row in deleted:
        size += db.execute(entries, (row,)).fetchone()[0]
    return size


def shrink(db: Connection) -> bool:
    """Remove at most `PAGES_A_STEP` empty pages from the database file. Return True if further pages can be
    removed.
    """
    before = _empty_pages(db)
    db.execute(f"PRAGMA incremental_vacuum({PAGES_A_STEP})").fetchall()
    return 0 < _empty_pages(db) < before


def _empty_pages(db: Connection) -> int:
    """Return the number of empty pages that `shrink` can remove from the database file; 0 if another program has
    changed the vacuum mode of the database.
    """
    if db.execute("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL:
        return 0
    count: int = db.execute("PRAGMA freelist_count").fetchone()[0]
    return count


# --- copy --------------------------------------------------------------------------------

STEP_PAGES: Final = 1000
"""The number of pages, a few megabytes, that are copied between two checks for cancellation."""


def copy_to(db: Connection, path: str, cancelled: Event) -> bool:
    """Write a snapshot of the complete database to the file `path`. The file appears only when it is complete.

    Return True if the file was written. Return False, and change nothing, if a file exists at `path`.

    Raises:
        StoreFailed: `cancelled` was set during the copy. No file is left.
    """

    def refuse_when_cancelled(*_: int) -> None:
        if cancelled.is_set():
            raise StoreFailed("the copy was cancelled")

    if os.path.lexists(path):
        return False
    with read_snapshot(db), AtomicFile(path) as file:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the snapshot begins with the first statement
        copy = sqlite3.connect(file.name, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = OFF")  # the whole file is synced below
            db.backup(copy, pages=STEP_PAGES, progress=refuse_when_cancelled)
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        refuse_when_cancelled()
        try:
            file.commit(overwrite=False)
        except FileExistsError:  # another process created the file first
            return False
    sync_directory(directory_of(path))
    return True


# --- integrity check ---------------------------------------------------------------------


def find_damage(home: str) -> str | None:
    """Read the complete database of a home without changing any file, and return a description of the first damage
    that is found.

    Return None if no damage is found. If the check would have to change a file, skip the check and also return
    None.
    """
    path = os.path.join(home, DATABASE)
    if not os.path.exists(path) or (db := connect_read_only(home, timeout_seconds=BUSY_SECONDS)) is None:
        return None
    try:
        return next(_problems(db), None)
    except sqlite3.OperationalError:
        return None  # another process is opening or closing the database
    except sqlite3.Error as error:
        return str(error)
    finally:
        db.close()


def _problems(db: Connection) -> Iterator[str]:
    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        return  # the database was created a moment ago
    for (problem,) in db.execute("PRAGMA quick_check(1)"):
        if problem != "ok":
            yield " ".join(problem.split())
    # SQLite has no checksums, so it does not detect a zeroed page at the end of a long value.
    (count,) = db.execute("SELECT count(*) FROM entries WHERE instr(body, x'00')").fetchone()
    if count:
        yield f"{count} entries have lost a part of their text"
    for digest, data in db.execute("SELECT hash, data FROM blobs"):
        if not _is_sound(digest, data):
            yield "an image or a command output is damaged"


def _is_sound(digest: bytes, data: bytes) -> bool:
    try:
        return hashlib.sha256(decompress(data)).digest() == digest
    except ValueError:
        return False
