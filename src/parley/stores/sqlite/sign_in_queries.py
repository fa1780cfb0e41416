"""The SQL for the sign-ins to the web page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from parley.ports.store import StoredSignIn

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["add_sign_in", "all_sign_ins", "note_used", "remove_sign_ins", "sign_in_of", "subscribe"]

_COLUMNS = "digest, secret, token, created_at, used_at, push"


def add_sign_in(db: Connection, sign_in: StoredSignIn) -> None:
    """Store a new sign-in or one-time code. If a row with the same digest exists, do nothing."""
    db.execute(
        f"INSERT INTO sign_ins ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING",
        (sign_in.digest, sign_in.secret, sign_in.token, sign_in.created_at, sign_in.used_at, sign_in.push),
    )


def subscribe(db: Connection, digest: bytes, push: bytes | None) -> bool:
    """Store the push subscription of the sign-in with the given digest; `push` is None to remove the subscription.
    Return False if the sign-in does not exist.
    """
    return db.execute("UPDATE sign_ins SET push = ? WHERE digest = ?", (push, digest)).rowcount == 1


def sign_in_of(db: Connection, digest: bytes) -> StoredSignIn | None:
    """Return the sign-in or one-time code with the given digest; None if there is no such sign-in or code."""
    row = db.execute(f"SELECT {_COLUMNS} FROM sign_ins WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else _sign_in(*row)


def all_sign_ins(db: Connection) -> list[StoredSignIn]:
    """Return all sign-ins and one-time codes, ordered by digest."""
    return [_sign_in(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM sign_ins ORDER BY digest")]


def note_used(db: Connection, used: Mapping[bytes, float]) -> None:
    """Store the times when sign-ins were last used. `used` maps the digest of a sign-in to a time in seconds since
    the epoch.
    """
    uses = [(at, digest) for digest, at in used.items()]
    db.executemany("UPDATE sign_ins SET used_at = ? WHERE digest = ?", uses)


def remove_sign_ins(db: Connection, digests: Collection[bytes]) -> int:
    """Delete the sign-ins and one-time codes with these digests. Return the number of deleted rows."""
    return sum(db.execute("DELETE FROM sign_ins WHERE digest = ?", (one,)).rowcount for one in set(digests))


def _sign_in(
    digest: bytes, secret: bytes, token: bytes, created_at: float, used_at: float, push: bytes | None
) -> StoredSignIn:
    return StoredSignIn(
        digest=digest, secret=secret, token=token, created_at=created_at, used_at=used_at, push=push
    )
