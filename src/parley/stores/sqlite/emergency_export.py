"""Saving conversations that an open connection still reads and that are not in the database on disk any more.

Each is saved as a file that `parley import` reads. Called when `parley.db` or its log was removed or replaced.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from sqlite3 import Connection
from typing import Final, NamedTuple
from urllib.parse import quote

from parley.conversation.export_format import ExportHead, entry_line, head_line
from parley.errors import ParleyError
from parley.stores.sqlite import queries
from parley.wire.ids import START, ConversationId, Seq

__all__ = ["Saved", "export_lines", "save_unreachable"]

MOST_BYTES: Final = 256 * 1024 * 1024
"""The latest conversations are saved first; beyond this size the rest is left out."""

ELSEWHERE: Final = "/var/tmp"
"""Where to save what cannot be saved in the home: commands may not write there, unless the settings name it."""


class Saved(NamedTuple):
    place: str | None
    """A file or, for several conversations, a directory. None: there was nothing to save, or it failed."""
    conversations: int
    left_out: int | None
    """How many could not be read or written, or were beyond the limit. None: not even how many is known."""


def save_unreachable(db: Connection, home: str, database: str) -> Saved:
    """Save what `db` reads and the file `database` does not have: in the home, or else in `ELSEWHERE`."""
    known = _last_positions(database)
    try:
        found = db.execute("SELECT id, last FROM conversations ORDER BY updated_at DESC").fetchall()
    except sqlite3.Error:
        return Saved(None, 0, None)
    lacking = [ConversationId(one) for one, last in found if last != known.get(one) and last != 0]
    if not lacking:
        return Saved(None, 0, 0)
    try:
        place = _directory(home)
    except OSError:
        return Saved(None, 0, len(lacking))
    saved: list[str] = []
    size = 0
    for conversation_id in lacking:
        path = os.path.join(place, f"{conversation_id}.jsonl")
        if size < MOST_BYTES and (written := _save(db, conversation_id, path)) is not None:
            saved.append(path)
            size += written
    if not saved:
        with suppress(OSError):
            os.rmdir(place)
        return Saved(None, 0, len(lacking))
    return Saved(saved[0] if len(lacking) == len(saved) == 1 else place, len(saved), len(lacking) - len(saved))


def export_lines(db: Connection, conversation_id: ConversationId) -> Iterator[bytes]:
    """The lines of an export of a conversation. Raises ParleyError, sqlite3.Error."""
    head = queries.head(db, conversation_id, is_leased=lambda row: False)
    yield head_line(
        ExportHead(
            conversation_id=conversation_id,
            last=head.last,
            exported_at=time.time(),
            archived=head.archived,
            title=head.summary.title,
            cwd=head.summary.cwd,
            model=head.summary.model,
        )
    )
    at = START
    while at < head.last:
        for entry in queries.entries_after(db, conversation_id, at)[: head.last - at]:
            yield entry_line(entry)
            at = Seq(entry.seq)


def _last_positions(database: str) -> Mapping[str, int]:
    """The last position of each conversation in the database file alone, without its log; empty if unreadable."""
    try:
        db = sqlite3.connect(f"file:{quote(database)}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error:
        return {}
    try:
        return dict(db.execute("SELECT id, last FROM conversations"))
    except sqlite3.Error:
        return {}
    finally:
        db.close()


def _directory(home: str) -> str:
    """A new directory that only its owner may read. Raises OSError.

    A home that is gone is made again, because it is hidden from commands. They could change what lies in /tmp, and
    the user is told to import it.
    """
    name = time.strftime("saved-%Y%m%d-%H%M%S-")
    try:
        if not os.path.isdir(home):
            os.mkdir(home, 0o700)
        return tempfile.mkdtemp(prefix=name, dir=home)
    except OSError:  # it may be read-only or full
        return tempfile.mkdtemp(prefix=f"parley-{name}", dir=ELSEWHERE)


def _save(db: Connection, conversation_id: ConversationId, path: str) -> int | None:
    """The size of the file; None: nothing was saved."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(export_lines(db, conversation_id))
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
    except (OSError, ParleyError, sqlite3.Error):
        try:
            os.unlink(path)
        except OSError:
            pass
        return None
