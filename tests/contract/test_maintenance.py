"""Removal of data that is no longer needed (`parley.app.files.gc`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from kit.builders.entries import FIRST, OTHER, answers, asked, everything_in, said, summary
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from parley.app.files import gc
from parley.app.files.gc import DAY_SECONDS, find_unneeded, remove_unneeded
from parley.conversation.log import Entry
from parley.ports.store import PAGE, Freed, MaintainedStore, Query
from parley.stores.postgres.store import PostgresStore
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId

NOTHING = Freed(blobs=0, bytes=0)
NOW = 100 * DAY_SECONDS + 0.5
DAY = float(DAY_SECONDS)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=NEEDS_POSTGRES)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MaintainedStore]:
    store: MaintainedStore
    if request.param == "sqlite":
        store = SqliteStore(str(tmp_path))
    else:
        databases: Databases = request.getfixturevalue("databases")
        store = PostgresStore(databases.url())
    yield store
    await store.close()


def picture(seq: int) -> Entry:
    """Return a message with a text that the stores keep as a blob."""
    return asked(seq, "data:image/png;base64," + Random(seq).randbytes(20_000).hex())


async def left(store: MaintainedStore) -> list[ConversationId]:
    return sorted(one.conversation_id for one in (await store.find(Query(archived=None))).items)


async def test_only_archived_conversations_without_recent_activity_are_removed(
    store: MaintainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "LISTED_AT_ONCE", 2)
    old = [ConversationId(f"old-{number}") for number in range(5)]
    for name in old:
        await store.create(name, answers(1, 3), summary(updated_at=70 * DAY), archived=True)
    await store.create(FIRST, [], summary(updated_at=70 * DAY))
    await store.create(OTHER, [], summary(updated_at=70 * DAY + 0.5), archived=True)
    kept = await find_unneeded(store, keep_days=0, now=NOW)
    unneeded = await find_unneeded(store, keep_days=30, now=NOW)
    removed = await remove_unneeded(store, unneeded)

    assert (list(kept.conversations), kept.conversation_bytes) == ([], 0)
    assert sorted(one.conversation_id for one in unneeded.conversations) == old
    assert unneeded.conversation_bytes == 5 * sum(len(entry.body) for entry in answers(1, 3))
    assert removed == (5, NOTHING)
    assert await left(store) == sorted((FIRST, OTHER))


async def test_the_size_of_conversations_is_found_without_reading_them(
    store: MaintainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [*answers(1, 3), picture(4), picture(5)]
    await store.create(FIRST, entries, summary(updated_at=DAY), archived=True)
    await store.create(OTHER, [], summary(updated_at=DAY), archived=True)
    monkeypatch.setattr(type(store), "read", None)
    unneeded = await find_unneeded(store, keep_days=30, now=NOW)

    assert unneeded.conversation_bytes == sum(len(entry.body) for entry in entries)
    assert await store.log_bytes(ConversationId("unknown")) == 0


async def test_a_conversation_that_is_used_again_is_kept(store: MaintainedStore) -> None:
    names = [ConversationId(f"{number}") for number in range(4)]
    for name in names:
        await store.create(name, [], summary(updated_at=DAY), archived=True)
    unneeded = await find_unneeded(store, keep_days=30, now=NOW)
    await store.archive(names[0], archived=False)
    lease = await store.acquire(names[1], address="")
    await store.append(lease, [said(1, "again")], summary(updated_at=99 * DAY))
    await store.release(lease)
    await store.acquire(names[2], address="")
    removed = await remove_unneeded(store, unneeded)

    assert (len(unneeded.conversations), removed.conversations) == (4, 1)
    assert await left(store) == names[:3]
    assert await everything_in(store, names[1]) == [said(1, "again")]


async def test_the_images_and_the_entries_of_a_removed_conversation_are_removed(store: MaintainedStore) -> None:
    pages = [picture(seq) if seq == 1 else said(seq, "text") for seq in range(1, PAGE + 1)]
    await store.create(FIRST, pages, summary(updated_at=DAY), archived=True)
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, [picture(PAGE + 1)], summary(updated_at=DAY))
    await store.release(lease)
    await store.create(OTHER, [picture(1)], summary(updated_at=DAY))
    removed = await remove_unneeded(store, await find_unneeded(store, keep_days=30, now=NOW))
    after = await find_unneeded(store, keep_days=30, now=NOW)

    assert removed.conversations == 1
    assert removed.blobs.blobs >= 1
    assert removed.blobs.bytes > 10_000
    assert after == ([], 0, NOTHING, 0)
    assert await store.tidy() == NOTHING
    assert await everything_in(store, OTHER) == [picture(1)]


async def test_the_draft_of_a_running_process_is_kept(store: MaintainedStore) -> None:
    draft = await store.draft()
    await draft.add([picture(1)])
    before = await find_unneeded(store, keep_days=30, now=NOW)
    await store.tidy()
    await draft.finish(FIRST, summary(updated_at=DAY))

    assert before == ([], 0, NOTHING, 0)
    assert await everything_in(store) == [picture(1)]
