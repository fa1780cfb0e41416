"""The writer thread: a failed write changes nothing and affects no other write."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from sqlite3 import Connection

import pytest

from kit.builders.entries import answers, said, summary
from kit.system.commands import TIMEOUT_SECONDS
from parley.errors import LeaseLost, StoreFailed
from parley.ports.store import Lease
from parley.stores.sqlite.database import WAL_BYTES
from parley.stores.sqlite.disk_space import CHECKPOINT_BYTES
from parley.stores.sqlite.store import SqliteStore
from parley.stores.sqlite.writer import MEASURE_BYTES, Writer
from parley.wire.ids import ConversationId


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    writer = Writer(lambda: str(tmp_path))
    yield writer
    await writer.close()


def first(db: Connection) -> None:
    db.execute("INSERT INTO removed VALUES (1, 0)")


def last(db: Connection) -> None:
    db.execute("INSERT INTO removed VALUES (9, 0)")


def noted(db: Connection) -> list[int]:
    return [row for (row,) in db.execute("SELECT row FROM removed ORDER BY row")]


def note_and_refuse(db: Connection) -> None:
    db.execute("INSERT INTO removed VALUES (2, 0)")
    raise LeaseLost


def note_and_break(db: Connection) -> None:
    db.execute("INSERT INTO removed VALUES (3, 0)")
    raise ZeroDivisionError


def nonsense(db: Connection) -> None:
    db.execute("NONSENSE")


async def test_a_job_that_fails_after_a_change_is_rolled_back_alone(writer: Writer) -> None:
    works = (first, note_and_refuse, note_and_break, nonsense, last)
    done = await asyncio.gather(*map(writer.submit, works), return_exceptions=True)

    assert [type(one) for one in done] == [type(None), LeaseLost, ZeroDivisionError, StoreFailed, type(None)]
    assert await writer.submit(noted) == [1, 9]


async def test_the_log_of_the_database_stays_small_while_many_conversations_grow(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    many, rounds = 300, 50  # so many that each conversation ends on its own page

    async def begin(number: int) -> Lease:
        name = ConversationId(f"{number}")
        await store.create(name, answers(1, many), summary())
        return await store.acquire(name, address="")

    leases = await asyncio.gather(*map(begin, range(100)))
    for seq in range(many + 1, many + rounds):
        await asyncio.gather(*(store.append(lease, [said(seq, "more")], summary()) for lease in leases))
    size = (tmp_path / "parley.db-wal").stat().st_size
    await store.close()

    assert size < 2 * CHECKPOINT_BYTES


async def test_the_log_of_the_database_stays_small_while_many_stores_write_little(tmp_path: Path) -> None:
    stores = [SqliteStore(str(tmp_path)) for _ in range(8)]
    sizes = []

    async def begin(number: int, store: SqliteStore) -> Lease:
        name = ConversationId(f"{number}")
        await store.create(name, answers(1, 2), summary())
        return await store.acquire(name, address="")

    leases = [await begin(number, store) for number, store in enumerate(stores)]
    for seq in range(3, 63):
        for store, lease in zip(stores, leases, strict=True):
            # No run of letters is long enough to be stored as a blob.
            await store.append(lease, [said(seq, os.urandom(50_000).hex(" "))], summary())
        sizes.append((tmp_path / "parley.db-wal").stat().st_size)
    for store in stores:
        await store.close()

    assert max(sizes) < WAL_BYTES + (len(stores) + 1) * MEASURE_BYTES


async def test_the_log_of_the_database_shrinks_after_a_long_read(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    log = tmp_path / "parley.db-wal"
    await store.create(ConversationId("1"), answers(1, 2), summary())
    lease = await store.acquire(ConversationId("1"), address="")
    reader = sqlite3.connect(tmp_path / "parley.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM conversations").fetchone()
    seqs = itertools.count(3)

    async def append() -> int:
        # No run of letters is long enough to be stored as a blob.
        await store.append(lease, [said(next(seqs), os.urandom(200_000).hex(" "))], summary())
        return log.stat().st_size

    while await append() < 2 * WAL_BYTES:
        pass
    reader.execute("COMMIT")
    sizes = [await append() for _ in range(2 * MEASURE_BYTES // 200_000)]
    reader.close()
    await store.close()

    assert sizes[-1] <= WAL_BYTES


async def test_a_closed_writer_takes_nothing(writer: Writer) -> None:
    await writer.close()

    with pytest.raises(StoreFailed):
        await writer.submit(noted)


async def test_a_write_in_progress_completes_although_closing_was_cancelled(writer: Writer, tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def first_and_slowly(db: Connection) -> None:
        begun.set()
        goes_on.wait(TIMEOUT_SECONDS)
        first(db)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        slow = writer.submit(first_and_slowly)
        await asyncio.to_thread(begun.wait)
        after = writer.submit(last)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        goes_on.set()
        done = await asyncio.gather(slow, after, return_exceptions=True)
        await writer.close()
    again = Writer(lambda: str(tmp_path))
    found = await again.submit(noted)
    await again.close()

    assert ([type(one) for one in done], found) == ([type(None), StoreFailed], [1])


async def test_where_no_thread_can_be_started_the_call_fails_and_the_next_one_tries_again(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreFailed, match=r"no thread could be started: .*RLIMIT_NPROC"):
            await writer.submit(first)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await writer.submit(noted) == []


async def test_where_sqlite_cannot_be_loaded_the_call_fails_and_the_next_one_tries_again(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "parley.stores.sqlite.database", None)
        with pytest.raises(ImportError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await writer.submit(first)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await writer.submit(noted) == []
