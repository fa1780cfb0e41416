"""Monthly partitions of a PostgreSQL database: creation, retention, interruptions, and databases without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any, Final, TypeVar

import pytest

from kit.builders.entries import FIRST, OTHER, answers, asked, everything_in, said, summary
from kit.servers.postgres import NEEDS_POSTGRES, Databases, with_connection
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.files.gc import DAY_SECONDS, find_unneeded, remove_unneeded
from parley.conversation.log import Entry
from parley.errors import LeaseLost, StoreFailed
from parley.ports.store import Query, SearchQuery
from parley.stores.postgres import driver, months, schema
from parley.stores.postgres.driver import connect
from parley.stores.postgres.months import PARTITIONED
from parley.stores.postgres.store import PostgresStore
from parley.wire.ids import ConversationId, Seq

pytestmark = NEEDS_POSTGRES

T = TypeVar("T")

MAY: Final = 1990 * 12 + 4
NOW: Final = 100.0 * DAY_SECONDS
THIRD: Final = ConversationId("33333333-3333-4333-8333-333333333333")


class Clock:
    """The month of a database, which a test chooses."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async def in_schema(db: Any) -> T:
            await db.execute("SET search_path = parley, public")
            return await work(db)

        return await with_connection(self.url, in_schema)

    async def begin(self, month: int) -> None:
        """Begin a month. The existing partitions count as prepared long ago."""
        await self.run(
            lambda db: db.execute(
                "CREATE OR REPLACE FUNCTION parley.this_month() RETURNS integer LANGUAGE sql STABLE"
                f" AS 'SELECT {month}'; UPDATE months SET prepared_at = 'epoch'"
            )
        )

    async def partitions(self) -> set[str]:
        """Return the names of all tables that contain the entries of a month."""
        rows = await self.run(
            lambda db: db.fetch("SELECT relname FROM pg_class WHERE relname ~ '^entries_\\d+_\\d+$'")
        )
        return {row[0] for row in rows}

    async def rows(self, table: str) -> int:
        found: int = await self.run(lambda db: db.fetchval(f"SELECT count(*) FROM {table}"))
        return found


@pytest.fixture
async def clock(databases: Databases) -> Clock:
    """Return the clock of a database whose first month is May 1990."""
    clock = Clock(databases.new_url())
    db = await connect(clock.url, seconds=30)
    await schema.migrate(db)
    await clock.begin(MAY)
    await db.execute("DELETE FROM months WHERE month > 0")  # the tables of the real months stay unused
    await months.prepare_months(db)
    await db.close()
    return clock


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(clock.url)
    yield store
    await store.close()


def picture(seq: int) -> Entry:
    """Return a message with a text that is stored as a blob."""
    return asked(seq, "data:image/png;base64," + Random(seq).randbytes(20_000).hex())


async def gc(store: PostgresStore) -> int:
    """Remove archived conversations. Return the size of the blobs that were removed."""
    removed = await remove_unneeded(store, await find_unneeded(store, keep_days=30, now=NOW))
    return removed.blobs.bytes


