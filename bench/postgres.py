"""Measures durable events in PostgreSQL: Parley's store, compared with the same rows written only by asyncpg."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.appending import BODY, PRODUCERS, SECONDS, Appended, append_events, names, summary, who
from bench.report import NotAvailable, Row
from bench.servers import ON_DISK, Parley
from parley.stores.postgres.rows import searchable
from parley.stores.postgres.store import PostgresStore

__all__ = ["postgres"]

SHARE: Final = {1: None, 100: 0.6}
"""The minimum rate by the number of producers, as a share of the rate of asyncpg.

None means that there is no budget.
"""
ASYNCPG: Final = "bare asyncpg"
TESTS: Final = Path(__file__).parents[1] / "tests"


def postgres(*, repetitions: int) -> list[Row]:
    """Append events of about 200 bytes. The best run of each counts.

    Raises:
        NotAvailable: PostgreSQL is not installed.
    """
    sys.path.append(str(TESTS))
    from kit.servers.postgres import PostgresServer, no_postgres

    if (why := no_postgres()) is not None:
        raise NotAvailable(why)
    with tempfile.TemporaryDirectory(prefix="parley-bench-", dir=ON_DISK) as directory:
        os.chmod(directory, 0o755)  # the server runs as another user
        server = PostgresServer(Path(directory, "server"), fsync=True)
        server.create()
        server.start()
        try:
            return [
                row for producers in PRODUCERS for row in asyncio.run(_measured(server.url, producers, repetitions))
            ]
        finally:
            server.remove()


async def _measured(url: str, producers: int, repetitions: int) -> list[Row]:
    runs, bare = [], []
    for _ in range(repetitions):
        runs.append(await _run(url, producers))
        bare.append(await _bare(url, producers))
    run, most, share = max(runs), max(bare), SHARE[producers]
    return [
        Row(
            what=f"durable events in PostgreSQL, {who(producers)}",
            unit="/s",
            values={Parley.name: run.a_second, ASYNCPG: most},
            budget=None if share is None else f"≥ {share} × {ASYNCPG}",
            kept=None if share is None else run.a_second >= share * most,
            notes=(
                f"{run.a_second / most:.2f} × {ASYNCPG}, which writes the same rows in statements of {producers}",
                f"acknowledged after {run.p50 * 1000:.2f} ms at the median,"
                f" {run.p99 * 1000:.2f} ms at the 99th percentile; best of {repetitions}",
            ),
        )
    ]


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
