"""Reads the ids of conversations and of open approvals for shell completion.

A completion must be fast, so this module imports little. The module changes no file and never waits.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from parley.stores.sqlite.read_only_connection import connect_read_only

__all__ = ["open_approvals", "recent_conversations"]

MAX_IDS: Final = 500
"""The maximum number of ids that one call returns."""

_CONVERSATIONS: Final = (
    f"SELECT id, CAST(title AS BLOB) FROM conversations ORDER BY updated_at DESC LIMIT {MAX_IDS}"
)
# A conversation with an open approval is not idle, so the log of an idle conversation is not searched.
_APPROVALS: Final = f"""
    SELECT asked.key, CAST(conversations.title AS BLOB) FROM conversations JOIN entries AS asked USING (row)
    WHERE state <> 'idle' AND asked.type = 'question_asked' AND asked.key IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM entries AS settled
        WHERE settled.row = asked.row AND settled.type = 'question_settled' AND settled.key = asked.key
    )
    ORDER BY asked.at LIMIT {MAX_IDS}
"""


def recent_conversations(home: str) -> list[tuple[str, str]]:
    """Return the ids and the titles of the most recently active conversations. Return an empty list if the database
    cannot be read now.
    """
    return _read(home, _CONVERSATIONS)


def open_approvals(home: str) -> list[tuple[str, str]]:
    """Return the ids of the open approvals, each with the title of its conversation. Return an empty list if the
    database cannot be read now.
    """
    return _read(home, _APPROVALS)


def _read(home: str, query: str) -> list[tuple[str, str]]:
    try:
        if (db := connect_read_only(home)) is None:
            return []
        try:
            return [(str(key), title.decode(errors="replace")) for key, title in db.execute(query)]
        finally:
            db.close()
    except (OSError, sqlite3.Error):
        return []
