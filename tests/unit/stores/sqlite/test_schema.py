"""A database of an older version is migrated when it is opened, and keeps its data."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from kit.builders.entries import FIRST, asked, everything_in, said, summary
from parley.conversation.state import TurnOutcome
from parley.errors import BadHome
from parley.ports.store import Query, Viewer
from parley.stores.sqlite.salvage import salvaged
from parley.stores.sqlite.schema import MIGRATIONS
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import Seq


@pytest.fixture
def first_version(tmp_path: Path) -> Path:
    """Return a home with a conversation of two entries, in the first version of the schema."""
    with closing(sqlite3.connect(tmp_path / "parley.db", isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        MIGRATIONS[0](db)
        db.execute("PRAGMA user_version = 1")
        db.execute(
            "INSERT INTO conversations (id, last, title, cwd, model, state, updated_at, archived)"
            " VALUES (?, 2, 'A title', '/work', 'gpt-5', 'idle', 1.0, 0)",
            (FIRST,),
        )
        for entry in (asked(1, "one"), said(2, "two")):
            db.execute(
                "INSERT INTO entries VALUES (1, ?, ?, ?, 1, ?)", (entry.seq, entry.at, entry.type, entry.body)
            )
    return tmp_path


async def test_a_database_of_the_first_version_gets_nodes_keys_and_checkpoints(first_version: Path) -> None:
    store = SqliteStore(str(first_version))
    lease = await store.acquire(FIRST, address="here")
    owner = (await store.head(FIRST)).owner
    await store.append(lease, [said(3, "three")], summary())

    assert await everything_in(store) == [asked(1, "one"), said(2, "two"), said(3, "three")]
    assert (await store.position_of(FIRST, "user_message", "m"), await store.checkpoint(FIRST)) == (Seq(1), None)
    assert owner is not None
    assert owner.node != ""
    assert len((await store.find(Query())).items) == 1
    await store.close()


async def test_turns_that_ended_before_the_migration_count_as_read(first_version: Path) -> None:
    store, viewer = SqliteStore(str(first_version)), Viewer(identity="local")
    lease = await store.acquire(FIRST, address="")
    before = TurnOutcome(seq=Seq(2), at=1.0, reason="done")
    await store.append(lease, [said(3, "renamed")], replace(summary(), outcome=before))
    (renamed,) = (await store.find(Query(viewer=viewer))).items
    await store.append(lease, [said(4, "next")], replace(summary(), outcome=replace(before, seq=Seq(4))))
    (ended,) = (await store.find(Query(viewer=viewer))).items

    assert (renamed.unread, ended.unread) == (False, True)
    await store.close()


async def test_a_migrated_database_has_its_tables_where_a_new_one_has_them(
    first_version: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A repair replaces a damaged first page, which contains the positions of tables, with a new one."""
    homes = (first_version, tmp_path_factory.mktemp("new"))
    roots = []
    for home in homes:
        store = SqliteStore(str(home))
        await store.find(Query())
        await store.close()
        with closing(sqlite3.connect(home / "parley.db")) as db:
            roots.append(sorted(db.execute("SELECT name, rootpage FROM sqlite_master")))

    assert roots[0] == roots[1]


async def test_a_damaged_database_of_the_first_version_is_left_as_it_is_for_a_repair(
    first_version: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = first_version / "parley.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for number in range(3, 1001):
            body = said(number, "x" * 500).body
            db.execute("INSERT INTO entries VALUES (1, ?, 1.0, 'agent_message', 1, ?)", (number, body))
        db.execute("UPDATE conversations SET last = 1000")
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(bytes(4096))
    store = SqliteStore(str(first_version))
    with pytest.raises(BadHome, match=r"`parley doctor --repair DIRECTORY` saves what can be read"):
        await store.find(Query())
    await store.close()
    with salvaged(str(first_version), str(tmp_path_factory.mktemp("copy"))) as found:
        (conversation,) = found

    assert (conversation.id, conversation.last) == (FIRST, 1000)
    assert 900 < len(conversation.entries) < 1000
