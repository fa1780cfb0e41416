"""When a resident server that `parley mcp` started exits: after a time without clients and turns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from parley.app.resident import Resident
from parley.config.types import ServeSettings

MINUTE = 60.0


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def resident(clock: Clock, *, minutes: int, turns: list[object]) -> Resident:
    settings = ServeSettings(idle_exit_minutes=minutes)
    server: Any = SimpleNamespace(
        conversations=SimpleNamespace(running=turns), loader=SimpleNamespace(serve_settings=lambda: settings)
    )
    return Resident(server, "/nowhere", now=clock)


async def is_over(running: asyncio.Task[None]) -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return running.done()


@pytest.mark.promises("resident.started")
async def test_an_idle_server_exits_after_the_configured_time() -> None:
    clock = Clock()
    server = resident(clock, minutes=5, turns=[])

    clock.time += 5 * MINUTE - 1
    early = asyncio.create_task(server.run(exits_when_idle=True))
    assert not await is_over(early)
    early.cancel()
    clock.time += 1
    await server.run(exits_when_idle=True)


@pytest.mark.parametrize(
    ("minutes", "turns", "exits_when_idle"),
    [(5, [object()], True), (0, [], True), (5, [], False)],
    ids=["a turn runs", "never", "started by a person"],
)
async def test_a_server_stays(minutes: int, turns: list[object], exits_when_idle: bool) -> None:
    clock = Clock()
    server = resident(clock, minutes=minutes, turns=turns)
    clock.time += 1000 * MINUTE

    running = asyncio.create_task(server.run(exits_when_idle=exits_when_idle))

    assert not await is_over(running)
    server.stop()
    await running
