"""Describes a database for `parley doctor`: its version, the encryption of the connection, and the durability of
committed writes.
"""

from __future__ import annotations

from typing import Final

from parley.stores.postgres.driver import Connection

__all__ = ["describe", "durability_of"]

_FACTS: Final = """
    SELECT current_setting('server_version'), coalesce(s.ssl, false), s.version,
        current_setting('fsync'), current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names')
    FROM (SELECT pg_backend_pid() AS pid) AS own LEFT JOIN pg_stat_ssl s USING (pid)
"""
_WAITS_FOR_STANDBY: Final = ("on", "remote_apply")


async def describe(db: Connection) -> list[str]:
    """Return one sentence about the version of the database, one about the encryption of the connection, and one
    about the durability of writes.
    """
    row = await db.fetchrow(_FACTS)
    assert row is not None
    version, is_encrypted, protocol, fsync, commit, names = row
    return [
        f"the server is PostgreSQL {version}",
        f"the connection is encrypted with {protocol}" if is_encrypted else "the connection is not encrypted",
        durability_of(fsync=fsync, commit=commit, names=names),
    ]


def durability_of(*, fsync: str, commit: str, names: str) -> str:
    """Return a sentence about the durability of committed writes: whether a crash can destroy them, and whether a
    synchronous standby has them. `fsync`, `commit` and `names` are the values of the settings `fsync`,
    `synchronous_commit` and `synchronous_standby_names` of the database server.
    """
    if fsync == "off":
        return "unsafe: fsync is off, so a crash of the server's computer can destroy the database"
    if commit == "off":
        return "unsafe: synchronous_commit is off, so a crash of the server can lose acknowledged writes"
    if names and commit in _WAITS_FOR_STANDBY:
        return "an acknowledged write is on the primary and on a synchronous standby"
    why = f"synchronous_commit is {commit}" if names else "synchronous_standby_names is empty"
    return f"an acknowledged write is on the primary only, because {why}"
