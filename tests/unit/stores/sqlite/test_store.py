"""Properties of the SQLite store only: lazy opening, shared blobs, reclaimed space, copies."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from kit.builders.entries import FIRST, OTHER, answers, asked, everything_in, said, summary
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.log import Entry
from parley.errors import BadHome, OwnedElsewhere, StoreFailed, UnknownConversation
from parley.ports.store import PAGE, Freed, Query, StateName
from parley.stores.sqlite.locks import open_lease_locks
from parley.stores.sqlite.maintenance import copy_to
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START, Seq

IMAGE = b64encode(bytes(range(256)) * 4000).decode()
"""An image of about a megabyte, in base64."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def store(home: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(home))
    yield store
    await store.close()


def in_the_database(home: Path, question: str) -> int:
    db = sqlite3.connect(home / "parley.db")
    answer: int = db.execute(question).fetchone()[0]
    db.close()
    return answer


def modes(directory: Path) -> dict[str, int]:
    """Return the modes of the files in a directory."""
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def image(number: int) -> Entry:
    """Return a message with a unique image."""
    return asked(1, f"data:image/png;base64,{b64encode(os.urandom(30_000) + bytes([number])).decode()}")


def test_nothing_is_loaded_or_made_before_it_is_needed(home: Path) -> None:
    program = f"""
import asyncio, os, sys
from parley.stores.sqlite.store import SqliteStore
store = SqliteStore({str(home)!r})
asyncio.run(store.close())
assert "sqlite3" not in sys.modules and not os.path.exists({str(home)!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_only_the_user_can_read_what_was_said(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, [], summary())

    assert modes(home.parent)["home"] == 0o700
    assert modes(home) == dict.fromkeys(
        ("parley.db", "parley.db-wal", "parley.db-shm", "gate.lock", "write.lock", "owners.lock"), 0o600
    )


async def test_one_store_reads_the_entries_of_another(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, [said(1, "one")], summary())
    await store.close()
    again = SqliteStore(str(home))

    assert await everything_in(again) == [said(1, "one")]
    await again.close()


async def test_the_same_image_is_kept_once_and_small(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, [asked(1, IMAGE), asked(2, f"again: {IMAGE}")], summary())
    await store.create(OTHER, [asked(1, IMAGE)], summary())
    await store.close()

    assert in_the_database(home, "SELECT count(*) FROM blobs") == 1
    assert in_the_database(home, "SELECT count(*) FROM cuts") == 3
    assert (home / "parley.db").stat().st_size < len(IMAGE) / 4


async def test_a_page_of_large_entries_is_shorter(store: SqliteStore) -> None:
    entries = [asked(seq, IMAGE) for seq in range(1, 16)]
    await store.create(FIRST, entries, summary())
    page = await store.read(FIRST, after=START)

    assert 1 < len(page) < len(entries)
    assert await everything_in(store) == entries


async def test_the_log_of_the_database_is_folded_in_while_others_write(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="")
    text = "word " * 2000
    for page in range(4):
        await store.append(lease, [said(seq, text) for seq in range(page * 400 + 1, page * 400 + 401)], summary())

    assert (home / "parley.db-wal").stat().st_size < 16_000_000
    assert (home / "parley.db").stat().st_size > 8_000_000


async def test_unreferenced_blobs_are_removed_and_their_space_is_reclaimed(store: SqliteStore, home: Path) -> None:
    await store.create(OTHER, [image(0)], summary())
    await store.create(FIRST, [asked(seq, image(seq).body.decode()) for seq in range(1, 31)], summary())
    unused_before = await store.unused_blobs()
    lease = await store.acquire(FIRST, address="")
    await store.delete(lease)
    unused = await store.unused_blobs()
    freed = await store.tidy()
    left = await store.unused_blobs()
    other = await everything_in(store, OTHER)
    while (home / "parley.db").stat().st_size > 300_000:
        await store.head(OTHER)

    assert (unused_before, left) == (Freed(blobs=0, bytes=0), Freed(blobs=0, bytes=0))
    assert freed == unused
    assert freed.blobs == 30
    assert freed.bytes > 30 * 30_000
    assert len(other) == 1


async def test_tidying_removes_a_conversation_whose_deletion_is_under_way(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, answers(1, 3), summary())
    lease = await store.acquire(FIRST, address="")
    deleting = asyncio.ensure_future(store.delete(lease))
    # the deletion is submitted, and shares a transaction with later jobs of this event loop iteration
    await asyncio.sleep(0)
    deleting.cancel()
    await store.tidy()
    await store.close()

    assert in_the_database(home, "SELECT count(*) FROM entries") == 0
    assert in_the_database(home, "SELECT count(*) FROM removed") == 0


async def test_tidying_ends_a_deletion_that_was_broken_off(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, answers(1, PAGE), summary())
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, answers(PAGE + 1, 2 * PAGE), summary())
    deleting = asyncio.ensure_future(store.delete(lease))
    while True:
        try:
            await store.head(FIRST)
        except UnknownConversation:
            break
    deleting.cancel()
    await asyncio.wait((deleting,))
    await store.tidy()
    await store.close()

    assert in_the_database(home, "SELECT count(*) FROM entries") == 0
    assert in_the_database(home, "SELECT count(*) FROM removed") == 0


async def test_the_place_of_a_lock_is_never_used_again(store: SqliteStore, home: Path) -> None:
    """A process may still hold the lock of a deleted conversation."""
    await store.create(FIRST, [], summary())
    await store.delete(await store.acquire(FIRST, address=""))
    await store.create(OTHER, [], summary())
    await store.close()

    assert in_the_database(home, "SELECT row FROM conversations") == 2


async def test_releasing_the_lease_after_the_end_of_a_turn_writes_nothing(store: SqliteStore, home: Path) -> None:
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="here")
    states: tuple[StateName, ...] = ("running", "idle", "asking", "idle")
    named: list[bool] = []
    for seq, state in enumerate(states, start=1):
        await store.append(lease, [said(seq, state)], summary(state=state))
        named.append((await store.head(FIRST)).owner is not None)
    with closing(sqlite3.connect(home / "parley.db")) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        await store.release(lease)
        after = other.execute("PRAGMA data_version").fetchone()
    await store.acquire(FIRST, address="there")

    assert named == [True, False, True, False]
    assert before == after


async def test_a_lease_is_given_back_also_where_nothing_can_be_written_any_more(
    store: SqliteStore, home: Path
) -> None:
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="here")
    with closing(sqlite3.connect(home / "parley.db")) as newer:
        newer.execute("PRAGMA user_version = 999")
    with pytest.raises(BadHome):
        await store.append(lease, [said(1, "text")], summary())
    await store.release(lease)

    other = open_lease_locks(str(home))
    is_taken = other.is_held(1)
    other.close()
    assert not is_taken


async def test_a_copy_holds_what_was_there_when_it_was_made(store: SqliteStore, tmp_path: Path) -> None:
    await store.create(FIRST, [asked(1, IMAGE)], summary())
    lease = await store.acquire(FIRST, address="")
    (tmp_path / "restored").mkdir()
    copy = tmp_path / "restored" / "parley.db"
    await store.backup(str(copy))
    await store.append(lease, [said(2, "later")], summary())
    made = modes(copy.parent)
    restored = SqliteStore(str(copy.parent))

    assert made == {"parley.db": 0o600}
    assert await everything_in(restored) == [asked(1, IMAGE)]
    assert (await restored.head(FIRST)).owner is None
    await restored.close()


async def test_a_copy_does_not_overwrite_anything(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError):
        await store.backup(str(tmp_path / "mine"))
    with pytest.raises(StoreFailed):
        await store.backup(str(tmp_path / "not" / "there"))

    assert (tmp_path / "mine").read_text() == "mine"
    assert sorted(modes(tmp_path)) == ["home", "mine"]


@pytest.mark.parametrize("ticks", [1, 3, 10, 30])
async def test_a_copy_that_is_not_wanted_any_more_is_whole_and_counts_or_is_not_there(
    store: SqliteStore, tmp_path: Path, ticks: int
) -> None:
    await store.create(FIRST, [asked(1, IMAGE)], summary())
    copying = asyncio.ensure_future(store.backup(str(tmp_path / "copy")))
    for _ in range(ticks):
        await asyncio.sleep(0)
    copying.cancel()
    await asyncio.wait((copying,))

    left = ["home"] if copying.cancelled() else ["copy", "home"]
    await store.close()
    assert sorted(modes(tmp_path)) == left


def test_a_copy_that_was_given_up_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    given_up = Event()
    given_up.set()
    with closing(sqlite3.connect(tmp_path / "home" / "parley.db")) as db:
        db.execute("CREATE TABLE t (x)")
        with pytest.raises(StoreFailed):
            copy_to(db, str(tmp_path / "copy"), given_up)

    assert sorted(modes(tmp_path)) == ["home"]


async def test_a_log_is_found_by_what_stands_beside_an_image(store: SqliteStore) -> None:
    await store.create(FIRST, [asked(1, f"{IMAGE} Look at this")], summary())

    assert len((await store.find(Query(text="look at THIS"))).items) == 1


async def test_pending_reads_and_leases_fail_when_the_store_is_closed(
    store: SqliteStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.ensure_future(store.read(FIRST, after=START))
    await asyncio.sleep(0)
    await store.close()
    again = SqliteStore(str(home))
    await again.create(FIRST, [], summary())
    others = open_lease_locks(str(home))
    assert others.try_acquire(1)  # the holder is not known yet, so the store asks again after a while
    loop = asyncio.get_running_loop()
    now = loop.time()
    with monkeypatch.context() as standing_still:
        standing_still.setattr(loop, "time", lambda: now)
        acquiring = asyncio.ensure_future(again.acquire(FIRST, address=""))
        for _ in range(10):
            await again.head(FIRST)
        await again.close()
    await asyncio.wait((reading, acquiring), timeout=TIMEOUT_SECONDS)
    others.close()

    assert [str(one.exception()) for one in (reading, acquiring)] == [str(StoreFailed("the store is closed"))] * 2


async def test_reading_far_after_the_end_finds_nothing(store: SqliteStore) -> None:
    await store.create(FIRST, [said(1, "one")], summary())

    assert await store.read(FIRST, after=Seq(2**40)) == []


async def test_an_owner_on_another_node_is_named_with_the_node(home: Path, store: SqliteStore) -> None:
    """A process in another container may have the PID of a process on this computer."""
    await store.create(FIRST, [asked(1, "one")], summary())
    await store.acquire(FIRST, address="there")
    with closing(sqlite3.connect(home / "parley.db")) as db:
        db.execute("UPDATE conversations SET owner_node = 'elsewhere'")
        db.commit()

    with pytest.raises(OwnedElsewhere) as refused:
        await store.acquire(FIRST, address="here")

    assert str(refused.value) == f"process {os.getpid()} on elsewhere runs a turn of the conversation"
