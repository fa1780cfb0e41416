"""The stores that the contract tests run against: memory, `parley.stores.sqlite.queries` and
`parley.stores.postgres.queries`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kit.servers.postgres import NEEDS_POSTGRES, Databases
from parley.ports.store import Store
from parley.stores.memory import MemoryStore
from parley.stores.postgres.store import PostgresStore
from parley.stores.sqlite.store import SqliteStore

STORES = ("memory", "sqlite", pytest.param("postgres", marks=NEEDS_POSTGRES))


@pytest.fixture(params=STORES)
def new_store(request: pytest.FixtureRequest) -> Callable[[Path], Store]:
    """Return a function that creates a store in a directory, which need not exist. Two stores in the same directory
    have the same contents, except for stores in memory.
    """
    if request.param == "memory":
        return lambda home: MemoryStore()
    if request.param == "sqlite":
        return lambda home: SqliteStore(str(home))
    databases: Databases = request.getfixturevalue("databases")
    return lambda home: PostgresStore(databases.url(home))


@pytest.fixture
async def store(new_store: Callable[[Path], Store], tmp_path: Path) -> AsyncIterator[Store]:
    store = new_store(tmp_path / "home")
    yield store
    await store.close()
