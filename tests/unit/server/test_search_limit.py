from __future__ import annotations

import asyncio

from parley.server.search_limit import MAX_SEARCHES, SearchLimit


async def test_each_principal_runs_a_few_searches_at_a_time() -> None:
    limit, go_on = SearchLimit(), asyncio.Event()
    running: list[str] = []

    async def search(principal: str) -> None:
        async with limit.of(principal):
            running.append(principal)
            await go_on.wait()

    tasks = [asyncio.create_task(search(name)) for name in ("a",) * 10 + ("b",) * 10]
    await asyncio.sleep(0)
    assert running == ["a"] * MAX_SEARCHES + ["b"] * MAX_SEARCHES
    go_on.set()
    await asyncio.gather(*tasks)

    assert len(running) == 20
    assert len(limit._running) == 0
