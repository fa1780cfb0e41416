"""Checks whether anything in a database is damaged. Reads all of it, and changes nothing."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator

from parley.stores.blobs import unpacked
from parley.stores.database_files import DATABASE
from parley.stores.opening import BUSY_SECONDS
from parley.stores.read_only import connect_read_only

__all__ = ["damage_in"]


def damage_in(home: str) -> str | None:
    """Describe the first damage found in the database of a home; None: there is none, or finding out would change a
    file."""
    path = os.path.join(home, DATABASE)
    if not os.path.exists(path) or (db := connect_read_only(home, timeout_seconds=BUSY_SECONDS)) is None:
        return None
    try:
        return next(_problems(db), None)
    except sqlite3.OperationalError:
        return None  # another process is opening or closing it
    except sqlite3.Error as error:
        return str(error)
    finally:
        db.close()


def _problems(db: sqlite3.Connection) -> Iterator[str]:
    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        return  # it was just begun
    for (problem,) in db.execute("PRAGMA quick_check(1)"):
        if problem != "ok":
            yield " ".join(problem.split())
    # SQLite has no checksums: of a zeroed page at the end of a long value it notices nothing.
    (count,) = db.execute("SELECT count(*) FROM entries WHERE instr(body, x'00')").fetchone()
    if count:
        yield f"{count} entries have lost text"
    for digest, data in db.execute("SELECT hash, data FROM blobs"):
        if not _is_sound(digest, data):
            yield "an image or an output is not what was written"


def _is_sound(digest: bytes, data: bytes) -> bool:
    try:
        return hashlib.sha256(unpacked(data)).digest() == digest
    except ValueError:
        return False
