"""The schema of the database, as numbered migrations. A released migration is never edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sqlite3 import Connection
from typing import Final

from parley.conversation.keys import key_in

__all__ = ["MIGRATIONS"]

MIGRATIONS: Final[list[Callable[[Connection], None]]] = []
"""All migrations, in order. The `user_version` of a database is the number of migrations that it has had."""


def _migration(step: Callable[[Connection], None]) -> Callable[[Connection], None]:
    MIGRATIONS.append(step)
    return step


@_migration
def m001_conversations_entries_and_blobs(db: Connection) -> None:
    """Create the first schema.

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
    """Add the nodes of owners, the keys of entries, and checkpoints of projections.

    A database whose entries are damaged is not migrated: it has to be repaired first.
    """
    db.execute("ALTER TABLE conversations ADD COLUMN owner_node TEXT")
    db.execute("CREATE TABLE checkpoints (row INTEGER PRIMARY KEY, seq INTEGER NOT NULL, data BLOB NOT NULL)")
    # A column of the same row costs no further statement. The index leaves out entries without a key: nearly all.
    db.execute("ALTER TABLE entries ADD COLUMN key TEXT")
    db.executemany("UPDATE entries SET key = ? WHERE rowid = ?", list(_keys_of_entries(db)))
    db.execute("CREATE INDEX entries_by_key ON entries (row, type, key) WHERE key IS NOT NULL")


def _keys_of_entries(db: Connection) -> Iterator[tuple[str, int]]:
    """Yield key and row id of each entry that had a key when migration 2 was written."""
    types = ("user_message", "turn_started", "question_asked", "question_settled")
    entries = db.execute(
        f"SELECT rowid, type, is_event, CAST(body AS BLOB) FROM entries WHERE type IN {types} ORDER BY rowid"
    )
    for place, kind, is_event, body in entries:
        key = key_in(body, kind, is_event=bool(is_event))
        if key is not None:
            yield key, place
