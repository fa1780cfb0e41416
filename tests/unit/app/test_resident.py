"""A resident server that `parley mcp` started exits after a time without clients and turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.clients.modern_client import ModernHttpClient
from kit.servers.in_process_resident import InProcessResident
from kit.system.waiting import until
from parley.app.http_choice import HttpChoice
from parley.app.resident import Resident
from parley.common.resident_socket import ask, connect
from parley.config.types import NodeSettings, ServeSettings
from parley.testing import ScriptedModel

MINUTE = 60.0


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def resident(clock: Clock, *, minutes: int, turns: list[object]) -> Resident:
    settings = ServeSettings(idle_exit_minutes=minutes)
    loader = SimpleNamespace(serve_settings=lambda: settings, node_settings=NodeSettings, store_url=lambda: None)
    server: Any = SimpleNamespace(conversations=SimpleNamespace(running=turns), loader=loader)
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


@pytest.mark.promises("resident.started", "resident.status")
async def test_a_request_without_a_session_is_a_client(parley_model: ScriptedModel, tmp_path: Path) -> None:
    """A request at 2026-07-28 counts while it is in progress, and the time without clients begins at its end."""
    clock, config = Clock(), "[serve]\nidle_exit_minutes = 5\n"
    http = HttpChoice(creates_token=True)
    async with InProcessResident(parley_model, tmp_path / "home", config=config, http=http, now=clock) as server:
        serving = server.resident
        async with ModernHttpClient(serving.description["url"], token=serving.token or "") as client:
            conversation = await client.create()
            async with client.call_stream("conversationStream", conversation_id=conversation) as stream:
                await stream.next()
                clock.time += 1000 * MINUTE
                running = asyncio.create_task(serving.run(exits_when_idle=True))
                assert not await is_over(running)
                assert (await asyncio.to_thread(status_of, server.home))["clients"] == 1
                running.cancel()
                clock.time += 1000 * MINUTE
            await until(lambda: serving.client_count == 0)
            early = asyncio.create_task(serving.run(exits_when_idle=True))
            assert not await is_over(early)
            early.cancel()
            clock.time += 5 * MINUTE
            await serving.run(exits_when_idle=True)


def status_of(home: str) -> Any:
    with connect(home) as channel:
        return ask(channel, "status")
