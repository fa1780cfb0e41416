"""The PostgreSQL server of the tests (`kit.servers.postgres`)."""

from __future__ import annotations

from typing import Any

from kit.servers.postgres import Databases, with_connection


async def test_databases_are_separate_and_the_same_for_one_key(databases: Databases) -> None:
    async def write(connection: Any) -> None:
        await connection.execute("CREATE TABLE here (number int)")

    async def count(connection: Any) -> int:
        found: int = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE tablename = 'here'")
        return found

    urls = [databases.new_url(), databases.new_url()]
    await with_connection(urls[0], write)

    assert [await with_connection(url, count) for url in urls] == [1, 0]
    assert databases.url("one") == databases.url("one") != databases.url("two")
