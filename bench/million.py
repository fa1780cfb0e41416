"""Measures lists and searches in a PostgreSQL database with a million conversations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Final

from bench.database import postgres_server
from bench.report import Row
from bench.servers import Parley
from parley.ports.store import Query, SearchQuery
from parley.stores.postgres.rows import digest_of_path
from parley.stores.postgres.store import PostgresStore
from parley.wire.ids import ConversationId

__all__ = ["million"]

CONVERSATIONS: Final = 1_000_000
DIRECTORIES: Final = 1000
RUNS: Final = 15
PAGE: Final = 50

_CONVERSATIONS: Final = """
    INSERT INTO conversations (number, id, last, batch, archived, state, updated_at, details, title, directory,
        read_seq, ended_seq, ended_at, has_failed)
    SELECT $1::bigint + n, convert_to('c-' || lpad(n::text, 8, '0'), 'UTF8'), 1, 'b', n % 10 = 0, 'idle', n,
        convert_to('["Title of task ' || n || '","/work/project-' || n % $3 || '","gpt-5","done","Done."]', 'UTF8'),
        'title of task ' || n, ($4::bytea[])[n % $3 + 1], 1, 1, n, n % 50 = 0
    FROM generate_series(1, $2) AS one(n)
"""
_ENTRIES: Final = """
    INSERT INTO entries (conversation, seq, at, type, is_event, is_cut, size, words, body, arrival)
    SELECT $1::bigint + n, 1, n, 'agent_message', true, false, octet_length(body), words, body, n
    FROM generate_series(1, $2) AS one(n),
        LATERAL (SELECT 'the tests of module ' || md5(n::text) || ' pass after the change') AS text(words),
        LATERAL (SELECT convert_to('{"type":"agent_message","message":"' || words || '"}', 'UTF8')) AS json(body)
"""


def million() -> list[Row]:
    with postgres_server() as (server, _):
        return asyncio.run(_measured(server.url))


async def _measured(url: str) -> list[Row]:
    store = PostgresStore(url)
    await store.find(Query())  # creates the tables
    await _fill(store)
    middle = (CONVERSATIONS / 2, ConversationId("c"))
    measures: dict[str, Callable[[], Awaitable[object]]] = {
        "newest page of the list": lambda: store.find(Query(limit=PAGE)),
        "page in the middle of the list": lambda: store.find(Query(limit=PAGE, after=middle)),
        "newest page of one directory": lambda: store.find(Query(limit=PAGE, cwd="/work/project-7")),
        "archived conversations": lambda: store.find(Query(limit=PAGE, archived=True)),
        "list filtered by a rare text": lambda: store.find(Query(limit=PAGE, text="task 777777")),
        "list filtered by a frequent text": lambda: store.find(Query(limit=PAGE, text="of task")),
        "search for a rare text": lambda: _search_all(store, "c4ca4238a0b923820dcc509a6f75849b"),
        "search for a frequent text": lambda: store.search(SearchQuery(text="tests of module", limit=20)),
        "search for a missing text": lambda: _search_all(store, "no such text"),
    }
    rows = []
    for name, measure in measures.items():
        taken = []
        for _ in range(RUNS):
            began = time.perf_counter()
            await measure()
            taken.append(time.perf_counter() - began)
        rows.append(
            Row(
                what=f"{name}, {CONVERSATIONS:,} conversations",
                unit="ms",
                values={Parley.name: median(taken) * 1000},
                notes=(f"at most {max(taken) * 1000:,.1f} ms in {RUNS} runs",),
            )
        )
    await store.close()
    return rows


async def _search_all(store: PostgresStore, text: str) -> None:
    """Search until the beginning of the messages, as a client does that follows `next`."""
    page = await store.search(SearchQuery(text=text, limit=20))
    while page.next is not None:
        page = await store.search(SearchQuery(text=text, limit=20, before=page.next))


async def _fill(store: PostgresStore) -> None:
    db: Any = await store._open.database.connect()
    await db.execute("SET statement_timeout = 0; SET synchronous_commit = off; SET maintenance_work_mem = '256MB'")
    first = await db.fetchval("SELECT new_conversation_number()")
    directories = [digest_of_path(f"/work/project-{number}") for number in range(DIRECTORIES)]
    # Filling an index is faster than adding a million entries to it.
    index = await db.fetchval("SELECT indexdef FROM pg_indexes WHERE indexname = 'entries_by_words'")
    await db.execute("DROP INDEX IF EXISTS entries_by_words")
    await db.execute(_CONVERSATIONS, first, CONVERSATIONS, DIRECTORIES, directories, timeout=None)
    await db.execute(_ENTRIES, first, CONVERSATIONS, timeout=None)
    if index is not None:
        await db.execute(index.replace(" ON ONLY ", " ON "))
    await db.execute("VACUUM ANALYZE conversations")
    await db.execute("VACUUM ANALYZE entries")
    await db.close()
