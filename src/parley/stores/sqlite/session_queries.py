"""The SQL for the sessions of HTTP clients."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from parley.ports.store import StoredSession

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["note_used", "remove_sessions", "remove_unused", "revisions", "save_session", "session_of"]


def save_session(db: Connection, session: StoredSession, replacing: bytes | None) -> bool:
    """Store a session if the state that is currently stored is `replacing`; None means that the session is not
    stored yet. Return False and change nothing if another state is stored or the session was removed.
    """
    if replacing is None:
        changed = db.execute(
            "INSERT INTO http_sessions (digest, principal, data, used_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (digest) DO UPDATE SET used_at = excluded.used_at WHERE data = excluded.data",
            (session.digest, session.principal, session.data, session.used_at),
        )
    else:
        changed = db.execute(
            "UPDATE http_sessions SET principal = ?, data = ?, used_at = ? WHERE digest = ? AND data IN (?, ?)",
            (session.principal, session.data, session.used_at, session.digest, replacing, session.data),
        )
    return changed.rowcount == 1


def session_of(db: Connection, digest: bytes) -> StoredSession | None:
    """Return the session with the given digest; None if there is no such session."""
    row = db.execute("SELECT principal, data, used_at FROM http_sessions WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return None
    principal, data, used_at = row
    return StoredSession(digest=digest, principal=principal, data=data, used_at=used_at)


def revisions(db: Connection, digests: Collection[bytes]) -> dict[bytes, bytes]:
    """Return a mapping from the digest of each session in `digests` to the SHA-256 digest of its state. Sessions
    that are not stored are left out.
    """
    found = {}
    for digest in digests:
        row = db.execute("SELECT data FROM http_sessions WHERE digest = ?", (digest,)).fetchone()
        if row is not None:
            found[digest] = hashlib.sha256(row[0]).digest()
    return found


def remove_sessions(db: Connection, digests: Collection[bytes]) -> None:
    db.executemany("DELETE FROM http_sessions WHERE digest = ?", [(digest,) for digest in digests])


def remove_unused(db: Connection, since: float) -> None:
    """Remove the sessions that were last used before the time `since`, in seconds since the epoch."""
    db.execute("DELETE FROM http_sessions WHERE used_at < ?", (since,))


def note_used(db: Connection, used: Mapping[bytes, float]) -> None:
    """Store the times when sessions were last used. `used` maps the digest of a session to a time in seconds since
    the epoch.
    """
    uses = [(at, digest) for digest, at in used.items()]
    db.executemany("UPDATE http_sessions SET used_at = max(used_at, ?) WHERE digest = ?", uses)
