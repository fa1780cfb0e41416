"""A read of the database ends its transaction, however it ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.builders.entries import FIRST, OTHER, said, summary
from parley.errors import StoreFailed
from parley.ports.store import Query
from parley.stores.sqlite import maintenance, queries
from parley.stores.sqlite.files import DATABASE
from parley.stores.sqlite.store import SqliteStore


def refuse(row: int) -> bool:
    raise StoreFailed("the locks cannot be read")


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda db: queries.find(db, Query(archived=None), refuse), id="a list"),
        pytest.param(lambda db: queries.expired(db, 9.0, refuse), id="what has expired"),
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
