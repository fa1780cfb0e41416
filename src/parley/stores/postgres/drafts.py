"""Creates conversations, either in one transaction or as drafts that are written page by page.

Until a draft is finished, it counts as deleted: the table `removed` contains the draft and the process that writes
it. After the writing process has exited, any process may remove the entries of the draft.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final

from parley.conversation.log import Entry
from parley.errors import StoreFailed
from parley.ports.store import PAGE, Checkpoint, Freed, Summary
from parley.stores.postgres.batch import Batch, Shape, arrays_of, pack
from parley.stores.postgres.database import Database
from parley.stores.postgres.driver import Connection, replicated
from parley.stores.postgres.migration import ReadMarks
from parley.stores.postgres.nodes import MAY_RETURN
from parley.stores.postgres.rows import SummaryColumns
from parley.stores.postgres.writes import active_at, insertions
from parley.wire.ids import START, ConversationId, Seq

__all__ = ["PostgresDraft", "create", "removable_blobs", "removable_bytes", "remove_some", "reserve"]

TOKEN_BYTES: Final = 16

_COLUMNS: Final = (
    "number, id, last, read_seq, batch, archived, details, title, directory, state, updated_at, ended_seq,"
    " ended_at, has_failed"
)
_UPDATED_AT: Final = active_at("$9::double precision", "$10", "1")
_NEW: Final = f"""
    INSERT INTO conversations ({_COLUMNS})
    SELECT {{number}}, $1, $2, $2, $3, $4, $5, $6, $7, $8, {_UPDATED_AT}, $11, $12, $13
