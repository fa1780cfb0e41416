"""Many HTTP clients with random disconnections, resumptions and slow readers: each client gets every event once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.clients.http_clients import HttpClients
from kit.servers.http_server import HttpServer
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import RecordedRequest, Reply, Says, ScriptedModel
from parley.tools.rlimits import raise_own_limit

MANY = "[serve]\nrequests_per_second = 0\nmax_connections = 8192\n"


def reply(request: RecordedRequest) -> Reply:
    number = len(request.body["messages"])
    return Says(tuple(f"{number} {piece} " + "x" * (piece * number % 900) for piece in range(8)))


def differences(group: HttpClients, expected: dict[str, list[int]]) -> list[object]:
    """Return the watchers whose positions differ from the log."""
    return [
        (conversation, found, expected[conversation])
        for watcher in group.watchers
        for conversation, found in watcher.positions.items()
        if found != expected[conversation]
    ]


@pytest.mark.promises("http.resume", "http.slow")
async def test_20_clients_that_disconnect_at_random_have_every_event_once(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.set_handler(reply)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "home", config=MANY) as server,
        HttpClients(server.url, server.token, clients=20, conversations=5, seed=1) as group,
    ):
        expected = await group.run(messages=40)

    assert differences(group, expected) == []
    assert sum(watcher.connections for watcher in group.watchers) > 40


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
async def test_500_clients_on_100_conversations_have_every_event_once(
    parley_model: ScriptedModel, tmp_path: Path, seed: int
) -> None:
    raise_own_limit()
    parley_model.set_handler(reply)
    async with (
        asyncio.timeout(1800),
        ResidentProcess(parley_model, tmp_path / "home", config=MANY) as resident,
        HttpClients(
            resident.description["url"], resident.description["token"], clients=500, conversations=100, seed=seed
        ) as group,
    ):
        expected = await group.run(messages=600)

    assert differences(group, expected) == []
    assert sum(watcher.connections for watcher in group.watchers) > 1000
