"""Chooses the store: the SQLite database of the home, or a PostgreSQL database that several computers share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol, runtime_checkable

from parley.config.load import STORE_VARIABLE, Loader
from parley.config.types import StoreUrl
from parley.errors import BadSetting, ConfigError
from parley.ports.store import MaintainedStore, Store
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId

__all__ = ["inspect_postgres", "is_shared", "on_changes", "open_store", "server_store"]

NO_DRIVER: Final = "the Python package asyncpg is not installed; install parley-server[postgres]"


def server_store(loader: Loader) -> Store:
    """Return a new store for a server. The store is opened when it is first used.

    If config.toml cannot be read, the store is the database of the home, and config.toml is read again when the
    store is first used. If config.toml still cannot be read, or now names a database, that first use of the store
    raises `BadSetting`, and nothing is created.

    Raises:
        BadSetting: the URL of the database is invalid.
    """
    if (url := _database(loader)) is not None:
        return _postgres_store(url)

    def home() -> str:
        if loader.store_url() is not None:
            raise BadSetting("`store.url` was set after the server started; restart the server")
        return loader.home

    return SqliteStore(home)


@runtime_checkable
class _Listening(Protocol):
    """A store whose database reports the conversations that other processes change."""

    def listen(self, callback: Callable[[list[ConversationId]], None]) -> None: ...


def on_changes(store: Store, changed: Callable[[ConversationId], None]) -> None:
    """Call `changed` with the id of each conversation that another process changes.

    Do nothing if the store does not report such changes.
    """
    if isinstance(store, _Listening):

        def callback(conversations: list[ConversationId]) -> None:
            for one in conversations:
                changed(one)

        store.listen(callback)


def is_shared(store: Store) -> bool:
    """Return whether servers on several computers can use the store at the same time."""
    return isinstance(store, _Listening)


def _database(loader: Loader) -> StoreUrl | None:
    """Return the URL of the PostgreSQL database; None if the conversations are in the home, or if config.toml
    cannot be read.

    Raises:
        BadSetting: the URL is invalid.
    """
    try:
        return loader.store_url()
    except BadSetting as error:
        if error.source == STORE_VARIABLE or error.key == "store.url":
            raise
        return None
    except ConfigError:
        return None


def _postgres_store(url: str) -> MaintainedStore:
    from importlib.util import find_spec

    if find_spec("asyncpg") is None:  # a server would otherwise start, and fail at each call
        raise BadSetting(f"PostgreSQL cannot be used: {NO_DRIVER}")
    from parley.stores.postgres.store import PostgresStore  # imported here: few servers need this module

    return PostgresStore(url)


@asynccontextmanager
async def open_store(loader: Loader, *, to_write: bool = False) -> AsyncIterator[MaintainedStore]:
    """Open the store for a command of `parley`, and yield it. If `to_write` is True, create the home directory if
    it is missing.

    Raises:
        BadHome: the home directory contains no conversations, or the conversations cannot be used.
        BadSetting: config.toml cannot be read, or the URL of the database is invalid.
    """
    from parley.app.files.homes import open_home  # imported here: servers do not need this module

    url = loader.store_url()
    if url is None:
        async with open_home(loader.home, to_write=to_write) as home:
            yield home
        return
    store = _postgres_store(url)
    try:
        yield store
    finally:
        await store.close()


async def inspect_postgres(url: str) -> tuple[bool, list[str]]:
    """Connect to the PostgreSQL database at `url`. Return whether the database can be used, and sentences that
    describe the database.

    If the database cannot be used, the only sentence states the reason. No sentence contains the password.
    """
    from parley.errors import StoreError
    from parley.stores.postgres.database import location_of
    from parley.stores.postgres.store import PostgresStore

    store = PostgresStore(url)
    try:
        return True, [f"{location_of(url)}: ok", *await store.describe()]
    except StoreError as error:
        return False, [str(error)]
    finally:
        await store.close()
