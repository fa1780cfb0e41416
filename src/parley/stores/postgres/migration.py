"""Marks a database as the target of a migration from a home. Migrations from other homes are then refused."""

from __future__ import annotations

from typing import NamedTuple

from parley.errors import BadHome
from parley.stores.postgres.driver import Connection
from parley.wire.ids import Seq

__all__ = ["ReadMarks", "begin_migration", "end_migration", "raise_epochs"]


class ReadMarks(NamedTuple):
    """The positions up to which principals have read a log (`Store.mark_read`)."""

    by_all: Seq
    """The position up to which the log counts as read by every principal."""
    by_reader: list[tuple[str, Seq]]
    """The principals that have marked the log as read, each with the position up to which the principal has read
    the log.
    """


async def begin_migration(db: Connection, source: str, location: str) -> None:
    """Begin a migration from the home with the name `source`, or continue it if it has begun. `location` describes
    the database in error messages.

    Raises:
        BadHome: the migration from `source` is already complete, or no migration from `source` has begun and the
            database is not empty.
    """
    async with db.transaction():
        await db.execute("LOCK TABLE migrated_from IN EXCLUSIVE MODE")
        begun = await db.fetchval("SELECT is_complete FROM migrated_from WHERE source = $1", source.encode())
        if begun is None:
            used = "SELECT EXISTS (SELECT FROM conversations) OR EXISTS (SELECT FROM tokens)"
            if await db.fetchval(f"{used} OR EXISTS (SELECT FROM migrated_from)"):
                raise BadHome(location, "is not empty; migrate to a new database")
            await db.execute("INSERT INTO migrated_from VALUES ($1, false)", source.encode())
        elif begun:
            raise BadHome(location, "has all conversations of this home already")


async def end_migration(db: Connection, source: str) -> None:
    """Record that the migration from the home `source` is complete. A complete migration cannot be continued."""
    await db.execute("UPDATE migrated_from SET is_complete = true WHERE source = $1", source.encode())


async def raise_epochs(db: Connection, epoch: int) -> None:
    """Ensure that all leases acquired after this call have epochs higher than `epoch`, the highest epoch of the
    migrated home.

    The ids of items in a log contain the epoch of the lease under which the items were appended. A repeated epoch
    could therefore result in a repeated id.
    """
    await db.execute("SELECT setval('epochs', greatest($1::bigint, nextval('epochs')))", epoch)
