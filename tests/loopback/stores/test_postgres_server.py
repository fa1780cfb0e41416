"""The PostgreSQL server of the tests (`kit.servers.postgres`)."""

from __future__ import annotations

from typing import Any

from kit.servers.postgres import Databases, with_connection


async def test_a_database_is_new_for_each_key_and_the_same_for_one_key(databases: Databases) -> None:
    async def write(connection: Any) -> None:
        await connection.execute("CREATE TABLE here (number int)")

    async def count(connection: Any) -> int:
        found: int = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE tablename = 'here'")
        return found

    await with_connection(databases.url("one"), write)

    assert [await with_connection(databases.url(key), count) for key in ("one", "two")] == [1, 0]
