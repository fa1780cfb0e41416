"""The schema of the database, as numbered migrations. A released migration is never edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sqlite3 import Connection, DatabaseError
from typing import Final

from parley.conversation.keys import key_in
from parley.stores.sqlite.damage import is_damage

__all__ = ["MIGRATIONS"]

MIGRATIONS: Final[list[Callable[[Connection], None]]] = []
"""In order. The `user_version` of a database is the number of migrations that it has had."""


def _migration(step: Callable[[Connection], None]) -> Callable[[Connection], None]:
    MIGRATIONS.append(step)
    return step


@_migration
def m001_conversations_entries_and_blobs(db: Connection) -> None:
    """The first schema.

    Row numbers are never reused, because the lock of a lease is identified by the row number.
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
    # One counter for all conversations: one that reuses the id of a deleted one has higher epochs than that.
    db.execute("CREATE TABLE epochs (last INTEGER NOT NULL)")
    db.execute("INSERT INTO epochs VALUES (0)")
    # In the order of arrival, with a separate index: ordered by conversation and position, a hundred entries that
    # are written together would change a hundred pages.
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
    # Deleted conversations whose entries are still being removed, and drafts.
    db.execute("CREATE TABLE removed (row INTEGER PRIMARY KEY, last INTEGER NOT NULL)")


@_migration
def m002_nodes_keys_and_checkpoints(db: Connection) -> None:
    """Owners name their node; entries are found by key; projections have a checkpoint.

    A damaged page ends the scan for keys early, so that a damaged database can still be opened.
    """
    db.execute("ALTER TABLE conversations ADD COLUMN owner_node TEXT")
    db.execute(
        """
        CREATE TABLE entry_keys (
            row INTEGER NOT NULL,
            type TEXT NOT NULL,
            key TEXT NOT NULL,
            seq INTEGER NOT NULL,
            PRIMARY KEY (row, type, key)
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE TABLE checkpoints (row INTEGER PRIMARY KEY, seq INTEGER NOT NULL, data BLOB NOT NULL)")
    db.executemany("INSERT OR IGNORE INTO entry_keys VALUES (?, ?, ?, ?)", _keys_of_entries(db))


def _keys_of_entries(db: Connection) -> Iterator[tuple[int, str, str, int]]:
    """Yield row, type, key and position of each entry that had a key when migration 2 was written."""
    types = ("user_message", "turn_started", "question_asked", "question_settled")
    entries = db.execute(
        "SELECT row, type, seq, is_event, CAST(body AS BLOB) FROM entries"
        f" WHERE type IN {types} AND typeof(seq) = 'integer' ORDER BY rowid"
    )
    try:
        for row, kind, seq, is_event, body in entries:
            key = key_in(body, kind, is_event=bool(is_event))
            if key is not None:
                yield row, kind, key, seq
    except DatabaseError as error:
        if not is_damage(error):
            raise
