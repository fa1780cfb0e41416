"""The official Python client over HTTP: it connects, lists, calls, is asked, streams, resumes, and falls back to an
older version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest_asyncio
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitResult, TextContent

from kit.clients.http_events import positions_in
from kit.clients.official_client import Received, recorded
from kit.clients.shell_turns import sh
from kit.servers.cutting_port import CuttingPort
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import ScriptedModel


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


def http_of(server: HttpServer) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {server.token}"}, timeout=None, trust_env=False)


@asynccontextmanager
async def connected(
    server: HttpServer, url: str | None = None, received: Received | None = None
) -> AsyncIterator[ClientSession]:
    """Return an initialized client that approves every request. Its notifications are added to `received`."""

    async def approve(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"decision": "approved"})

    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        http_of(server) as http,
        recorded(streamable_http_client(url or server.url, http_client=http), received or Received()) as streams,
        ClientSession(streams[0], streams[1], elicitation_callback=approve) as session,
    ):
        await session.initialize()
        yield session


def text_of(result: Any) -> str:
    assert isinstance(result, CallToolResult)
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def test_it_runs_codex_is_asked_and_lists_the_conversation(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    settings = {"approval-policy": "untrusted", "sandbox": "workspace-write", "cwd": str(server.work)}
    async with connected(server) as session:
        tools = await session.list_tools()
        answer = await session.call_tool("codex", {"prompt": "go", **settings})
        listed = await session.call_tool("conversationsList", {})

    assert [tool.name for tool in tools.tools][:2] == ["codex", "codex-reply"]
    assert text_of(answer) == "Done."
    assert '"title":"go"' in text_of(listed)
    assert (server.work / "made").exists()


async def test_a_stream_continues_after_a_cut(server: HttpServer, parley_model: ScriptedModel) -> None:
    for text in ("One", "Two", "Three"):
        parley_model.says(text)
    received = Received()
    async with CuttingPort(server.url) as port, connected(server, port.url, received) as session:

        async def call(name: str, **arguments: Any) -> Any:
            return (await session.call_tool(name, arguments)).structured_content

        async def say(text: str) -> None:
            content = [{"type": "text", "text": text}]
            await call("conversationSendMessage", conversation_id=conversation, content=content)

        conversation = (await call("conversationCreate", prompt="", cwd=str(server.work)))["conversation_id"]
        await call("conversationStream", conversation_id=conversation)
        await say("1")
        await received.until("task_complete")
        port.cut()
        await say("2")
        await received.until("task_complete")  # after the client has connected again
        await say("3")
        await received.until("task_complete")
        logged = (await call("conversationRead", conversation_id=conversation, limit=1000))["events"]

    assert positions_in(received.messages, conversation) == [one["seq"] for one in logged]
    assert [one["method"] for one in received.messages].count("notifications/initial_state") == 1


async def test_the_client_that_looks_for_a_newer_protocol_first_finds_its_way(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("Hello")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "other", config="[mcp]\nmodern = false\n") as server,
        http_of(server) as http,
        Client(streamable_http_client(server.url, http_client=http)) as client,
    ):
        version = client.protocol_version
        answer = await client.call_tool("codex", {"prompt": "hi"})

    assert (version, text_of(answer)) == ("2025-11-25", "Hello")
