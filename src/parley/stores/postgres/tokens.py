"""The SQL for the bearer tokens and the sessions of HTTP clients, and for the sign-ins to the web page."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parley.ports.store import StoredSession, StoredSignIn, StoredToken
from parley.stores.postgres.driver import Connection, replicated
from parley.wire.ids import ConversationId

__all__ = [
    "add_sign_in",
    "add_token",
    "all_sign_ins",
    "all_tokens",
    "note_sessions_used",
    "note_sign_ins_used",
    "note_tokens_used",
    "remove_sessions",
    "remove_sign_ins",
    "remove_token",
    "remove_unused_sessions",
    "save_session",
    "session_of",
    "session_revisions",
    "sign_in_of",
    "subscribe_sign_in",
]


async def add_token(db: Connection, token: StoredToken, may_be_done: bool) -> bool:
    """Store a token. Return False, and store nothing, if another token has the same name. `may_be_done` is True if
    an earlier attempt of this call may have been committed; a token with the same digest then counts as stored by
    that attempt.
    """
    bound = None if token.conversation_id is None else token.conversation_id.encode()
    added = await db.fetchval(
        "INSERT INTO tokens VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO NOTHING RETURNING name",
        token.name.encode(),
        token.digest,
        token.role,
        bound,
        token.created_at,
        token.expires_at,
        token.used_at,
    )
    if added is None and may_be_done:
        found = await db.fetchval("SELECT digest FROM tokens WHERE name = $1", token.name.encode())
        await replicated(db)
        return bool(found == token.digest)
    return added is not None


async def all_tokens(db: Connection) -> list[StoredToken]:
    """Return all tokens, ordered by name."""
    rows = await db.fetch(
        "SELECT name, digest, role, conversation, created_at, expires_at, used_at FROM tokens ORDER BY name"
    )
    return [
        StoredToken(
            name=name.decode(),
            digest=digest,
            role=role,
            conversation_id=None if conversation is None else ConversationId(conversation.decode()),
            created_at=created_at,
            expires_at=expires_at,
            used_at=used_at,
        )
        for name, digest, role, conversation, created_at, expires_at, used_at in rows
    ]


async def remove_token(db: Connection, name: str, may_be_done: bool) -> bool:
    """Remove a token, and the read marks and sign-ins of its principal. Return False if no token has this name.
    `may_be_done` is True if an earlier attempt of this call may have been committed; a missing token then counts as
    removed by that attempt.
    """
    token = next((one for one in await all_tokens(db) if one.name == name), None)
    if token is None:
        if may_be_done:
            await replicated(db)
        return may_be_done
    await db.execute(
        "WITH deleted AS (DELETE FROM tokens WHERE name = $1),"
        " signed_out AS (DELETE FROM sign_ins WHERE token = $3)"
        " DELETE FROM read_marks WHERE reader = $2",
        name.encode(),
        token.token_id.encode(),
        token.digest,
    )
    return True


async def note_tokens_used(db: Connection, used: Mapping[bytes, float]) -> None:
    """Store the times when tokens were last used. `used` maps the digest of a token to a time in seconds since the
    epoch.
    """
    await db.execute(_NOTE.format("tokens"), list(used), list(used.values()))


_NOTE = (
    "UPDATE {} AS t SET used_at = n.at FROM unnest($1::bytea[], $2::double precision[]) AS n(digest, at)"
    " WHERE t.digest = n.digest"
)


async def save_session(db: Connection, session: StoredSession, replacing: bytes | None) -> bool:
    """Store a session if the state that is currently stored is `replacing`; None means that the session is not
    stored yet. Return False and change nothing if another state is stored or the session was removed.
    """
    values = session.digest, session.principal.encode(), session.data, session.used_at
    if replacing is None:
        found = await db.fetchval(
            "INSERT INTO http_sessions VALUES ($1, $2, $3, $4) ON CONFLICT (digest)"
            " DO UPDATE SET used_at = excluded.used_at WHERE http_sessions.data = excluded.data RETURNING 1",
            *values,
        )
    else:
        found = await db.fetchval(
            "UPDATE http_sessions SET principal = $2, data = $3, used_at = $4"
            " WHERE digest = $1 AND data IN ($3, $5) RETURNING 1",
            *values,
            replacing,
        )
    return found is not None


async def session_of(db: Connection, digest: bytes) -> StoredSession | None:
    """Return the session with the given digest; None if there is no such session."""
    row = await db.fetchrow("SELECT principal, data, used_at FROM http_sessions WHERE digest = $1", digest)
    if row is None:
        return None
    principal, data, used_at = row
    return StoredSession(digest=digest, principal=principal.decode(), data=data, used_at=used_at)


async def session_revisions(db: Connection, digests: Collection[bytes]) -> dict[bytes, bytes]:
    """Return a mapping from the digest of each session in `digests` to the SHA-256 digest of its state. Sessions
    that are not stored are left out.
    """
    rows = await db.fetch(
        "SELECT digest, sha256(data) FROM http_sessions WHERE digest = ANY($1::bytea[])", list(digests)
    )
    return {row[0]: row[1] for row in rows}


async def note_sessions_used(db: Connection, used: Mapping[bytes, float]) -> None:
    """Store the times when sessions were last used. `used` maps the digest of a session to a time in seconds since
    the epoch.
    """
    await db.execute(
        "UPDATE http_sessions AS t SET used_at = greatest(t.used_at, n.at)"
        " FROM unnest($1::bytea[], $2::double precision[]) AS n(digest, at) WHERE t.digest = n.digest",
        list(used),
        list(used.values()),
    )


async def remove_sessions(db: Connection, digests: Collection[bytes], may_be_done: bool) -> None:
    await db.execute("DELETE FROM http_sessions WHERE digest = ANY($1::bytea[])", list(digests))
    if may_be_done:
        await replicated(db)


async def remove_unused_sessions(db: Connection, since: float) -> None:
    """Remove the sessions that were last used before the time `since`, in seconds since the epoch."""
    await db.execute("DELETE FROM http_sessions WHERE used_at < $1", since)


_SIGN_IN_COLUMNS = "digest, secret, token, created_at, used_at, push"


async def add_sign_in(db: Connection, sign_in: StoredSignIn) -> None:
    """Store a new sign-in or one-time code. If a row with the same digest exists, do nothing, because an earlier
    attempt of this call was committed.
    """
    await db.execute(
        f"INSERT INTO sign_ins ({_SIGN_IN_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)"
        " ON CONFLICT (digest) DO NOTHING",
        sign_in.digest,
        sign_in.secret,
        sign_in.token,
        sign_in.created_at,
        sign_in.used_at,
        sign_in.push,
    )


async def subscribe_sign_in(db: Connection, digest: bytes, push: bytes | None) -> bool:
    """Store the push subscription of the sign-in with the given digest; `push` is None to remove the subscription.
    Return False if the sign-in does not exist.
    """
    return bool(await db.fetchval("UPDATE sign_ins SET push = $2 WHERE digest = $1 RETURNING true", digest, push))


async def sign_in_of(db: Connection, digest: bytes) -> StoredSignIn | None:
    """Return the sign-in or one-time code with the given digest; None if there is no such sign-in or code."""
    row = await db.fetchrow(f"SELECT {_SIGN_IN_COLUMNS} FROM sign_ins WHERE digest = $1", digest)
    return None if row is None else _sign_in(*row)


async def all_sign_ins(db: Connection) -> list[StoredSignIn]:
    """Return all sign-ins and one-time codes, ordered by digest."""
    return [_sign_in(*row) for row in await db.fetch(f"SELECT {_SIGN_IN_COLUMNS} FROM sign_ins ORDER BY digest")]


async def note_sign_ins_used(db: Connection, used: Mapping[bytes, float]) -> None:
    """Store the times when sign-ins were last used. `used` maps the digest of a sign-in to a time in seconds since
    the epoch.
    """
    await db.execute(_NOTE.format("sign_ins"), list(used), list(used.values()))


async def remove_sign_ins(db: Connection, digests: Collection[bytes], may_be_done: bool) -> int:
    """Remove the sign-ins and one-time codes with these digests, and return the number of removed rows.
    `may_be_done` is True if an earlier attempt of this call may have been committed; the number does not include
    the rows that the earlier attempt removed.
    """
    rows = await db.fetch("DELETE FROM sign_ins WHERE digest = ANY($1::bytea[]) RETURNING 1", list(digests))
    if may_be_done:
        await replicated(db)
    return len(rows)


def _sign_in(
    digest: bytes, secret: bytes, token: bytes, created_at: float, used_at: float, push: bytes | None
) -> StoredSignIn:
    return StoredSignIn(
        digest=digest, secret=secret, token=token, created_at=created_at, used_at=used_at, push=push
    )
