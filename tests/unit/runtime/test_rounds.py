"""The rounds by themselves: who goes on when, and behind whom."""

from __future__ import annotations

import asyncio

from kit.system.commands import PATIENCE_SECONDS
from parley.runtime.rounds import Rounds


class Looking:
    """Somebody who looks when he is told to."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.did: list[str] = []
        self._may_look = asyncio.Semaphore(0)

    async def join(self, name: str) -> None:
        await self.rounds.join(self._look)
        self.did.append(name)

    async def pass_by(self, name: str) -> None:
        await self.rounds.pass_by()
        self.did.append(name)

    async def _look(self) -> None:
        await self._may_look.acquire()
        self.did.append("look")

    def look(self) -> None:
        self._may_look.release()


async def ticks(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_whoever_comes_while_somebody_looks_shares_the_next_look() -> None:
    looking = Looking()
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(looking.join("one"))
        await ticks(3)
        for name in ("two", "three"):
            tasks.create_task(looking.join(name))
        await ticks(3)
        looking.look()
        looking.look()

    assert looking.did == ["look", "one", "look", "two", "three"]


async def test_nobody_passes_by_whoever_is_about_to_go_on() -> None:
    for number in range(6):
        looking = Looking()
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            tasks.create_task(looking.join("one"))
            await ticks(3)
            looking.look()
            await ticks(number)
            await looking.pass_by("two")

        assert looking.did == ["look", "one", "two"]


async def test_whoever_passes_by_where_nobody_looks_goes_on() -> None:
    looking = Looking()
    await looking.pass_by("one")

    assert looking.did == ["one"]
