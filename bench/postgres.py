"""Measures durable events in PostgreSQL: Parley's store, compared with the same rows written only by asyncpg."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from bench.appending import BODY, PRODUCERS, SECONDS, Appended, append_events, names, rows_of, summary
from bench.database import postgres_server
from bench.report import Row
from parley.stores.postgres.rows import searchable
from parley.stores.postgres.store import PostgresStore

__all__ = ["postgres"]

SHARE: Final = {1: None, 100: 0.6}
"""The minimum rate by the number of producers, as a share of the rate of asyncpg.

None means that there is no budget.
"""
ASYNCPG: Final = "bare asyncpg"


def postgres(*, repetitions: int) -> list[Row]:
    """Append events of about 200 bytes. The best run of each counts.

    Raises:
        NotAvailable: PostgreSQL is not installed.
    """
    with postgres_server() as (server, _):
        return [
            row for producers in PRODUCERS for row in asyncio.run(_measured(server.url, producers, repetitions))
        ]


async def _measured(url: str, producers: int, repetitions: int) -> list[Row]:
    runs, bare = [], []
    for _ in range(repetitions):
        runs.append(await _run(url, producers))
        bare.append(await _bare(url, producers))
    what = "durable events in PostgreSQL"
    return rows_of(what, producers, runs, ASYNCPG, bare, share=SHARE[producers])


async def _run(url: str, producers: int) -> Appended:
    opened = PostgresStore(url)
    appended, leases = await append_events(opened, producers)
    for lease in leases:
        await opened.delete(lease)
    await opened.close()
    return appended


_APPEND: Final = """
    WITH changed AS (
        UPDATE conversations c SET last = c.last + 1, updated_at = $2
        FROM unnest($1::bigint[], $3::bigint[]) AS n(number, last)
        WHERE c.number = n.number AND c.epoch = 0 AND c.last = n.last RETURNING c.number, c.last
    )
    INSERT INTO entries (conversation, seq, at, type, is_event, is_cut, size, words, body, arrival)
    SELECT number, last, $2, 'agent_message', true, false, length(e.body), e.words, e.body, nextval('arrivals')
    FROM changed JOIN unnest($1::bigint[], $4::text[], $5::bytea[]) AS e(conversation, words, body)
        ON e.conversation = changed.number
"""


async def _bare(url: str, producers: int) -> float:
    """Return the number of events per second that asyncpg writes.

    Each statement contains one event of each producer.
    """
    opened = PostgresStore(url)
    for name in names(producers):
        await opened.create(name, [], summary(0.0))
    db: Any = await opened._open.database.connect()
    rows = await db.fetch("SELECT number FROM conversations ORDER BY number")
    numbers = [row[0] for row in rows]
    words = searchable(BODY)
    began = now = time.perf_counter()
    seq = 0
    while now < began + SECONDS:
        await db.execute(_APPEND, numbers, now, [seq] * producers, [words] * producers, [BODY] * producers)
        seq += 1
        now = time.perf_counter()
    await db.execute("DELETE FROM conversations; DELETE FROM entries")
    await db.close()
    await opened.close()
    return seq * producers / (now - began)
