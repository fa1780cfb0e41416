"""The data that a home stores for its conversations, and the data that it does not store."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from kit.clients.messages import initial_state, remains
from kit.clients.reading import until_state
from kit.clients.wire_client import WireClient, speaking
from kit.servers.http_server import HttpServer
from kit.servers.tool_servers import program
from kit.system.waiting import until
from parley.testing import Call, ScriptedModel
from parley.wire.ids import ConversationId
from parley.wire.mcp import PLAIN_VERSION

SECRET: Final = "a-header-that-nobody-writes-down"


async def listed(client: WireClient) -> list[str]:
    found = await client.value_of(client.call("conversationsList"))
    return [one["conversation_id"] for one in found["conversations"]]


async def spoken(client: WireClient, conversation: str, text: str) -> None:
    await client.say(conversation, text)
    await client.over(conversation)


def words_sent(model: ScriptedModel) -> list[str]:
    """Return the messages of the user and the agent in the last model request."""
    messages = [one for one in model.requests[-1].body["messages"] if one["role"] in ("user", "assistant")]
    return [one["content"] for one in messages if not one["content"].startswith("<")]


async def test_an_ephemeral_server_writes_nothing_and_shares_no_conversation(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with speaking(parley_model, home=home, arguments=["--ephemeral"]) as client:
        conversation = await client.create()
        await spoken(client, conversation, "go")
        left = [path.name for path in home.rglob("*")]
        async with speaking(parley_model, home=home) as other:
            known_to_others = await listed(other)
        _, snapshot = await client.open_stream(conversation)

        assert (left, known_to_others, await listed(client)) == (["config.toml"], [], [conversation])
        assert snapshot == initial_state(conversation, *remains("chat", "Done"))


@pytest.mark.promises("keeping.loaded")
async def test_eviction_of_a_conversation_is_not_visible_to_clients(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config="[store]\nidle_seconds = 0\n") as server:
        client = await server.client(version=PLAIN_VERSION)
        conversation = await client.create()
        await client.say(conversation, "first")
        await until_state(client, conversation, "idle")
        before = await client.call("conversationStatus", conversation_id=conversation)
        await until(lambda: server.server.conversations.loaded(ConversationId(conversation)) is None)
        after = await client.call("conversationStatus", conversation_id=conversation)
        async with client.stream() as stream:
            await client.call("conversationStream", conversation_id=conversation)
            snapshot = await stream.wait_for_message("notifications/initial_state")
            await client.say(conversation, "second")
            await stream.wait_for_message("task_complete")

        assert after == before
        assert snapshot["params"]["_meta"]["conversationId"] == conversation
        assert [one["msg"] for one in snapshot["params"]["initial_state"]["events"]] == remains("chat", "Done")
        assert words_sent(parley_model) == ["first", "Done", "second"]


@pytest.mark.promises("keeping.settings")
async def test_requested_settings_are_kept_and_the_secrets_among_them_are_not(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    asked = {
        "model_providers.chat.http_headers": {"x-team": SECRET},
        "model_providers.chat.query_params": {"v": SECRET},
        "shell_environment_policy.set": {"HIDDEN": SECRET},
        "notify": ["true", SECRET],
        "show_raw_agent_reasoning": True,
    }
    command = Call("shell", {"command": ["bash", "-c", "echo ${HIDDEN:-unset}"]}, call_id="c1")
    async with speaking(parley_model, home=home) as client:
        conversation = await client.create(
            model="another-model", config=asked, approval_policy="never", sandbox="danger-full-access"
        )
        await spoken(client, conversation, "first")
    async with speaking(parley_model, home=home) as client:
        parley_model.says(command)
        await spoken(client, conversation, "second")
        files = [path for path in home.rglob("*") if path.is_file()]
        found = [path.name for path in files if SECRET.encode() in path.read_bytes()]
        exported = await exporting(home, conversation)

    assert [one.headers.get("x-team") for one in parley_model.requests] == [SECRET, None, None]
    assert [one.path.endswith(f"?v={SECRET}") for one in parley_model.requests] == [True, False, False]
    assert [one.body["model"] for one in parley_model.requests] == ["another-model"] * 3
    assert "unset" in parley_model.requests[-1].body["messages"][-1]["content"]
    assert ("parley.db" in [path.name for path in files], found) == (True, [])
    assert (SECRET in exported, '"show_raw_agent_reasoning":true' in exported) == (False, True)


async def exporting(home: Path, conversation: str) -> str:
    """Return the output of `parley export`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "export", conversation),
        env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
    )
    return (await process.communicate())[0].decode()


@pytest.mark.promises("keeping.tool-servers")
async def test_a_tool_server_of_a_call_is_not_started_again_without_its_secrets(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    server = program("x", mark=SECRET)
    asked = {"command": server.command, "args": list(server.args), "env": {"A": SECRET}}
    far = {"url": f"http://127.0.0.1:9/mcp?key={SECRET}"}
    async with speaking(parley_model, home=home) as client:
        conversation = await client.create(config={"mcp_servers.x": asked, "mcp_servers.far": far})
        await spoken(client, conversation, "first")
    async with speaking(parley_model, home=home) as client:
        await spoken(client, conversation, "second")
        files = [path for path in home.rglob("*") if path.is_file()]
        found = [path.name for path in files if SECRET.encode() in path.read_bytes()]
        read = await client.value_of(client.call("conversationRead", conversation_id=conversation))
    config = f"[mcp_servers.x]\nargs = {json.dumps(list(server.args))}\nenv = {{ A = 'mine' }}\n"
    async with speaking(parley_model, home=home, config=config) as client:
        await spoken(client, conversation, "third")

    offered = [
        len([one for one in request.body["tools"] if one["function"]["name"].startswith("x__")])
        for request in parley_model.requests
    ]
    assert [number > 0 for number in offered] == [True, False, True]
    errors = [one["msg"]["message"] for one in read["events"] if one["msg"]["type"] == "error"]
    assert sorted(one for one in errors if "not stored" in one) == [
        f"MCP client for `{name}` failed to start: secrets of an earlier call are not stored ({keys}); "
        "put this tool server into config.toml"
        for name, keys in (("far", "`url.query`"), ("x", "`args`, `env.A`"))
    ]
    assert found == []
