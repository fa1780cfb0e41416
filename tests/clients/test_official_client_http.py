"""The official Python client over HTTP: it connects, lists, calls, is asked, and falls back to an older version."""

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

from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.commands import PATIENCE_SECONDS
from parley.testing import ScriptedModel


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


def http_of(server: HttpServer) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {server.token}"}, timeout=None, trust_env=False)


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[ClientSession]:
    """An initialized client that approves everything."""

    async def approve(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"decision": "approved"})

    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        http_of(server) as http,
        streamable_http_client(server.url, http_client=http) as streams,
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


async def test_the_client_that_looks_for_a_newer_protocol_first_finds_its_way(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    parley_model.says("Hello")
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        http_of(server) as http,
        Client(streamable_http_client(server.url, http_client=http)) as client,
    ):
        version = client.protocol_version
        answer = await client.call_tool("codex", {"prompt": "hi"})

    assert (version, text_of(answer)) == ("2025-11-25", "Hello")
