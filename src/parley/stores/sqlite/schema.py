"""The shape of the database, as the steps that lead to it. A step that was released is never edited again."""

from __future__ import annotations

from collections.abc import Callable
from sqlite3 import Connection
from typing import Final

__all__ = ["MIGRATIONS"]

MIGRATIONS: Final[list[Callable[[Connection], None]]] = []
"""In order; `user_version` of a database says how many of them it has seen."""


def _migration(step: Callable[[Connection], None]) -> Callable[[Connection], None]:
    MIGRATIONS.append(step)
    return step


@_migration
def m001_conversations_entries_and_blobs(db: Connection) -> None:
    """The first one.

    The number of a row is never used again: the lock of its owner stands at that place.
    """
    db.execute(
        """
        CREATE TABLE conversations (
            row INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            last INTEGER NOT NULL,
            epoch INTEGER NOT NULL DEFAULT 0,
            owner_pid INTEGER,
            owner_address TEXT,
            owner_since REAL,
            title TEXT NOT NULL,
            cwd TEXT NOT NULL,
            model TEXT NOT NULL,
            state TEXT NOT NULL,
            updated_at REAL NOT NULL,
            archived INTEGER NOT NULL
        )
        """
    )
    db.execute("CREATE INDEX conversations_by_activity ON conversations (archived, updated_at, id)")
    # One count for all, so that a conversation which takes the id of a deleted one begins behind its epochs.
    db.execute("CREATE TABLE epochs (last INTEGER NOT NULL)")
    db.execute("INSERT INTO epochs VALUES (0)")
    # In the order in which they come, whatever conversation they are of, with an index beside them: by conversation
    # and position, each of a hundred that are written at once would be on a page of its own.
    db.execute(
        """
        CREATE TABLE entries (
            row INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            at REAL NOT NULL,
            type TEXT NOT NULL,
            is_event INTEGER NOT NULL,
            body BLOB NOT NULL,
            UNIQUE (row, seq)
        )
        """
    )
    db.execute("CREATE TABLE blobs (hash BLOB PRIMARY KEY, size INTEGER NOT NULL, data BLOB NOT NULL)")
    db.execute(
        """
        CREATE TABLE cuts (
            row INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            hash BLOB NOT NULL,
            PRIMARY KEY (row, seq, offset)
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE INDEX cuts_by_blob ON cuts (hash)")
    # Entries of a conversation that is no more, while they are being removed.
    db.execute("CREATE TABLE removed (row INTEGER PRIMARY KEY, last INTEGER NOT NULL)")
