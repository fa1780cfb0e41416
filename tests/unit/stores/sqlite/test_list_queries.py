"""A read of the database ends its transaction, even if the read fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kit.builders.approvals import approval_id
from kit.builders.entries import FIRST, OTHER, said, summary
from parley.errors import StoreFailed
from parley.ports.store import Query, Viewer
from parley.stores.sqlite import list_queries, maintenance
from parley.stores.sqlite.files import DATABASE
from parley.stores.sqlite.store import SqliteStore


def refuse(row: int) -> bool:
    raise StoreFailed("the locks cannot be read")


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda db: list_queries.find(db, Query(archived=None), refuse), id="a list"),
        pytest.param(lambda db: maintenance.reclaimable_bytes(db, refuse), id="what was deleted"),
    ],
)
async def test_a_look_that_fails_does_not_keep_the_log_from_being_folded_in(
    tmp_path: Path, look: Callable[[sqlite3.Connection], object]
) -> None:
    store = SqliteStore(str(tmp_path))
    for name in (FIRST, OTHER):
        await store.create(name, [], summary(), archived=True)
        await (await store.draft()).add([said(1, "text")])
    reader, folder = (sqlite3.connect(tmp_path / DATABASE, isolation_level=None) for _ in range(2))
    with pytest.raises(StoreFailed) as failed:
        look(reader)
    is_kept, *_ = folder.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    for db in (reader, folder):
        db.close()
    await store.close()

    assert (is_kept, str(failed.value)) == (0, str(StoreFailed("the locks cannot be read")))


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(state="asking", archived=None), "conversations_asking"),
        (Query(state="asking", archived=None, after=(1.0, FIRST)), "conversations_asking"),
        (Query(unread="failed", viewer=Viewer(identity="local")), "conversations_ended"),
        (Query(unread="finished", viewer=Viewer(identity="local"), after=(1.0, FIRST)), "conversations_ended"),
    ],
)
async def test_conversations_that_need_attention_are_found_by_an_index(
    tmp_path: Path, query: Query, index: str
) -> None:
    plan = await plan_of(tmp_path, query)

    assert f"INDEX {index}" in plan
    assert "TEMP B-TREE" not in plan


async def test_the_conversation_of_an_approval_is_found_by_an_index(tmp_path: Path) -> None:
    plan = await plan_of(tmp_path, Query(asked=approval_id(1), archived=None))

    assert "COVERING INDEX entries_by_key (row=? AND type=? AND key=?)" in plan


async def plan_of(home: Path, query: Query) -> str:
    """Return SQLite's query plan."""
    store = SqliteStore(str(home))
    await store.create(FIRST, [], summary())
    await store.close()
    with closing(sqlite3.connect(home / DATABASE, isolation_level=None)) as db:
        asked: list[str] = []
        db.set_trace_callback(asked.append)
        list_queries.find(db, query, lambda row: False)
        db.set_trace_callback(None)
        return " ".join(str(row) for row in db.execute(f"EXPLAIN QUERY PLAN {asked[0]}"))
