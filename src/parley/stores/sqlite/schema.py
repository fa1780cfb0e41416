"""The schema of the database, as numbered migrations. A released migration is never edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sqlite3 import Connection
from typing import Final

from parley.conversation.keys import key_in

__all__ = ["MIGRATIONS"]

MIGRATIONS: Final[list[Callable[[Connection], None]]] = []
"""All migrations, in order. The `user_version` of a database is the number of migrations that were applied to it.
"""


def _migration(step: Callable[[Connection], None]) -> Callable[[Connection], None]:
    MIGRATIONS.append(step)
    return step


@_migration
def m001_conversations_entries_and_blobs(db: Connection) -> None:
    """Create the first schema.

    Row numbers are never reused, because a lease lock is identified by the row number.
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
    # One counter for all conversations: if an id is used again after a deletion, its epochs are higher than before.
    db.execute("CREATE TABLE epochs (last INTEGER NOT NULL)")
    db.execute("INSERT INTO epochs VALUES (0)")
    # Rows are stored in the order of arrival, with a separate index. If they were ordered by conversation and
    # position, one transaction with a hundred entries could change a hundred pages.
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
    """Add columns for the node of each owner and the keys of entries, and a table for checkpoints of projections.

    A database with damaged entries is not migrated. The user has to repair it first.
    """
    db.execute("ALTER TABLE conversations ADD COLUMN owner_node TEXT")
    db.execute("CREATE TABLE checkpoints (row INTEGER PRIMARY KEY, seq INTEGER NOT NULL, data BLOB NOT NULL)")
    # The key is a column of the entry, so storing it needs no further statement. Most entries have no key, and the
    # index omits them.
    db.execute("ALTER TABLE entries ADD COLUMN key TEXT")
    db.executemany("UPDATE entries SET key = ? WHERE rowid = ?", list(_keys_of_entries(db)))
    db.execute("CREATE INDEX entries_by_key ON entries (row, type, key) WHERE key IS NOT NULL")


def _keys_of_entries(db: Connection) -> Iterator[tuple[str, int]]:
    """Yield the key and the row id of each entry with a key. Only entries of the types that had keys when migration
    2 was written are read.
    """
    types = ("user_message", "turn_started", "question_asked", "question_settled")
    entries = db.execute(
        f"SELECT rowid, type, is_event, CAST(body AS BLOB) FROM entries WHERE type IN {types} ORDER BY rowid"
    )
    for place, kind, is_event, body in entries:
        key = key_in(body, kind, is_event=bool(is_event))
        if key is not None:
            yield key, place


@_migration
def m003_tokens(db: Connection) -> None:
    """Add a table for the bearer tokens of HTTP clients. The tokens are stored as hashes."""
    db.execute(
        """
        CREATE TABLE tokens (
            name TEXT PRIMARY KEY,
            digest BLOB NOT NULL UNIQUE,
            role TEXT NOT NULL,
            conversation TEXT,
            created_at REAL NOT NULL,
            expires_at REAL,
            used_at REAL
        ) WITHOUT ROWID
        """
    )


@_migration
def m004_http_sessions(db: Connection) -> None:
    """Add a table for the sessions of HTTP clients."""
    db.execute(
        """
        CREATE TABLE http_sessions (
            digest BLOB PRIMARY KEY,
            principal TEXT NOT NULL,
            data BLOB NOT NULL,
            used_at REAL NOT NULL
        ) WITHOUT ROWID
        """
    )


@_migration
def m005_ends_of_turns_and_read_marks(db: Connection) -> None:
    """Add columns for the outcome of each conversation's last turn, and a table for the position up to which each
    principal has read each conversation.

    Entries that are older than this migration count as read (`read_seq`). The indexes omit conversations with a
    running turn, so that appends during a turn do not change the indexes. The complete schema has to fit on the
    first page of the database, so that `salvage.py` can replace this page.
    """
    for column in (
        "read_seq INTEGER NOT NULL DEFAULT 0",
        "ended_seq INTEGER NOT NULL DEFAULT 0",
        "ended_at REAL",
        "ended_why TEXT",
        "ended_text TEXT",
        "ended_code TEXT",
    ):
        db.execute(f"ALTER TABLE conversations ADD COLUMN {column}")
    db.execute("UPDATE conversations SET read_seq = last")
    db.execute(
        "CREATE TABLE read_marks"
        " (row INTEGER, reader TEXT, seq INTEGER NOT NULL, PRIMARY KEY (row, reader)) WITHOUT ROWID"
    )
    db.execute("CREATE INDEX conversations_asking ON conversations (updated_at, id) WHERE state = 'asking'")
    db.execute(
        "CREATE INDEX conversations_ended ON conversations (updated_at, id)"
        " WHERE state = 'idle' AND ended_seq > read_seq"
    )


@_migration
def m006_sign_ins(db: Connection) -> None:
    """Add a table for the sign-ins to the web page. Their secrets are stored as hashes."""
    db.execute(
        "CREATE TABLE sign_ins (digest BLOB PRIMARY KEY, secret BLOB NOT NULL, token BLOB NOT NULL,"
        " created_at REAL NOT NULL, used_at REAL NOT NULL, push BLOB) WITHOUT ROWID"
    )
