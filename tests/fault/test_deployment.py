"""The services of `deploy/compose` on this computer: a node and the primary are killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from kit.clients.page_client import PageClient
from kit.clients.requests import ping, pong
from kit.servers.compose_on_host import ComposeOnHost, no_proxy
from kit.servers.postgres import NEEDS_POSTGRES
from kit.servers.resident_process import parley
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import connect
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL

OUTAGE_SECONDS = 8.0
"""The duration of the outage. The proxy needs up to five seconds to detect that no node is ready."""

pytestmark = [
    NEEDS_POSTGRES,
    pytest.mark.long,
    pytest.mark.skipif(no_proxy() is not None, reason=no_proxy() or ""),
]


async def test_conversations_continue_after_the_loss_of_a_node_and_of_the_primary(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    for turn in (["one"], ["lost with its node", HOLD], ["two"], ["three"]):
        parley_model.says(*turn)
    async with asyncio.timeout(4 * TIMEOUT_SECONDS), ComposeOnHost(parley_model, tmp_path) as services:
        token = await services.token()
        _, report, _ = await parley("doctor", env=services.nodes["node-1"].environ)
        async with connect(url=services.url, token=token, reconnect_seconds=0) as client:
            conversation = await client.create(cwd=services.projects, model=MODEL)
            first = await (await conversation.send("go")).result()
            await conversation.send("go on")
            await parley_model.wait_until_held()
            owner = (await conversation.status()).owner
            assert owner is not None
            await services.kill_node(owner.pid)
        async with connect(url=services.url, token=token) as client:
            second = await (await client.conversation(conversation.id).send("go on")).result()
            await services.kill_primary()
            statuses = set()
            killed_at = time.monotonic()
            while time.monotonic() - killed_at < OUTAGE_SECONDS:
                statuses.add(await status_without_token(services.url))
            await services.promote()
            third = await (await client.conversation(conversation.id).send("go on")).result()

    assert "an acknowledged write is on the primary and on a synchronous standby" in report
    assert statuses == {401}  # from a node, although no node is ready
    assert [one.text for one in (first, second, third)] == ["one", "two", "three"]


async def status_without_token(url: str) -> int:
    """Wait for a moment, and return the status of the response to a request without a token."""
    await asyncio.sleep(0.1)
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


async def test_the_proxy_passes_on_only_requests_of_clients_and_of_the_page(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(4 * TIMEOUT_SECONDS),
        ComposeOnHost(parley_model, tmp_path) as services,
        aiohttp.ClientSession() as session,
    ):
        node_token = services.secrets["PARLEY_NODE_TOKEN"]
        statuses = []
        for path in ("/mcp", "/node", "/livez", "/readyz", "/other", "/", "/static/app.js"):
            url = services.url.removesuffix("/mcp") + path
            async with session.get(url, headers={"Authorization": f"Bearer {node_token}"}) as answer:
                statuses.append(answer.status)

        _, address, _ = await parley("serve", "--sign-in", env=services.nodes["node-1"].environ)
        async with PageClient(services.url) as browser:
            signed_in = await browser.sign_in(code=address.strip().partition("#code=")[2])
            again = [(await browser.fetch("/sign-in")).status for _ in range(8)]  # by both nodes
            begun = await browser.initialize()
            browser.session_id = begun.headers["mcp-session-id"]  # the proxy writes names in lower case
            answered = (await browser.post(ping(1))).json

    assert statuses == [401, 404, 404, 404, 404, 200, 200]
    assert (signed_in.status, again, answered) == (200, [200] * 8, pong(1))
