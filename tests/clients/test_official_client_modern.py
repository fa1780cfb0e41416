"""The official Python client at 2026-07-28, over stdio and HTTP: it connects, lists, calls, approves, streams and
resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitResult

from kit.clients.http_events import positions_in
from kit.clients.official_client import Received, recorded
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import ScriptedModel


@asynccontextmanager
async def streams(server: HttpServer, transport: str) -> AsyncIterator[Any]:
    """Open the client's transport to a server."""
    if transport == "stdio":
        command, *arguments = server.files.command
        parameters = StdioServerParameters(
            command=command, args=arguments, env=server.files.environ, cwd=server.work
        )
        with (server.files.path / "stderr").open("w") as log:
            async with stdio_client(parameters, errlog=log) as opened:
                yield opened
    else:
        headers = {"Authorization": f"Bearer {server.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=None, trust_env=False) as http,
            streamable_http_client(server.url, http_client=http) as opened,
        ):
            yield opened


async def approve(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"decision": "approved"})


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_it_lists_calls_approves_streams_and_resumes(
    parley_model: ScriptedModel, tmp_path: Path, transport: str
) -> None:
    parley_model.says(sh("c1", "touch made"))
    for text in ("Done.", "One", "Two", "Three"):
        parley_model.says(text)
    received = Received()
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "home") as server,
        Client(recorded(streams(server, transport), received), elicitation_callback=approve) as client,
    ):

        async def call(name: str, **arguments: Any) -> Any:
            result = await client.call_tool(name, arguments)
            assert isinstance(result, CallToolResult)
            assert not result.is_error, result
            return result.structured_content

        async def say(text: str) -> None:
            content = [{"type": "text", "text": text}]
            await call("conversationSendMessage", conversation_id=conversation, content=content)

        tools = [tool.name for tool in (await client.list_tools()).tools]
        settings = {"approval-policy": "untrusted", "sandbox": "workspace-write", "cwd": str(server.work)}
        answer = await call("codex", prompt="go", **settings)
        conversation = (await call("conversationCreate", prompt="", cwd=str(server.work)))["conversation_id"]
        received.messages.clear()

        first = asyncio.create_task(call("conversationStream", conversation_id=conversation))
        await received.until("notifications/initial_state")
        await say("1")
        await received.until("task_complete")
        first.cancel()
        await asyncio.wait({first})
        await say("2")
        page: Any = {"seq": 0, "state": ""}
        while page["state"] != "idle":
            page = await call("conversationRead", conversation_id=conversation, after=page["seq"], wait_seconds=20)
        received.take_all()  # events that were sent before the server knew that the stream was cancelled
        last = positions_in(received.messages, conversation)[-1]
        again = asyncio.create_task(call("conversationStream", conversation_id=conversation, after=last))
        await received.until("notifications/initial_state")
        await say("3")
        await received.until("task_complete")
        logged = (await call("conversationRead", conversation_id=conversation, limit=1000))["events"]
        await call("conversationDelete", conversation_id=conversation)
        ended = await again

        assert (client.protocol_version, tools[:2]) == ("2026-07-28", ["codex", "codex-reply"])
        assert (answer["content"], (server.work / "made").exists()) == ("Done.", True)
        assert positions_in(received.messages, conversation) == [one["seq"] for one in logged]
        assert (ended["state"], ended["seq"] >= logged[-1]["seq"]) == ("deleted", True)
