"""Stores that share a PostgreSQL database: leases, migrations, notifications, and drafts of ended processes.

Lists that are filtered by a text test `parley.stores.postgres.trigrams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from kit.builders.entries import FIRST, OTHER, answers, everything_in, said, summary
from kit.servers.database_port import DatabasePort
from kit.servers.postgres import NEEDS_POSTGRES, PASSWORD, Databases, with_connection
from kit.system.commands import TIMEOUT_SECONDS
from parley.errors import BadHome, LeaseLost, OwnedElsewhere, StoreFailed
from parley.ports.store import Lease, Query, SearchQuery
from parley.stores.postgres.driver import connect
from parley.stores.postgres.schema import MIGRATIONS, migrate
from parley.stores.postgres.store import PostgresStore
from parley.wire.ids import ConversationId

pytestmark = NEEDS_POSTGRES


@pytest.fixture
async def stores(databases: Databases) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    both = PostgresStore(databases.url()), PostgresStore(databases.url())
    yield both
    for store in both:
        await store.close()


Both = tuple[PostgresStore, PostgresStore]


async def test_two_stores_race_for_a_lease_and_one_gets_it(stores: Both) -> None:
    await stores[0].create(FIRST, [], summary())
    epochs: list[int] = []
    for round_ in range(200):
        got = await asyncio.gather(*(store.acquire(FIRST, address="") for store in stores), return_exceptions=True)
        (lease,) = [one for one in got if isinstance(one, Lease)]
        assert sum(isinstance(one, OwnedElsewhere) for one in got) == 1
        winner = stores[got.index(lease)]
        epochs.append(lease.epoch)
        assert lease.last == round_
        await winner.append(lease, [said(round_ + 1, "x")], summary())
        await winner.release(lease)

    assert epochs == sorted(set(epochs))
    assert len(await everything_in(stores[1])) == 200


async def test_a_closed_store_leaves_its_leases(stores: Both) -> None:
    await stores[0].create(FIRST, [], summary(state="running"))
    await stores[0].acquire(FIRST, address="here")
    owner = (await stores[1].head(FIRST)).owner
    assert owner is not None
    assert owner.address == "here"
    await stores[0].close()

    assert (await stores[1].head(FIRST)).owner is None
    assert not (await stores[1].find(Query())).items[0].owned
    await stores[1].acquire(FIRST, address="")


async def test_a_lost_lease_is_found_by_check(stores: Both) -> None:
    lost: list[str] = []
    await stores[0].create(FIRST, [], summary())
    lease = await stores[0].acquire(FIRST, address="", on_lost=lambda: lost.append("lost"))
    await stores[0].check()
    assert lost == []
    parts = stores[0]._open
    async with asyncio.timeout(60):
        await with_connection(
            parts.database._url, lambda db: db.execute("UPDATE parley.conversations SET epoch = epoch + 100")
        )
    await stores[0].check()

    assert lost == ["lost"]
    with pytest.raises(LeaseLost):
        await stores[0].append(lease, [said(1, "late")], summary())


async def test_other_stores_are_told_which_conversations_have_changed(stores: Both) -> None:
    changed: list[ConversationId] = []
    own: list[ConversationId] = []
    stores[1].listen(changed.extend)
    stores[0].listen(own.extend)
    await stores[0].create(FIRST, [], summary())
    await stores[1].tokens()  # opens the store, which then listens

    async def connected() -> None:
        while (notifications := stores[1]._open.notifications)._connection is None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        del notifications

    await connected()
    lease = await stores[0].acquire(FIRST, address="")
    for seq in range(1, 1000):
        await stores[0].append(lease, [said(seq, "x")], summary())
        if changed:
            break
        await asyncio.sleep(0.01)

    assert set(changed) == {FIRST}
    assert own == []


async def create_and_delete(store: PostgresStore) -> None:
    await store.create(FIRST, [], summary())
    await store.delete(await store.acquire(FIRST, address=""))
    await asyncio.gather(*store._background)


async def number_of_entries(db: Any) -> int:
    found: int = await db.fetchval("SELECT count(*) FROM parley.entries")
    return found


async def test_the_draft_of_a_process_that_has_ended_is_removed(stores: Both, databases: Databases) -> None:
    draft = await stores[0].draft()
    await draft.add(answers(1, 5))
    await stores[1].create(OTHER, [], summary())

    await create_and_delete(stores[1])
    during = await with_connection(databases.url(), number_of_entries)
    await stores[0].close()
    await create_and_delete(stores[1])

    assert (during, await with_connection(databases.url(), number_of_entries)) == (5, 0)


async def test_the_draft_of_a_process_that_is_cut_off_for_a_moment_is_kept(databases: Databases) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), DatabasePort(databases.url()) as port:
        one, two = PostgresStore(port.url, lease_seconds=60), PostgresStore(databases.url())
        draft = await one.draft()
        await draft.add(answers(1, 5))
        port.refuses = True
        port.cut()
        await create_and_delete(two)
        port.refuses = False
        await draft.add(answers(6, 8))
        await draft.finish(OTHER, summary())
        await one.close()

        assert await everything_in(two, OTHER) == answers(1, 8)
        await two.close()


async def test_appends_that_wait_at_the_same_time_are_written_together(databases: Databases) -> None:
    store = PostgresStore(databases.url())
    ids = [ConversationId(f"00000000-0000-4000-8000-{number:012}") for number in range(20)]
    for one in ids:
        await store.create(one, [], summary())
    leases = [await store.acquire(one, address="") for one in ids]
    await asyncio.gather(*(store.append(lease, [said(1, "one")], summary()) for lease in leases))
    batches, first = await with_connection(
        databases.url(),
        lambda db: db.fetchrow("SELECT count(DISTINCT batch), count(*) FROM conversations WHERE last = 1"),
    )
    await store.close()

    assert first == len(ids)
    assert batches <= 2  # the first append may be written before the others arrive


async def test_one_append_that_the_database_refuses_spoils_no_other(stores: Both) -> None:
    store = stores[0]
    leases = []
    for one in (FIRST, OTHER):
        await store.create(one, [], summary())
        leases.append(await store.acquire(one, address=""))
    results = await asyncio.gather(
        store.append(leases[0], [said(1, "one")], summary("\ud800")),
        store.append(leases[1], [said(1, "of another")], summary()),
        return_exceptions=True,
    )

    assert isinstance(results[0], Exception)
    assert results[1] is None
    await store.append(leases[0], [said(1, "one")], summary())
    assert await everything_in(store) == [said(1, "one")]


async def test_several_processes_migrate_a_database_once(databases: Databases) -> None:
    connections = [await connect(url, seconds=60) for url in [databases.new_url()] * 5]
    await asyncio.gather(*map(migrate, connections))

    assert await connections[0].fetchval("SELECT version FROM parley.format") == len(MIGRATIONS)
    for one in connections:
        await one.close()


async def test_a_database_with_a_newer_format_is_refused(databases: Databases) -> None:
    url = databases.new_url()
    first = PostgresStore(url)
    await first.tokens()
    await with_connection(url, lambda db: db.execute("UPDATE parley.format SET version = 99, compatible = 99"))
    second = PostgresStore(url)
    with pytest.raises(BadHome, match=r"its format is 99, .* upgrade Parley"):
        await second.tokens()
    await first.close()
    await second.close()


@pytest.mark.parametrize(
    ("password", "database", "says"),
    [
        ("not-" + PASSWORD, None, "password authentication failed"),
        (PASSWORD, "missing", 'database "missing" does not exist'),
    ],
)
async def test_a_database_that_cannot_be_opened_is_named_without_the_password(
    databases: Databases, password: str, database: str | None, says: str
) -> None:
    parts = urlsplit(databases.url())
    netloc = f"{parts.username}:{password}@{parts.hostname}:{parts.port}"
    path = parts.path if database is None else f"/{database}"
    store = PostgresStore(urlunsplit(parts._replace(netloc=netloc, path=path)))
    with pytest.raises(BadHome) as refused:
        await store.tokens()

    assert str(refused.value).startswith(f"PostgreSQL at {parts.hostname}:{parts.port}{path}: ")
    assert says in str(refused.value)
    assert password not in str(refused.value)
    await store.close()


async def test_a_database_without_the_index_of_words_is_searched_by_scan(
    stores: Both, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.stores.postgres.search.SEARCH_ENTRIES", 10)
    entries = [said(1, "the needle"), *answers(2, 60)]
    await stores[0].create(FIRST, entries, summary())

    async def pages() -> list[int]:
        """Return the number of hits on each page."""
        found: list[int] = []
        before = None
        while True:
            page = await stores[0].search(SearchQuery(text="needle", before=before))
            found.append(len(page.hits))
            if page.next is None:
                return found
            before = page.next

    with_index = await pages()
    await with_connection(databases.url(), lambda db: db.execute("ALTER INDEX parley.entries_by_words RENAME TO x"))
    without = await pages()
    await with_connection(databases.url(), lambda db: db.execute("ALTER INDEX parley.x RENAME TO entries_by_words"))

    assert (sum(with_index), sum(without)) == (1, 1)
    assert len(with_index) == 2 < len(without) == 7


async def test_a_list_finds_rare_and_frequent_texts_with_and_without_the_index(
    stores: Both, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.stores.postgres.trigrams.MAX_CANDIDATES", 5)
    store = stores[0]
    names = [ConversationId(f"c{number}") for number in range(6)]
    for number, name in enumerate(names):
        await store.create(
            name, [said(1, f"message {number}")], summary(f"Title {number}", updated_at=1.0 + number)
        )
    lease = await store.acquire(names[0], address="")
    await store.append(lease, [said(seq, "the same needle") for seq in range(2, 12)], summary("New title"))
    await store.append(
        await store.acquire(names[1], address=""), [said(2, "a needle in the haystack")], summary("Title 1")
    )

    async def finds(text: str) -> set[str]:
        return {str(one.conversation_id) for one in (await store.find(Query(text=text))).items}

    expected = {
        "title 3": {"c3"},  # rare
        "title 0": set[str](),  # replaced
        "new title": {"c0"},
        "message": {str(name) for name in names},  # frequent
        "needle": {"c0", "c1"},  # frequent, but in few conversations
        "le 3": {"c3"},
        "3": {"c3"},  # too short for the index
    }
    with_index = {text: await finds(text) for text in expected}
    await with_connection(databases.url(), lambda db: db.execute("ALTER INDEX parley.entries_by_words RENAME TO x"))
    without = {text: await finds(text) for text in expected}
    await with_connection(databases.url(), lambda db: db.execute("ALTER INDEX parley.x RENAME TO entries_by_words"))
    await store.delete(await store.acquire(names[3], address=""))

    assert with_index == without == expected
    assert await finds("title 3") == set()


async def test_titles_are_copied_by_the_migration_and_kept_current_for_older_servers(
    databases: Databases,
) -> None:
    url = databases.new_url()
    later = MIGRATIONS[8:]
    del MIGRATIONS[8:]
    try:
        older = PostgresStore(url)
        await older.create(FIRST, [], summary("Before the migration"))
    finally:
        MIGRATIONS.extend(later)
    newer = PostgresStore(url)
    try:
        found_before = (await newer.find(Query(text="before the"))).items
        await older.create(OTHER, [], summary("By the older server"))  # its statements do not name the new table
        found_after = (await newer.find(Query(text="older server"))).items
    finally:
        await older.close()
        await newer.close()

    assert [one.conversation_id for one in found_before] == [FIRST]
    assert [one.conversation_id for one in found_after] == [OTHER]


async def test_a_closed_store_refuses_calls(stores: Both) -> None:
    await stores[0].close()
    with pytest.raises(StoreFailed, match="the store is closed"):
        await stores[0].tokens()
