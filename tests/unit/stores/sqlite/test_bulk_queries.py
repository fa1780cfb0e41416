"""Concurrent writes to many conversations: each has the effect of a single write, with few statements."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import pytest

from kit.builders.entries import everything_in, said, summary
from kit.system.commands import TIMEOUT_SECONDS, resident_bytes
from parley.errors import LeaseLost, ParleyError, StoreFailed, UnknownConversation
from parley.ports.store import Lease
from parley.stores.sqlite.batch import AT_ONCE
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START, ConversationId

T = TypeVar("T")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path))
    yield store
    await store.close()


async def begun(store: SqliteStore, number: int) -> list[Lease]:
    """Create this many conversations and acquire their leases."""
    names = [ConversationId(f"{one:04}") for one in range(number)]
    await asyncio.gather(*(store.create(name, [], summary()) for name in names))
    return await asyncio.gather(*(store.acquire(name, address="here") for name in names))


def traced(store: SqliteStore) -> list[str]:
    """Record all statements from now on."""
    statements: list[str] = []
    opened = store._writer.opened
    assert opened is not None
    opened.writer.set_trace_callback(statements.append)
    return statements


async def all_at_once(store: SqliteStore, calls: Iterable[Awaitable[T]]) -> list[T]:
    """Submit these calls while the writer is busy, so that it executes them together. Return their results."""
    begun, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def something_else(_: Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait(TIMEOUT_SECONDS)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        before = store._writer.submit(something_else)
        await begun.wait()
        submitted = [asyncio.ensure_future(call) for call in calls]
        while len(store._writer._jobs) < len(submitted):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        goes_on.set()
        await before
        return await asyncio.gather(*submitted)


async def test_each_of_many_gets_what_it_wrote(store: SqliteStore) -> None:
    leases = await begun(store, 3 * AT_ONCE + 1)
    for first in (1, 3):
        entries = (said(first, "a"), said(first + 1, "b"))
        await asyncio.gather(*(store.append(lease, entries, summary(title=f"{lease.epoch}")) for lease in leases))
    logs = [await store.read(lease.conversation_id, after=START) for lease in leases]
    heads = [await store.head(lease.conversation_id) for lease in leases]

    assert [[entry.seq for entry in log] for log in logs] == [[1, 2, 3, 4]] * len(leases)
    assert [(head.last, head.epoch, head.summary.title) for head in heads] == [
        (4, lease.epoch, f"{lease.epoch}") for lease in leases
    ]
    assert len({lease.epoch for lease in leases}) == len(leases)


async def test_many_need_no_more_statements_than_one(store: SqliteStore) -> None:
    leases = await begun(store, AT_ONCE)
    statements = traced(store)
    await all_at_once(store, (store.append(lease, [said(1, "text")], summary()) for lease in leases[:1]))
    alone = len(statements)
    statements.clear()
    await all_at_once(store, (store.append(lease, [said(1, "text")], summary()) for lease in leases[1:]))

    assert len(statements) == alone


async def test_many_leases_need_no_more_statements_than_one(store: SqliteStore) -> None:
    leases = await begun(store, AT_ONCE)
    await asyncio.gather(*map(store.release, leases))
    statements = traced(store)
    await all_at_once(store, (store.acquire(lease.conversation_id, address="") for lease in leases[:1]))
    alone = len(statements)
    statements.clear()
    await all_at_once(store, (store.acquire(lease.conversation_id, address="") for lease in leases[1:]))

    assert len(statements) == alone


async def test_a_refused_append_affects_no_other(store: SqliteStore) -> None:
    well, fenced, gap, again, gone = await begun(store, 5)
    opened = store._writer.opened
    assert opened is not None
    with opened.lock:
        opened.writer.execute(
            "UPDATE conversations SET epoch = epoch + 100 WHERE id = ?", (fenced.conversation_id,)
        )
        opened.writer.execute("DELETE FROM conversations WHERE id = ?", (gone.conversation_id,))
    with_entries = [
        store.append(well, [said(1, "text")], summary()),
        store.append(fenced, [said(1, "text")], summary()),
        store.append(gap, [said(2, "text")], summary()),
        store.append(again, [said(1, "text"), said(2, "text")], summary()),
        store.append(again, [said(2, "text")], summary()),
        store.append(again, [said(3, "text")], summary()),
        store.append(gone, [], summary()),
    ]
    done = await asyncio.gather(*with_entries, return_exceptions=True)
    kept = [await everything_in(store, lease.conversation_id) for lease in (well, fenced, gap, again)]

    assert [type(one) for one in done] == [
        type(None),
        LeaseLost,
        StoreFailed,
        type(None),
        LeaseLost,
        type(None),
        LeaseLost,
    ]
    assert [[entry.seq for entry in log] for log in kept] == [[1], [], [], [1, 2, 3]]


@pytest.mark.parametrize("many", [1, 2, AT_ONCE + 1])
async def test_appends_to_logs_that_another_process_has_taken_are_refused(store: SqliteStore, many: int) -> None:
    *taken, kept = await begun(store, many + 1)
    opened = store._writer.opened
    assert opened is not None
    with opened.lock:
        opened.writer.execute("UPDATE conversations SET epoch = epoch + 100 WHERE id <> ?", (kept.conversation_id,))
    together = [store.append(lease, [said(1, "text")], summary()) for lease in (*taken, kept)]
    done = await asyncio.gather(*together, return_exceptions=True)

    assert [type(one) for one in done] == [LeaseLost] * many + [type(None)]
    assert [(await store.head(lease.conversation_id)).last for lease in (*taken, kept)] == [0] * many + [1]


async def test_a_lost_lease_is_found_by_a_single_append_and_reported(store: SqliteStore) -> None:
    lost = asyncio.Event()
    name = ConversationId("0000")
    await store.create(name, [], summary())
    lease = await store.acquire(name, address="here", on_lost=lost.set)
    opened = store._writer.opened
    assert opened is not None
    with opened.lock:
        opened.writer.execute("UPDATE conversations SET epoch = epoch + 100")
    with pytest.raises(LeaseLost):
        await store.append(lease, [said(1, "text")], summary())

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await lost.wait()


async def test_a_missing_conversation_does_not_fail_other_leases(store: SqliteStore) -> None:
    leases = await begun(store, 3)
    await asyncio.gather(*map(store.release, leases))
    opened = store._writer.opened
    assert opened is not None
    with opened.lock:
        opened.writer.execute("DELETE FROM conversations WHERE id = ?", (leases[1].conversation_id,))
    taken: list[Lease | BaseException | ParleyError] = await asyncio.gather(
        *(store.acquire(lease.conversation_id, address="") for lease in leases), return_exceptions=True
    )

    assert [type(one) for one in taken] == [Lease, UnknownConversation, Lease]


async def test_written_entries_are_not_kept_in_memory(store: SqliteStore) -> None:
    leases = await begun(store, AT_ONCE // 2)
    text, written = "words " * 50_000, 0
    before = resident_bytes()
    for many in range(1, len(leases) + 1):
        entries = [said(many - place, text) for place in range(many)]
        await asyncio.gather(
            *(store.append(lease, [entry], summary()) for lease, entry in zip(leases, entries, strict=False))
        )
        written += many * len(text)

    assert resident_bytes() - before < written // 2
