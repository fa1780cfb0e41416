"""The line of wishes by itself: who may begin when, and who is woken for that."""

from __future__ import annotations

import asyncio

import pytest

from kit.system.commands import PATIENCE_SECONDS
from parley.runtime.line import HERE, Line


class Counted(Line):
    """Counts how often somebody looks whether it is his turn."""

    def __init__(self) -> None:
        super().__init__(lambda: self.turn)
        self.turn: object | None = None
        self.looks = 0
        self.did: list[int] = []

    def begin(self, place: object) -> bool:
        self.looks += 1
        return super().begin(place)  # type: ignore[arg-type]  # it is one

    async def wish(self, number: int, *, until: asyncio.Event | None = None) -> None:
        with self.place() as place:
            await place.begin()
            self.did.append(number)
            if until is not None:
                await until.wait()
            else:
                await asyncio.sleep(0)


async def test_many_who_wait_are_woken_one_by_one() -> None:
    line = Counted()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(line.wish(number) for number in range(1000)))

    assert line.did == list(range(1000))
    assert line.looks <= 3 * 1000
    assert line.is_empty


async def test_all_begin_who_are_under_way_to_where_the_turn_is() -> None:
    line, done = Counted(), asyncio.Event()
    line.turn = HERE
    wishes = [asyncio.create_task(line.wish(number, until=done)) for number in range(3)]
    await asyncio.sleep(0)
    assert line.did == [0, 1, 2]

    line.turn = object()
    behind = asyncio.create_task(line.wish(3))
    await asyncio.sleep(0)
    assert line.did == [0, 1, 2]
    done.set()
    await asyncio.gather(*wishes, behind)
    assert line.did == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [0, 1])
async def test_whoever_leaves_lets_the_next_one_look(number: int) -> None:
    line, done = Counted(), asyncio.Event()
    wishes = [asyncio.create_task(line.wish(place, until=done)) for place in range(3)]
    await asyncio.sleep(0)
    wishes[number].cancel()
    done.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*wishes, return_exceptions=True)
        await line.cleared()

    assert line.did == ([0, 1, 2] if number == 0 else [0, 2])
