"""Saves conversations that the database files on disk no longer contain, but that an open connection can still
read.

Each conversation is saved as a file that `parley import` can read. The server saves the conversations when it finds
that `parley.db` or its write-ahead log was removed or replaced.
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

MAX_BYTES: Final = 256 * 1024 * 1024
"""The total size of the saved files, in bytes, at which no further conversation is saved. The most recently active
conversations are saved first.
"""

ELSEWHERE: Final = "/var/tmp"
"""The directory in which conversations are saved if the home is not writable. Sandboxed commands cannot write to
this directory unless the settings allow it.
"""


class Saved(NamedTuple):
    """Describes which conversations `save_unreachable` has saved, and where."""

    place: str | None
    """The path of the saved file, or of the directory of the saved files if there are several; None if nothing was
    saved.
    """
    conversations: int
    left_out: int | None
    """The number of conversations that were not saved, because they could not be read or written, or because the
    size limit was reached. None if the list of conversations could not be read.
    """


def save_unreachable(db: Connection, home: str, database: str) -> Saved:
    """Export conversations that the connection `db` can read: those that are missing from the file `database`, and
    those that have a different number of entries in this file. Return the place of the saved files, the number of
    saved conversations, and the number of conversations that were not saved.

    Each conversation is written to its own file in the home, or in `ELSEWHERE` if the home is not writable.
    """
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
        if size < MAX_BYTES and (written := _save(db, conversation_id, path)) is not None:
            saved.append(path)
            size += written
    if not saved:
        with suppress(OSError):
            os.rmdir(place)
        return Saved(None, 0, len(lacking))
    return Saved(saved[0] if len(lacking) == len(saved) == 1 else place, len(saved), len(lacking) - len(saved))


def export_lines(db: Connection, conversation_id: ConversationId) -> Iterator[bytes]:
    """Yield the lines of the export of the given conversation (`conversation/export_format.py`).

    Raises:
        ParleyError: the conversation does not exist or is damaged.
        sqlite3.Error: the database cannot be read.
    """
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
    """Return the last position of each conversation in the database file, without the write-ahead log.

    Return an empty mapping if the file is unreadable or has been removed.
    """
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
    """Create a directory for the saved files that only the user may access, and return its path.

    The directory is in the home, because sandboxed commands cannot access the home. A home that was removed is
    created again. If the home is not writable, the directory is in `ELSEWHERE`. The directory is not in /tmp,
    because sandboxed commands could change the files there before the user imports them.

    Raises:
        OSError: neither the home nor `ELSEWHERE` is writable.
    """
    name = time.strftime("saved-%Y%m%d-%H%M%S-")
    try:
        if not os.path.isdir(home):
            os.mkdir(home, 0o700)
        return tempfile.mkdtemp(prefix=name, dir=home)
    except OSError:  # the home may be read-only or full
        return tempfile.mkdtemp(prefix=f"parley-{name}", dir=ELSEWHERE)


def _save(db: Connection, conversation_id: ConversationId, path: str) -> int | None:
    """Save the given conversation to the file `path`. Return the size of the file in bytes; None if the
    conversation could not be saved.
    """
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
