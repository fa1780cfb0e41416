"""The health checks `/livez` and `/readyz` (`parley.server.http.health`)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from kit.servers.database_port import DatabasePort
from kit.servers.http_server import HttpServer
from kit.servers.in_process_resident import InProcessResident
from kit.servers.node_process import NODE_TOKEN, NodeProcess
from kit.servers.postgres import NEEDS_POSTGRES, Databases, with_connection
from kit.servers.short_outages import CALL_SECONDS, shorten_outages
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.ports import free_port
from parley.app.http_choice import HttpChoice
from parley.stores.postgres.months import MIGRATION_LOCK
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL

Answer = tuple[int, bytes]


async def check(url: str, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
    """Request a path of the server at a URL. Return the status and the body."""
    parts = urlsplit(url)
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{parts.scheme}://{parts.netloc}{path}", headers=headers) as answer,
    ):
        return answer.status, await answer.read()


@pytest.mark.promises("http.health")
async def test_health_checks_need_no_token_and_accept_every_host(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), HttpServer(parley_model, tmp_path / "home") as server:
        paths = ("/livez", "/readyz")
        plain = [await check(server.url, path) for path in paths]
        of_pod = [await check(server.url, path, headers={"Host": "10.1.2.3:8080"}) for path in paths]
        heads = [await check(server.url, path, method="HEAD") for path in paths]
        posts = [await check(server.url, path, method="POST") for path in paths]
        others = [await check(server.url, path) for path in ("/readyz/", "/readyz?verbose", "/metrics", "/mcp")]

    assert plain == of_pod == [(200, b'{"status":"ok"}')] * 2
    assert heads == [(200, b"")] * 2
    assert posts == [(405, b"")] * 2
    assert [status for status, _ in others] == [401] * 4


@pytest.mark.promises("http.health")
async def test_a_web_page_cannot_read_a_health_check(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "home") as server,
        aiohttp.ClientSession(headers={"Origin": "https://page.example"}) as session,
        session.get(server.url.removesuffix("/mcp") + "/readyz") as answer,
    ):
        allowed = [name for name in answer.headers if name.lower().startswith("access-control")]

    assert allowed == []


@NEEDS_POSTGRES
@pytest.mark.promises("http.health")
async def test_a_node_is_ready_when_other_nodes_can_find_it(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    env = {"PARLEY_STORE_URL": databases.url(), "PARLEY_NODE_TOKEN": NODE_TOKEN}
    async with asyncio.timeout(TIMEOUT_SECONDS), HttpServer(parley_model, tmp_path / "home", env=env) as server:
        before = [await check(server.url, path) for path in ("/livez", "/readyz")]
        assert server.server.nodes is not None
        assert server.service.node_url is not None
        await server.server.nodes.join(server.service.node_url, running=lambda: 0)
        after = await check(server.url, "/readyz")

    assert before == [(200, b'{"status":"ok"}'), (503, b'{"status":"starting"}')]
    assert after == (200, b'{"status":"ok"}')


@NEEDS_POSTGRES
@pytest.mark.promises("http.health")
async def test_a_node_waits_for_a_long_migration_and_is_alive_meanwhile(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_outages(monkeypatch)
    monkeypatch.setattr("parley.stores.postgres.store.JOIN_SECONDS", 0.0)
    url, port = databases.new_url(), free_port()
    env = {"PARLEY_STORE_URL": url, "PARLEY_NODE_TOKEN": NODE_TOKEN}
    http = HttpChoice(token="t" * 32, port=port)
    states, is_locked = [], asyncio.Event()

    async def migrate_slowly(db: Any) -> None:
        """Wait until the node waits for another process that migrates the database, and then for longer than a call
        may take.
        """
        await db.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        is_locked.set()
        waiting = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await db.fetchval(waiting):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * CALL_SECONDS)
        states.extend([await check(f"http://127.0.0.1:{port}/mcp", path) for path in ("/livez", "/readyz")])

    async with asyncio.timeout(TIMEOUT_SECONDS):
        migrating = asyncio.create_task(with_connection(url, migrate_slowly))
        await is_locked.wait()
        async with InProcessResident(parley_model, tmp_path / "home", http=http, env=env) as server:
            await migrating
            after = await check(server.resident.description["url"], "/readyz")

    assert states == [(200, b'{"status":"ok"}'), (503, b'{"status":"starting"}')]
    assert after == (200, b'{"status":"ok"}')


@NEEDS_POSTGRES
@pytest.mark.promises("http.health")
async def test_a_server_without_its_database_is_alive_but_not_ready(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_outages(monkeypatch)
    async with asyncio.timeout(TIMEOUT_SECONDS), DatabasePort(databases.url()) as port:
        env = {"PARLEY_STORE_URL": port.url, "PARLEY_NODE_TOKEN": NODE_TOKEN}
        async with InProcessResident(
            parley_model, tmp_path / "home", http=HttpChoice(token="t" * 32), env=env
        ) as server:
            url = server.resident.description["url"]
            before = await check(url, "/readyz")
            port.refuses = True
            port.cut()
            while (ready := await check(url, "/readyz")) == before:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            live = await check(url, "/livez")
            port.refuses = False
            while (after := await check(url, "/readyz")) == ready:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)

    assert before == live == after == (200, b'{"status":"ok"}')
    assert ready == (503, b'{"status":"store unavailable"}')


@NEEDS_POSTGRES
@pytest.mark.child_process
@pytest.mark.promises("http.health")
async def test_a_node_that_is_stopping_is_alive_but_not_ready(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    parley_model.says("Let me ", HOLD, "finish.")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        NodeProcess(parley_model, tmp_path, "a", databases.url()) as node,
        node.client(reconnect_seconds=0) as client,
    ):
        url = node.description["url"]
        before = await check(url, "/readyz")
        conversation = await client.create(cwd=tmp_path, model=MODEL)
        await conversation.send("go")
        await parley_model.wait_until_held()
        node.process.send_signal(signal.SIGTERM)
        while (ready := await check(url, "/readyz"))[0] == 200:  # noqa: ASYNC110 - the node gets the signal soon
            await asyncio.sleep(0.01)
        live = await check(url, "/livez")
        parley_model.release()
        await node.process.wait()

    assert before == live == (200, b'{"status":"ok"}')
    assert ready == (503, b'{"status":"stopping"}')
