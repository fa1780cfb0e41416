"""The SQL for the bearer tokens of HTTP clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from parley.ports.store import StoredToken

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["add_token", "all_tokens", "note_used", "remove_token"]


def add_token(db: Connection, token: StoredToken) -> bool:
    """Store a token, and return True. If a token with the same name exists, store nothing and return False."""
    added = db.execute(
        "INSERT INTO tokens (name, digest, role, conversation, created_at, expires_at, used_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
        (
            token.name,
            token.digest,
            token.role,
            token.conversation_id,
            token.created_at,
            token.expires_at,
            token.used_at,
        ),
    )
    return added.rowcount == 1


def all_tokens(db: Connection) -> list[StoredToken]:
    """Return all tokens, ordered by name."""
    rows = db.execute(
        "SELECT name, digest, role, conversation, created_at, expires_at, used_at FROM tokens ORDER BY name"
    )
    return [
        StoredToken(
            name=name,
            digest=digest,
            role=role,
            conversation_id=conversation,
            created_at=created_at,
            expires_at=expires_at,
            used_at=used_at,
        )
        for name, digest, role, conversation, created_at, expires_at, used_at in rows
    ]


def remove_token(db: Connection, name: str) -> bool:
    """Remove a token, and the read marks and sign-ins of its principal. Return False if no token has this name."""
    token = next((one for one in all_tokens(db) if one.name == name), None)
    if token is None:
        return False
    db.execute("DELETE FROM tokens WHERE name = ?", (name,))
    db.execute("DELETE FROM read_marks WHERE reader = ?", (token.token_id,))
    db.execute("DELETE FROM sign_ins WHERE token = ?", (token.digest,))
    return True


def note_used(db: Connection, used: Mapping[bytes, float]) -> None:
    """Store the times when tokens were last used. `used` maps the digest of a token to a time in seconds since the
    epoch.
    """
    db.executemany("UPDATE tokens SET used_at = ? WHERE digest = ?", [(at, digest) for digest, at in used.items()])
