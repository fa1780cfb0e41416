"""Copies a damaged database, and reads the readable entries of its conversations from the copy.

Each entry is looked up through every index and in the table. The caller decides how to handle an incomplete
conversation. No file in the home is changed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any, Final, NamedTuple

from parley.common.os_errors import os_detail
from parley.conversation.log import Entry
from parley.errors import BadHome, WriteLockHeld
from parley.ports.store import CALL_SECONDS
from parley.stores.blobs import decompress, restore
from parley.stores.sqlite.columns import as_text
from parley.stores.sqlite.damage import fetch_around_damage, fetch_readable, is_damage, known_conversations
from parley.stores.sqlite.database import make_database
from parley.stores.sqlite.files import DATABASE, LOG
from parley.stores.sqlite.lock_holders import UNKNOWN
from parley.stores.sqlite.locks import WRITE_LOCK, write_lock_holder
from parley.stores.sqlite.queries import BLOBS_INDEX
from parley.wire.ids import ConversationId, Seq

__all__ = ["Salvaged", "salvaged"]

POLL_SECONDS: Final = 0.05
PAGE_BYTES: Final = 4096
MAX_FAILED: Final = 100_000
"""The number of consecutive unreadable rows after which the remaining rows of the table `entries` are skipped."""


class Salvaged(NamedTuple):
    """The part of one conversation that could be read."""

    id: ConversationId | None
    """The id of the conversation; None if the id is lost."""
    cwd: str
    model: str
    archived: bool
    last: int
    """The number of entries that the conversation had or, if this number cannot be read, the highest position of an
    entry that was found.
    """
    entries: list[Entry]
    """The entries that could be read, in order. Positions between 1 and `last` may be missing."""


@contextmanager
def salvaged(home: str, folder: str) -> Iterator[Iterator[Salvaged]]:
    """Return a context manager that yields an iterator over the conversations of a damaged home. The conversations
    are read from a copy of the database, which is created in `folder`, an empty directory.

    Raises:
        BadHome: the database cannot be copied, or the copy cannot be opened.
        WriteLockHeld: the files cannot be copied, because another process may be writing to them.
    """
    copy = os.path.join(folder, DATABASE)
    try:
        _copy(home, folder)
        db = _opened(copy, folder)
    except (OSError, sqlite3.Error) as error:
        detail = os_detail(error) if isinstance(error, OSError) else str(error)
        raise BadHome(home, f"nothing can be read: {detail}") from error
    try:
        yield _Salvage(db).conversations()
    finally:
        db.close()


# --- a copy ------------------------------------------------------------------------------


def _copy(home: str, folder: str) -> None:
    """Copy the database of `home` and its write-ahead log to `folder`.

    If the home contains only the write-ahead log, create a new database beside the copy of the log. SQLite can then
    read the pages in the log, which were written since the last checkpoint.
    """
    database, log = (os.path.join(home, name) for name in (DATABASE, LOG))
    copy = os.path.join(folder, DATABASE)
    with _write_lock(home):
        has_log = os.path.exists(log) and os.path.getsize(log)
        if has_log and (not os.path.exists(database) or not os.path.getsize(database)):
            make_database(home, copy)
        else:
            shutil.copyfile(database, copy)
        if has_log:
            shutil.copyfile(log, os.path.join(folder, LOG))


@contextmanager
def _write_lock(home: str) -> Iterator[None]:
    """Hold the write lock of the home in the `with` block, so that no process writes. Hold no lock if the lock file
    does not exist.
    """
    try:
        lock = os.open(os.path.join(home, WRITE_LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        until = time.monotonic() + CALL_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise WriteLockHeld(write_lock_holder(home) or UNKNOWN) from None
                time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(lock)


def _opened(copy: str, folder: str) -> Connection:
    try:
        return _connected(copy)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
    _replace_first_page(copy, os.path.join(folder, "new.db"))
    return _connected(copy)


def _connected(path: str) -> Connection:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA writable_schema = ON")  # without this change, SQLite rejects a truncated file
        db.execute("SELECT id FROM conversations LIMIT 0")
        db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def _replace_first_page(path: str, new: str) -> None:
    """Overwrite the damaged first page of the database at `path` with the first page of a new database, which has
    the same tables and root pages. The new database is created at `new`.
    """
    make_database(os.path.dirname(new), new)
    with open(new, "rb") as file:
        page = bytearray(file.read(PAGE_BYTES))
    struct.pack_into(">I", page, 28, os.path.getsize(path) // PAGE_BYTES)
    struct.pack_into(">II", page, 32, 0, 0)  # these bytes mean that the list of free pages is empty
    with open(path, "r+b") as file:
        file.write(page)


# --- reading -----------------------------------------------------------------------------


class _Salvage:
    def __init__(self, db: Connection) -> None:
        self._db = db
        self._places: dict[int, dict[int, int]] | None = None

    def conversations(self) -> Iterator[Salvaged]:
        known = {one.row: one for one in known_conversations(self._db)}
        for row, one in known.items():
            yield self._conversation(row, one.id, archived=one.archived)
        removed = {row for (row,) in fetch_readable(self._db, "SELECT row FROM removed")}
        for row in sorted(self._rows() - known.keys() - removed):
            yield self._conversation(row, None, archived=False)

    def _rows(self) -> set[int]:
        """Return the row numbers of all conversations for which an entry can be found."""
        found: set[int] = set()
        for direction in ("ASC", "DESC"):
            rows = fetch_readable(self._db, f"SELECT DISTINCT row FROM entries ORDER BY row {direction}")
            found.update(row for (row,) in rows if isinstance(row, int))
        return found

    def _conversation(self, row: int, name: ConversationId | None, *, archived: bool) -> Salvaged:
        kept = fetch_readable(
            self._db,
            "SELECT last, CAST(cwd AS BLOB), CAST(model AS BLOB) FROM conversations WHERE row = ?",
            (row,),
        )
        last, cwd, model = kept[0] if kept else (None, b"", b"")
        places: dict[int, int] = {}
        for direction in ("ASC", "DESC"):
            wanted = f"SELECT seq, rowid FROM entries WHERE row = ? ORDER BY seq {direction}"
            places.update(
                (seq, place) for seq, place in fetch_readable(self._db, wanted, (row,)) if type(seq) is int
            )
        if not isinstance(last, int) or len(places) < last:
            places |= self._in_table().get(row, {})
        try:
            entries = list(self._entries(row, places))
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            entries = []
        length = last if isinstance(last, int) else max(places, default=0)
        return Salvaged(name, as_text(cwd or b""), as_text(model or b""), archived, length, entries)

    def _in_table(self) -> dict[int, dict[int, int]]:
        """Return the row ids of the entries in all readable pages of the table `entries`. The result maps the
        row number of each conversation to a mapping from positions to row ids.
        """
        if self._places is None:
            self._places = defaultdict(dict)
            at = failed = 0
            while failed < MAX_FAILED:
                before = at
                try:
                    for place, row, seq in self._db.execute(
                        "SELECT rowid, row, seq FROM entries NOT INDEXED WHERE rowid > ? ORDER BY rowid", (at,)
                    ):
                        at = place
                        if type(seq) is int:
                            self._places[row][seq] = place
                    break
                except sqlite3.Error as error:
                    if not is_damage(error):
                        raise
                failed = failed + 1 if at == before else 0
                at += 1
        return self._places

    def _entries(self, row: int, places: dict[int, int]) -> Iterator[Entry]:
        cuts: dict[int, list[tuple[int, bytes]]] = {}
        for seq, offset, digest in self._cuts(row):
            cuts.setdefault(seq, []).append((offset, digest))
        for seq in sorted(places):
            if (entry := self._entry(seq, places[seq], cuts.get(seq, []))) is not None:
                yield entry

    def _cuts(self, row: int) -> list[tuple[Any, ...]]:
        """Return the position, offset and hash of each blob that was cut out of the entries of the conversation
        with the row number `row`.
        """
        wanted = "SELECT seq, offset, hash FROM cuts {} WHERE row = ? ORDER BY seq, offset"
        return fetch_around_damage(self._db, wanted, (row,), instead=BLOBS_INDEX)

    def _entry(self, seq: int, place: int, cuts: list[tuple[int, bytes]]) -> Entry | None:
        try:
            ((at, kind, is_event, body),) = self._db.execute(
                "SELECT at, CAST(type AS BLOB), is_event, body FROM entries WHERE rowid = ?", (place,)
            ).fetchall()
            if type(at) is not float or type(body) is not bytes or b"\0" in body:
                return None
            whole = restore(body, [(offset, self._blob(digest)) for offset, digest in cuts]) if cuts else body
            return Entry.stored(Seq(seq), at, kind.decode(), is_event=bool(is_event), body=whole)
        except (ValueError, sqlite3.Error):
            return None

    def _blob(self, digest: bytes) -> bytes:
        """Return the decoded bytes of the blob with the given digest.

        Raises:
            ValueError, sqlite3.Error: the blob is damaged or missing.
        """
        ((packed,),) = fetch_around_damage(self._db, "SELECT data FROM blobs {} WHERE hash = ? LIMIT 1", (digest,))
        return decompress(packed)