async def prepared(clock: Clock, month: str) -> None:
    """Wait until a month has partitions, which are created in the background."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while f"entries_{month}" not in await clock.partitions():  # noqa: ASYNC110 - another process creates them
            await asyncio.sleep(0.01)


async def test_a_conversation_continues_in_later_months(clock: Clock, store: PostgresStore) -> None:
    await store.create(FIRST, [picture(1), said(2, "in May")], summary(updated_at=5.0))
    await clock.begin(MAY + 1)
    await store.create(OTHER, [said(1, "in June")], summary(updated_at=6.0))
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, [picture(3), said(4, "June in a conversation of May")], summary(updated_at=7.0))
    found = await store.search(SearchQuery(text="june"))
    listed = await store.find(Query())

    assert await everything_in(store) == [
        picture(1),
        said(2, "in May"),
        picture(3),
        said(4, "June in a conversation of May"),
    ]
    assert await clock.rows("entries_1990_05") == 4
    assert await clock.rows("entries_1990_06") == 1
    assert [(hit.conversation_id, hit.seq) for hit in found.hits] == [(FIRST, 4), (OTHER, 1)]
    assert [one.conversation_id for one in listed.items] == [FIRST, OTHER]


async def test_a_position_cannot_be_used_twice_in_another_month(clock: Clock, store: PostgresStore) -> None:
    await store.create(FIRST, answers(1, 2), summary())
    first = await store.acquire(FIRST, address="")
    await clock.begin(MAY + 2)
    other = PostgresStore(clock.url)
    try:
        # The second process takes the lease, so the epoch of the first process is no longer valid.
        await clock.run(lambda db: db.execute("UPDATE holders SET expires_at = 'epoch'"))
        second = await other.acquire(FIRST, address="")
        await other.append(second, [said(3, "second")], summary())
        with pytest.raises(LeaseLost):
            await store.append(first, [said(3, "first")], summary())
    finally:
        await other.close()

    assert await everything_in(store) == [*answers(1, 2), said(3, "second")]


async def test_the_partitions_of_a_month_are_dropped_with_its_last_conversation(
    clock: Clock, store: PostgresStore
) -> None:
    for name in (FIRST, OTHER):
        await store.create(name, [picture(1), said(2, "in May")], summary(updated_at=1.0), archived=True)
    await clock.begin(MAY + 2)
    await store.create(THIRD, [picture(1)], summary(updated_at=2.0))
    await prepared(clock, "1990_09")
    await store.archive(OTHER, archived=False)
    some = await gc(store)
    before = await clock.partitions()
    left = await clock.rows("entries_1990_05")
    await store.archive(OTHER, archived=True)
    rest = await gc(store)
    tables = await clock.run(
        lambda db: db.fetch("SELECT relname FROM pg_class WHERE relname LIKE '%\\_1990\\_05%'")
    )

    assert (some > 10_000, rest > 10_000) == (True, True)
    assert "entries_1990_05" in before
    assert left == 2  # one conversation of the month was kept
    assert tables == []
    assert "entries_1990_06" in await clock.partitions()  # a conversation could still be being created there
    assert await clock.rows("removed") == 0
    assert await everything_in(store, THIRD) == [picture(1)]
    assert (await store.search(SearchQuery(text="may"))).hits == ()


async def test_a_draft_keeps_its_month(clock: Clock, store: PostgresStore) -> None:
    draft = await store.draft()
    await draft.add([said(1, "in May")])
    await clock.begin(MAY + 4)
    await store.tidy()
    await draft.add([picture(2)])
    await draft.finish(FIRST, summary())

    assert await everything_in(store) == [said(1, "in May"), picture(2)]
    assert await clock.rows("entries_1990_05") == 2


async def test_months_without_partitions_are_replaced_by_the_latest_one(clock: Clock, store: PostgresStore) -> None:
    await clock.begin(MAY + 30)
    await store.create(FIRST, answers(1, 2), summary())
    await prepared(clock, "1993_01")
    await store.create(OTHER, answers(1, 3), summary())

    assert await clock.rows("entries_1990_07") == 2  # the latest month that existed
    assert await clock.rows("entries_1992_11") == 3
    assert await everything_in(store, OTHER) == answers(1, 3)


async def test_months_that_could_not_be_prepared_are_prepared_later(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(driver.SETTINGS, "lock_timeout", "200ms")
    store = PostgresStore(clock.url)
    await clock.begin(MAY + 1)

    async def migrate(db: Any) -> None:
        await db.execute("SELECT pg_advisory_lock($1)", months.MIGRATION_LOCK)
        await store.create(FIRST, answers(1, 2), summary())
        with pytest.raises(StoreFailed):  # waits for the partitions too, and fails for the same reason
            await store.tidy()

    await clock.run(migrate)
    before = await clock.partitions()
    await store.create(OTHER, answers(1, 2), summary())
    await prepared(clock, "1990_08")
    await store.close()

    assert "entries_1990_08" not in before


async def test_a_month_is_kept_while_conversations_may_be_created_in_it(clock: Clock, store: PostgresStore) -> None:
    await clock.begin(MAY + 30)
    await store.create(FIRST, answers(1, 2), summary())
    await prepared(clock, "1993_01")
    await store.delete(await store.acquire(FIRST, address=""))
    await store.tidy()
    before = await clock.partitions()
    await clock.begin(MAY + 30)
    await store.tidy()

    assert "entries_1990_07" in before  # another process could have begun to create a conversation there
    assert "entries_1990_07" not in await clock.partitions()


INTERRUPTIONS: Final = {
    "while detaching": (
        "UPDATE pg_catalog.pg_inherits SET inhdetachpending = true WHERE inhrelid = 'entries_1990_05'::regclass",
    ),
    "after one was detached": ("ALTER TABLE entries DETACH PARTITION entries_1990_05 CONCURRENTLY",),
    "after all were detached": tuple(
        f"ALTER TABLE {table} DETACH PARTITION {table}_1990_05 CONCURRENTLY" for table in PARTITIONED
    ),
}


@pytest.mark.parametrize("point", INTERRUPTIONS)
async def test_an_interrupted_removal_of_a_month_is_continued(
    clock: Clock, store: PostgresStore, point: str
) -> None:
    await store.create(FIRST, [picture(1)], summary(updated_at=1.0), archived=True)
    await clock.begin(MAY + 2)
    await store.create(OTHER, answers(1, 2), summary())
    lease = await store.acquire(FIRST, address="")
    await store.delete(lease, leave_entries=True)
    for statement in INTERRUPTIONS[point]:
        await clock.run(lambda db, one=statement: db.execute(one))  # type: ignore[misc]  # the default binds the loop variable
    await store.tidy()

    assert "entries_1990_05" not in await clock.partitions()
    assert await clock.rows("removed") == 0
    assert await clock.rows("months") > 1
    assert await everything_in(store, OTHER) == answers(1, 2)


async def test_months_are_dropped_while_other_processes_write_and_read(clock: Clock, store: PostgresStore) -> None:
    other = PostgresStore(clock.url)
    for number in range(10):
        await store.create(ConversationId(f"{number}"), [picture(1)], summary(updated_at=1.0), archived=True)
    await clock.begin(MAY + 2)
    await other.create(FIRST, [], summary())
    lease = await other.acquire(FIRST, address="")
    is_done = False

    async def write() -> int:
        last = 0
        while not is_done or last < 20:
            last += 1
            await other.append(lease, [said(last, "text")], summary())
        return last

    async def read() -> None:
        while not is_done:
            found = await other.read(FIRST, after=Seq(0))
            assert found == [said(seq, "text") for seq in range(1, len(found) + 1)]
            await other.search(SearchQuery(text="text"))

    async def drop() -> None:
        nonlocal is_done
        try:
            await gc(store)
        finally:
            is_done = True

    written, *_ = await asyncio.gather(write(), read(), drop())
    await other.close()

    assert "entries_1990_05" not in await clock.partitions()
    assert len(await everything_in(store)) == written


async def test_a_backup_that_reads_the_tables_delays_the_removal_of_a_month(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(driver.SETTINGS, "lock_timeout", "200ms")
    store = PostgresStore(clock.url)
    await store.create(FIRST, [picture(1)], summary(updated_at=1.0), archived=True)
    await clock.begin(MAY + 2)
    await store.create(OTHER, answers(1, 2), summary())

    async def back_up(db: Any) -> int:
        async with db.transaction():
            await db.execute("LOCK TABLE entries IN ACCESS SHARE MODE")
            return await gc(store)

    await clock.run(back_up)
    during = await store.find(Query(archived=True))
    await store.tidy()
    await store.close()

    assert during.items == ()
    assert "the partitions of old months were not dropped" in caplog.text
    assert "entries_1990_05" not in await clock.partitions()


async def test_processes_prepare_and_drop_the_same_months_at_once(clock: Clock, store: PostgresStore) -> None:
    stores = [PostgresStore(clock.url) for _ in range(4)]
    await store.create(FIRST, [picture(1)], summary(updated_at=1.0), archived=True)
    await clock.begin(MAY + 20)
    await asyncio.gather(
        *(one.create(ConversationId(f"{number}"), answers(1, 2), summary()) for number, one in enumerate(stores))
    )
    await asyncio.gather(*(one.tidy() for one in stores))
    await gc(store)
    for one in stores:
        await one.close()

    assert await clock.partitions() >= {"entries_1992_01", "entries_1992_02", "entries_1992_03"}
    assert "entries_1990_05" not in await clock.partitions()
    assert [len(await everything_in(store, ConversationId(f"{number}"))) for number in range(4)] == [2] * 4


async def test_a_database_without_partitions_is_migrated(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = databases.new_url()
    clock = Clock(url)
    partitioned = schema.MIGRATIONS[3:]
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
    db = await connect(url, seconds=30)
    await schema.migrate(db)
    insert_old = """
        WITH made AS (
            INSERT INTO conversations (number, id, last, batch, archived, state, updated_at, details, title,
                directory, read_seq, ended_seq, has_failed)
            SELECT nextval('conversation_numbers'), $1, 1, 'b', false, 'idle', 1.0, $3, 'a title', 'd', 0, 0, false
            RETURNING number
        )
        INSERT INTO entries SELECT number, 1, 1.0, 'agent_message', true, false, length($2::bytea), NULL,
            nextval('arrivals'), 'answer 1', $2::bytea FROM made
    """
    details = b'["A title","/work","gpt-5"]'
    await db.execute(insert_old, FIRST.encode(), answers(1, 1)[0].body, details)
    schema.MIGRATIONS.extend(partitioned)
    await schema.migrate(db)
    await db.execute(insert_old, OTHER.encode(), answers(1, 1)[0].body, details)  # a process of the older version
    await db.close()
    store = PostgresStore(url)
    try:
        lease = await store.acquire(FIRST, address="")
        await store.append(lease, answers(2, 3), summary())
        await store.create(THIRD, answers(1, 1), summary())
        await store.tidy()

        assert await everything_in(store, FIRST) == answers(1, 3)
        assert await everything_in(store, OTHER) == answers(1, 1)
        assert await everything_in(store, THIRD) == answers(1, 1)
        assert {hit.conversation_id for hit in (await store.search(SearchQuery(text="answer"))).hits} == {
            FIRST,
            OTHER,
            THIRD,
        }
        assert await clock.rows("entries_0") == 4
        assert await clock.rows("entries") == 5
    finally:
        await store.close()
