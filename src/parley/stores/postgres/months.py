"""The monthly partitions of the three tables that contain the entries of conversations, the blobs, and the
positions at which entries refer to blobs.

The upper bits of a conversation's number are the month in which the conversation was created. A partition contains
a range of numbers, so a conversation stays in one partition, and (conversation, position) is a unique key. The
partitions of a month are dropped when all conversations of the month have been deleted.

Partitions are created before their month begins. If the partitions of the current month are missing, new
conversations belong to the latest month that has partitions.
"""

from __future__ import annotations

from typing import Final

from parley.ports.store import Freed
from parley.stores.postgres.driver import Connection
from parley.stores.postgres.nodes import MAY_RETURN

__all__ = ["MIGRATION_LOCK", "NUMBER_BITS", "PARTITIONED", "drop_empty_months", "month_of", "prepare_months"]

MIGRATION_LOCK: Final = 7_306_931_411
"""The key of the advisory lock that a process holds while it changes the schema of the database."""

PARTITIONED: Final = ("entries", "cuts", "blobs")
"""The tables with one partition for each month."""

NUMBER_BITS: Final = 36
"""The number of low bits in a conversation's number that distinguish the conversations of one month; the higher
bits are the month. The SQL function `new_conversation_number` uses the same value.
"""

MONTHS_AHEAD: Final = 2
"""The number of months after the current month for which partitions are created in advance."""


def month_of(number: int) -> int:
    """Return the month in which the conversation `number` was created, counted from January of the year 0.

    Return 0 for a conversation that was created before the tables were partitioned.
    """
    return number >> NUMBER_BITS


def _partition(table: str, month: int) -> str:
    return f"{table}_{month // 12:04}_{month % 12 + 1:02}"


def _range(month: int) -> tuple[int, int]:
    """Return the first conversation number of the given month, and the first conversation number of the next
    month.
    """
    return month << NUMBER_BITS, (month + 1) << NUMBER_BITS


_MISSING: Final = f"""
    SELECT month FROM generate_series(this_month(), this_month() + {MONTHS_AHEAD}) AS needed(month)
    WHERE NOT EXISTS (SELECT FROM months m WHERE m.month = needed.month) ORDER BY month
"""


async def prepare_months(db: Connection) -> None:
    """Create the partitions of the current month and of the next months, if they are missing."""
    if not await db.fetch(_MISSING):
        return
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        for (month,) in await db.fetch(_MISSING):
            first, end = _range(month)
            for table in PARTITIONED:
                one = _partition(table, month)
                # `CREATE TABLE ... PARTITION OF` would wait for all readers. Attaching an existing table does not
                # wait.
                await db.execute(
                    f"CREATE TABLE {one} (LIKE {table} INCLUDING ALL);"
                    f" ALTER TABLE {table} ATTACH PARTITION {one} FOR VALUES FROM ({first}) TO ({end})"
                )
            await db.execute("INSERT INTO months VALUES ($1)", month)


# This query does not see the conversations that unfinished transactions create. Such a transaction takes less than
# a day, and uses the latest month, the month before it, or the month that was the latest when the transaction
# began.
_EMPTY: Final = f"""
    SELECT m.month FROM months m
    WHERE m.month > 0 AND m.month < -1 + (
        SELECT max(month) FROM months WHERE month <= this_month() AND prepared_at < now() - interval '1 day'
    )
    AND NOT EXISTS (
        SELECT FROM conversations c
        WHERE c.number >= m.month::bigint << {NUMBER_BITS} AND c.number < (m.month + 1)::bigint << {NUMBER_BITS}
    ) AND NOT EXISTS (
        SELECT FROM removed r JOIN holders h ON h.number = r.holder
        WHERE r.conversation >= m.month::bigint << {NUMBER_BITS}
        AND r.conversation < (m.month + 1)::bigint << {NUMBER_BITS} AND {MAY_RETURN}
    ) ORDER BY m.month
"""


async def drop_empty_months(db: Connection) -> Freed:
    """Drop the partitions of months in which no conversation remains. Return the number and total size of the blobs
    in these partitions.

    If a call is interrupted, the next call drops the remaining partitions. Do nothing while another process is
    changing the schema.
    """
    freed = Freed(blobs=0, bytes=0)
    if not await db.fetch(_EMPTY) or not await db.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATION_LOCK):
        return freed
    try:
        for (month,) in await db.fetch(_EMPTY):
            one = await _drop(db, month)
            freed = Freed(blobs=freed.blobs + one.blobs, bytes=freed.bytes + one.bytes)
    finally:
        await db.execute("SELECT pg_advisory_unlock($1)", MIGRATION_LOCK)
    return freed


async def _drop(db: Connection, month: int) -> Freed:
    blobs, size = 0, 0
    if await db.fetchval("SELECT to_regclass($1)", _partition("blobs", month)) is not None:
        found = await db.fetchrow(
            f"SELECT count(*), coalesce(sum(octet_length(data)), 0)::bigint FROM {_partition('blobs', month)}"
        )
        assert found is not None
        blobs, size = found
    for table in PARTITIONED:
        one = _partition(table, month)
        pending = await db.fetchval(
            "SELECT inhdetachpending FROM pg_catalog.pg_inherits WHERE inhrelid = to_regclass($1)", one
        )
        if pending is not None:
            # DETACH does not block readers and writers of other months. The statement cannot run in a transaction.
            # After it, dropping the detached table needs no lock on the partitioned table.
            how = "FINALIZE" if pending else "CONCURRENTLY"
            await db.execute(f"ALTER TABLE {table} DETACH PARTITION {one} {how}")
    first, end = _range(month)
    async with db.transaction():
        for table in PARTITIONED:
            await db.execute(f"DROP TABLE IF EXISTS {_partition(table, month)}")
        for table in ("checkpoints", "read_marks", "removed"):
            await db.execute(f"DELETE FROM {table} WHERE conversation >= $1 AND conversation < $2", first, end)
        await db.execute("DELETE FROM months WHERE month = $1", month)
    return Freed(blobs=blobs, bytes=size)