"""
_FIRST: Final = 14
"""The number of the first SQL parameter after the 13 parameters for the columns of a new conversation."""


def _new_values(
    conversation_id: ConversationId, last: int, token: bytes, summary: Summary, *, archived: bool
) -> tuple[Any, ...]:
    return conversation_id.encode(), last, token, archived, *SummaryColumns.of(summary)


async def create(
    database: Database,
    conversation_id: ConversationId,
    entries: Sequence[Entry],
    summary: Summary,
    *,
    archived: bool,
) -> int | None:
    """Create a conversation, and return its number.

    If an earlier attempt of this call created the conversation before its connection was lost, return None, because
    the number is not known.

    Raises:
        StoreFailed: a conversation with this id exists.
    """
    batch, token = Batch(entries), os.urandom(TOKEN_BYTES)
    await pack((batch,))
    values = _new_values(conversation_id, batch.rows, token, summary, archived=archived)

    async def work(db: Connection, may_be_done: bool) -> int | None:
        async with db.transaction():
            number: int | None = await db.fetchval(_CREATE, *values)
            if number is not None:
                await _insert(db, number, batch)
                return number
        written = await db.fetchval("SELECT batch FROM conversations WHERE id = $1", conversation_id.encode())
        if not may_be_done or written != token:
            raise StoreFailed(f"conversation {conversation_id} already exists")
        await replicated(db)
        return None

    return await database.run(work)


_CREATE: Final = f"{_NEW.format(number='new_conversation_number()')} ON CONFLICT (id) DO NOTHING RETURNING number"


@cache
def _insert_sql(shape: Shape) -> str:
    inserted = insertions("target", 2, shape)
    return f"WITH target AS (SELECT $1::bigint AS number), {inserted} SELECT number FROM target"


async def _insert(db: Connection, number: int, batch: Batch) -> None:
    """Insert the entries of `batch` into the conversation or draft `number`. Call this in a transaction."""
    if batch.rows:
        shape, arrays = arrays_of([(number, batch)])
        await db.fetch(_insert_sql(shape), number, *arrays)


async def reserve(database: Database, holder: int) -> int:
    """Begin a draft, and return the number that its conversation will have. `holder` is the lease holder number of
    this process, which writes the draft.
    """

    async def work(db: Connection, _: bool) -> int:
        number: int = await db.fetchval(
            "INSERT INTO removed SELECT new_conversation_number(), 0, $1 RETURNING conversation", holder
        )
        return number

    return await database.run(work)


class PostgresDraft:
    """An implementation of `Draft` in a PostgreSQL database."""

    def __init__(self, database: Database, number: int, remove_deleted: Callable[[], Awaitable[None]]) -> None:
        self._database, self._number, self._remove_deleted = database, number, remove_deleted
        self._last = START
        self._is_open = True

    async def add(self, entries: Sequence[Entry]) -> None:
        batch, before = Batch(entries), self._last
        await pack((batch,))
        last = Seq(before + batch.rows)

        async def work(db: Connection, may_be_done: bool) -> None:
            async with db.transaction():
                found = await db.fetchval(
                    "SELECT last FROM removed WHERE conversation = $1 FOR UPDATE", self._number
                )
                if may_be_done and found == last != before:
                    await replicated(db)
                    return
                if found != before or batch.first not in (None, before + 1):
                    raise StoreFailed("an earlier append was not written")
                await db.execute("UPDATE removed SET last = $2 WHERE conversation = $1", self._number, last)
                await _insert(db, self._number, batch)

        await self._database.run(work)
        self._last = last

    async def finish(
        self,
        conversation_id: ConversationId,
        summary: Summary,
        *,
        archived: bool = False,
        checkpoint: Checkpoint | None = None,
        read: ReadMarks | None = None,
    ) -> None:
        """Turn the draft into a conversation, as `Draft.finish` does. `read` contains the read marks of the log
        from which the draft was copied; None means that every principal counts as having read the log.
        """
        token = os.urandom(TOKEN_BYTES)
        values = _new_values(conversation_id, self._last, token, summary, archived=archived)

        async def work(db: Connection, may_be_done: bool) -> None:
            async with db.transaction():
                made = await db.fetchval(_FINISH, *values, self._number)
                if made is not None:
                    await db.execute("DELETE FROM removed WHERE conversation = $1", self._number)
                    if read is not None:
                        await _mark_read(db, made, read)
                    if checkpoint is not None:
                        await db.execute(
                            "INSERT INTO checkpoints VALUES ($1, $2, $3)", made, checkpoint.seq, checkpoint.data
                        )
                    return
            written = await db.fetchval("SELECT batch FROM conversations WHERE id = $1", conversation_id.encode())
            if may_be_done and written == token:
                await replicated(db)
                return
            if written is not None:
                raise StoreFailed(f"conversation {conversation_id} already exists")
            raise StoreFailed("an earlier append was not written")

        await self._database.run(work)
        self._is_open = False

    async def drop(self) -> None:
        if not self._is_open:
            return
        self._is_open = False

        async def work(db: Connection, _: bool) -> None:
            await db.execute("UPDATE removed SET holder = NULL WHERE conversation = $1", self._number)

        await self._database.run(work)
        await self._remove_deleted()


async def _mark_read(db: Connection, number: int, read: ReadMarks) -> None:
    await db.execute("UPDATE conversations SET read_seq = $2 WHERE number = $1", number, read.by_all)
    await db.execute(
        "INSERT INTO read_marks"
        " SELECT $1, n.reader, n.seq FROM unnest($2::bytea[], $3::bigint[]) AS n(reader, seq)",
        number,
        [reader.encode() for reader, _ in read.by_reader],
        [seq for _, seq in read.by_reader],
    )


_FINISH: Final = (
    f"{_NEW.format(number='conversation')} FROM removed WHERE conversation = ${_FIRST} AND removed.last = $2"
    " ON CONFLICT (id) DO NOTHING RETURNING number"
)


async def remove_some(db: Connection, _: bool) -> Freed | None:
    """Remove the last page of entries of one deleted conversation or abandoned draft. Return the number and total
    size of the blobs that were removed.

    Return None if there are no entries to remove. The second argument (see `database.Work`) is ignored, because a
    repeated call is harmless.
    """
    freed = Freed(blobs=0, bytes=0)
    async with db.transaction():
        found = await db.fetchrow(f"SELECT r.conversation, r.last {_REMOVABLE} LIMIT 1 FOR UPDATE OF r SKIP LOCKED")
        if found is None:
            return None
        number, last = found
        rest = last - PAGE
        for table in ("entries", "cuts"):
            await db.execute(f"DELETE FROM {table} WHERE conversation = $1 AND seq > $2", number, rest)
        if rest > 0:
            await db.execute("UPDATE removed SET last = $2 WHERE conversation = $1", number, rest)
        else:
            freed = _freed(await db.fetchrow(_REMOVE_BLOBS, number))
            for table in ("checkpoints", "read_marks", "removed"):
                await db.execute(f"DELETE FROM {table} WHERE conversation = $1", number)
    return freed


async def removable_blobs(db: Connection) -> Freed:
    """Return the number and total size of the blobs that `remove_some` can remove: the blobs of deleted
    conversations and abandoned drafts.
    """
    return _freed(
        await db.fetchrow(f"{_BLOBS} FROM blobs WHERE conversation IN (SELECT r.conversation {_REMOVABLE})")
    )


async def removable_bytes(db: Connection) -> int:
    """Return the total size of the bodies of entries that `remove_some` can remove, in bytes."""
    size: int = await db.fetchval(
        "SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM entries"
        f" WHERE conversation IN (SELECT r.conversation {_REMOVABLE})"
    )
    return size


def _freed(row: Sequence[Any] | None) -> Freed:
    assert row is not None
    return Freed(blobs=row[0], bytes=row[1])


_REMOVABLE: Final = f"""
    FROM removed r LEFT JOIN holders h ON h.number = r.holder
    WHERE r.holder IS NULL OR h.number IS NULL OR NOT {MAY_RETURN}
"""
_BLOBS: Final = "SELECT count(*), coalesce(sum(octet_length(data)), 0)::bigint"
_REMOVE_BLOBS: Final = (
    f"WITH deleted AS (DELETE FROM blobs WHERE conversation = $1 RETURNING data) {_BLOBS} FROM deleted"
)
