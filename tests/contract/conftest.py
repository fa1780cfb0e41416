"""The stores that the contract tests run against."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from parley.ports.store import Store
from parley.stores.memory import MemoryStore
from parley.stores.sqlite.store import SqliteStore

STORES: Final[dict[str, Callable[[Path], Store]]] = {
    "memory": lambda home: MemoryStore(),
    "sqlite": lambda home: SqliteStore(str(home)),
}


@pytest.fixture(params=list(STORES))
def new_store(request: pytest.FixtureRequest) -> Callable[[Path], Store]:
    """Return a function that creates a store in a directory, which need not exist."""
    return STORES[request.param]


@pytest.fixture
async def store(new_store: Callable[[Path], Store], tmp_path: Path) -> AsyncIterator[Store]:
    store = new_store(tmp_path / "home")
    yield store
    await store.close()
