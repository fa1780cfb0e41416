"""The features for coding agents that start Parley as a tool server. The name in `initialize` identifies them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Unpack

import pytest

from kit.clients.approving import ASKS_FIRST
from kit.clients.reading import until_state
from kit.clients.requests import ALL_TOOL_NAMES, TOOL_NAMES
from kit.clients.shell_turns import shell
from kit.clients.wire_client import WireClient
from kit.servers.patched_program import LONG_GRACE
from parley.client import Approval
from parley.server.hosts import KNOWN_HOSTS
from parley.testing import HOLD, ParleyProcess, RawParley, ScriptedModel
from parley.testing.home import ServerOptions
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

TIMEOUTS: Final = {
    "claude-code": "McpError: MCP error -32001: Request timed out",
    "codex-mcp-client": "MCP response future dropped",
    "opencode": "McpError: MCP error -32001: Request timed out",
    "gemini-cli-mcp-client": "McpError: MCP error -32001: Request timed out",
}
"""The cancellation reasons that each host was observed to give when its timeout expired."""

HOST: Final = "gemini-cli-mcp-client"


@asynccontextmanager
async def host(
    model: ScriptedModel,
    name: str = HOST,
    *,
    version: str = PLAIN_VERSION,
    capabilities: object = None,
    **options: Unpack[ServerOptions],
) -> AsyncIterator[WireClient]:
    """Start a server that is initialized by a client of this name."""
    async with RawParley(model, **options) as raw:
        client = WireClient(raw)
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": name, "version": "1"},
        }
        client.initialize_result = await client.result_of(client.request("initialize", params))
        yield client


async def tools_of(client: WireClient) -> dict[str, Any]:
    listed = await client.result_of(client.request("tools/list", {}))
    return {tool["name"]: tool for tool in listed["tools"]}


def call(client: WireClient, name: str, **arguments: object) -> int:
    if name == "codex":
        arguments = {"cwd": str(client.work), **arguments}
    return client.request("tools/call", {"name": name, "arguments": arguments})


# --- offered tools -------------------------------------------------------------------------------


@pytest.mark.promises("hosts.known")
@pytest.mark.parametrize("name", KNOWN_HOSTS)
async def test_a_known_host_gets_the_additions_at_an_older_version(parley_model: ScriptedModel, name: str) -> None:
    async with host(parley_model, name) as client:
        tools = await tools_of(client)

        assert client.initialize_result["protocolVersion"] == PLAIN_VERSION
        assert client.initialize_result["capabilities"] == {"tools": {"listChanged": True}}
        assert client.initialize_result["instructions"]
        assert all(tool["annotations"] and tool["outputSchema"] for tool in tools.values())
        assert [*tools] == [tool for tool in ALL_TOOL_NAMES if tool != "approvalAnswer"]


@pytest.mark.promises("hosts.known")
@pytest.mark.parametrize("name", ["", "Claude-Code", "claude-code ", "some-editor"])
async def test_an_unknown_client_keeps_the_plain_shapes(parley_model: ScriptedModel, name: str) -> None:
    async with host(parley_model, name) as client:
        tools = await tools_of(client)
        result = (await client.until_answer(call(client, "codex", prompt="go")))[-1]["result"]

        assert "instructions" not in client.initialize_result
        assert [*tools] == TOOL_NAMES
        assert not any(tool.keys() & {"annotations", "outputSchema"} for tool in tools.values())
        assert result == {"content": [{"type": "text", "text": "Done"}]}


@pytest.mark.promises("hosts.features")
async def test_the_setting_wins_over_the_table(parley_model: ScriptedModel) -> None:
    async with host(parley_model, config='[mcp]\nfeatures = "plain"\n') as client:
        assert "instructions" not in client.initialize_result
        assert [*await tools_of(client)] == [name for name in TOOL_NAMES if name != "approvalAnswer"]
    async with host(parley_model, "some-editor", config='[mcp]\nfeatures = "full"\n') as client:
        assert "instructions" in client.initialize_result
        assert "annotations" in (await tools_of(client))["codex"]


@pytest.mark.promises("hosts.features")
async def test_a_broken_configuration_does_not_keep_a_host_from_connecting(parley_model: ScriptedModel) -> None:
    async with host(parley_model) as client:
        (client.raw.home / "config.toml").write_text("[mcp\n")
    async with RawParley(parley_model, home=client.raw.home, checked=False) as raw:
        (raw.home / "config.toml").write_text("[mcp\n")
        again = WireClient(raw)
        await again.initialize(PLAIN_VERSION)
        assert again.initialize_result["serverInfo"]["name"] == "parley"


# --- results -----------------------------------------------------------------------------------


@pytest.mark.promises("hosts.results", "hosts.no-events")
async def test_a_result_says_how_to_continue_and_no_event_is_sent(parley_model: ScriptedModel) -> None:
    parley_model.deltas(500)
    async with host(parley_model) as client:
        messages = await client.until_answer(call(client, "codex", prompt="go"))

        assert len(messages) == 1  # only the answer
        result = messages[0]["result"]
        agent, notes = (block["text"] for block in result["content"])
        thread = result["structuredContent"]["threadId"]
        assert agent == "abcdefgh" * 500
        how = f'To continue it, call `codex-reply` with `threadId` "{thread}" and a `prompt`.'
        assert notes == f"Conversation {thread}. {how}"

        again = await client.result_of(call(client, "codex-reply", threadId=thread, prompt="more"))
        assert [block["text"] for block in again["content"]] == ["Done", notes]


@pytest.mark.promises("hosts.results")
async def test_a_failure_names_the_conversation_too(parley_model: ScriptedModel) -> None:
    parley_model.fails(400, body="no such model")
    async with host(parley_model) as client:
        result = await client.result_of(call(client, "codex", prompt="go"))

        assert result["isError"] is True
        text, notes = (block["text"] for block in result["content"])
        assert "400" in text
        assert result["structuredContent"]["threadId"] in notes


@pytest.mark.promises("hosts.no-events")
async def test_a_stream_of_a_host_sends_nothing_and_a_stream_as_log_messages_does(
    parley_model: ScriptedModel,
) -> None:
    async with host(parley_model) as client:
        create = call(client, "conversationCreate", prompt="", model="m", cwd=str(client.work))
        conversation = (await client.result_of(create))["structuredContent"]["conversation_id"]
        await client.result_of(call(client, "conversationStream", conversation_id=conversation))
        content = [{"type": "text", "text": "go"}]
        call(client, "conversationSendMessage", conversation_id=conversation, content=content)
        read = call(client, "conversationRead", conversation_id=conversation, after=2, wait_seconds=50)
        messages = await client.until_answer(read)
        assert not any("method" in message for message in messages)

        messages = await client.until_answer(
            call(client, "conversationStream", **{"conversation_id": conversation, "as": "log"})
        )
        logged = await client.read()
        assert logged["method"] == "notifications/message"
        assert logged["params"]["data"]["method"] == "notifications/initial_state"


# --- approvals ---------------------------------------------------------------------------------


@pytest.mark.promises("approvals.when-nobody")
async def test_an_approval_that_no_client_can_receive_is_denied_at_once(parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    async with host(parley_model) as client:
        result = await client.result_of(call(client, "codex", prompt="go", **ASKS_FIRST))

        notes = result["content"][1]["text"]
        assert notes.startswith("Not done, because no client could be asked: run `touch a` in `")
        assert result["structuredContent"]["content"].startswith("Done\n\nNot done, because no client")
        output = parley_model.requests[1].body["messages"][-1]["content"]
        assert output == "exec command rejected by user: nobody could be asked"


@pytest.mark.promises("approvals.when-nobody")
@pytest.mark.parametrize("version", [PLAIN_VERSION, FULL_VERSION])
async def test_the_denial_at_once_holds_for_every_client(parley_model: ScriptedModel, version: str) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    async with host(parley_model, "some-editor", version=version) as client:
        result = (await client.until_answer(call(client, "codex", prompt="go", **ASKS_FIRST)))[-1]["result"]
        assert result["content"] == [{"type": "text", "text": "Done"}]


@pytest.mark.child_process
@pytest.mark.promises("approvals.when-nobody")
@pytest.mark.parametrize("when_nobody", [pytest.param("deny", marks=pytest.mark.long), "return"])
async def test_a_server_alone_in_its_home_waits_for_no_followers(
    parley_model: ScriptedModel, tmp_path: Path, when_nobody: str
) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    home, config = tmp_path / "home", f'[approvals]\nwhen_nobody = "{when_nobody}"\n'
    async with host(parley_model, home=home, config=config, program=LONG_GRACE) as client:
        async with ParleyProcess(parley_model, home=home, config=config) as killed:
            await (await killed.client.create(cwd=client.work)).read()
            killed.process.kill()
            await killed.process.wait()

        result = await client.result_of(call(client, "codex", prompt="go", **ASKS_FIRST))

        assert "run `touch a`" in str(result["content"])


@pytest.mark.promises("approvals.when-nobody")
@pytest.mark.parametrize("when_nobody", ["deny", pytest.param("return", marks=pytest.mark.long)])
async def test_a_client_of_another_server_has_time_to_follow_a_call_and_be_asked(
    parley_model: ScriptedModel, tmp_path: Path, when_nobody: str
) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    home, config = tmp_path / "home", f'[approvals]\nwhen_nobody = "{when_nobody}"\n'
    async with (
        host(
            parley_model, "some-editor", version=FULL_VERSION, program=LONG_GRACE, home=home, config=config
        ) as client,
        ParleyProcess(parley_model, on_approval=Approval.approve, home=home, config=config) as other,
    ):
        await (await other.client.create(cwd=client.work)).read()
        codex = call(client, "codex", prompt="go", **ASKS_FIRST)
        while (await client.read())["method"] != "exec_approval_request":
            pass

        (asking,) = [one for one in (await other.client.list()).conversations if one.state == "asking"]
        async with other.client.conversation(asking.conversation_id).stream():
            await client.until_answer(codex)

        assert (client.work / "a").exists()


@pytest.mark.promises("approvals.when-nobody")
async def test_an_approval_is_returned_and_can_be_answered(parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    config = '[approvals]\nwhen_nobody = "return"\nmodel_may_answer = true\n'
    async with host(parley_model, config=config) as client:
        result = await client.result_of(call(client, "codex", prompt="go", **ASKS_FIRST))

        text = result["content"][0]["text"]
        assert "isError" not in result
        assert text.startswith("The agent waits for an approval: run `touch a` in `")
        approval = re.search(r'`approvalAnswer` with `approval_id` "([0-9a-f-]{36})"', text)
        assert approval is not None
        thread = result["structuredContent"]["threadId"]
        status = await client.result_of(call(client, "conversationStatus", conversation_id=thread))
        assert status["structuredContent"]["state"] == "asking"

        await client.result_of(call(client, "approvalAnswer", approval_id=approval[1], decision="approved"))
        again = await client.result_of(call(client, "codex-reply", threadId=thread, prompt="go on"))
        assert again["content"][0]["text"] == "Done"
        assert (client.work / "a").exists()


@pytest.mark.promises("hosts.results")
async def test_a_result_names_only_so_much_of_what_was_not_done(parley_model: ScriptedModel) -> None:
    parley_model.says(*(shell(f"c{number}", "touch", "x" * 10_000) for number in range(30)))
    async with host(parley_model) as client:
        result = await client.result_of(call(client, "codex", prompt="go", **ASKS_FIRST))

    notes = result["content"][1]["text"]
    assert notes.count("Not done, because no client could be asked: run `touch xxx") == 20
    assert "Not done for the same reasons: 10 more." in notes
    assert len(notes) < 20_000


@pytest.mark.promises("hosts.approvals")
@pytest.mark.parametrize("features", ["auto", "plain", "full"])
async def test_the_model_of_a_host_cannot_answer_unless_the_user_allows_it(
    parley_model: ScriptedModel, features: str
) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    settings = f'[approvals]\nwhen_nobody = "return"\n[mcp]\nfeatures = "{features}"\n'
    async with host(parley_model, config=settings) as client:
        # The settings that a client chooses for a conversation do not enable the tool.
        config = {"approvals.model_may_answer": True}
        codex = call(client, "codex", prompt="go", config=config, **ASKS_FIRST)
        result = (await client.until_answer(codex))[-1]["result"]
        found = re.search(r"a person has to answer .* \(approval ([0-9a-f-]{36})\)", result["content"][0]["text"])
        assert found is not None

        answer = call(client, "approvalAnswer", approval_id=found[1], decision="approved")
        refused = (await client.until_answer(answer))[-1]["result"]

        assert refused["isError"] is True
        assert "approvals.model_may_answer" in refused["content"][0]["text"]
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("hosts.dismissed")
@pytest.mark.parametrize("action", ["cancel", "decline"])
async def test_a_dismissed_approval_is_a_denial_that_the_result_names(
    parley_model: ScriptedModel, action: str
) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    async with host(parley_model, capabilities={"elicitation": {}}) as client:
        codex = call(client, "codex", prompt="go", **ASKS_FIRST)
        approval = await client.read()
        assert approval["method"] == "elicitation/create"
        client._send({"jsonrpc": "2.0", "id": approval["id"], "result": {"action": action}})

        result = await client.result_of(codex)
        assert result["content"][0]["text"] == "Done"
        assert "Not done, because the client dismissed the question: run `touch a`" in result["content"][1]["text"]
        output = parley_model.requests[1].body["messages"][-1]["content"]
        assert output == "exec command rejected by user: the client dismissed the question"


# --- timeouts ----------------------------------------------------------------------------------


@pytest.mark.promises("hosts.timeouts")
@pytest.mark.parametrize("name", KNOWN_HOSTS)
async def test_a_timeout_ends_the_waiting_and_not_the_turn(parley_model: ScriptedModel, name: str) -> None:
    parley_model.says("slow ", HOLD, "but complete")
    async with host(parley_model, name) as client:
        codex = call(client, "codex", prompt="go")
        await parley_model.wait_until_held()
        for reason in (TIMEOUTS[name], "AbortError: The operation was aborted."):  # opencode sends both
            cancelled = {"requestId": codex, "reason": reason}
            client._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        listed = await client.result_of(call(client, "conversationsList"))  # handled after the cancellations
        (one,) = listed["structuredContent"]["conversations"]
        assert one["state"] == "running"
        parley_model.release()
        thread = one["conversation_id"]
        await until_state(client, thread, "idle")

        reply = await client.result_of(call(client, "codex-reply", threadId=thread, prompt="and?"))

        assert reply["content"][0]["text"] == "Done"
        assert "That turn ended with:\nslow but complete" in reply["content"][1]["text"]
        assert "slow but complete" in reply["structuredContent"]["content"]
        assert await client.meanwhile() == []  # the call that timed out is never answered


@pytest.mark.promises("hosts.timeouts")
async def test_a_cancellation_for_another_reason_interrupts_the_turn(parley_model: ScriptedModel) -> None:
    parley_model.says("slow ", HOLD)
    async with host(parley_model) as client:
        codex = call(client, "codex", prompt="go")
        await parley_model.wait_until_held()
        cancelled = {"requestId": codex, "reason": "the user pressed escape"}
        client._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})

        await parley_model.wait_abandoned()


@pytest.mark.promises("cancel.send")
async def test_the_version_of_a_host_decides_what_cancelling_an_answered_send_does(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("slow ", HOLD)
    async with host(parley_model, "opencode", version=PLAIN_VERSION) as client:
        sent = client.message(await client.create(), "go")
        await client.result_of(sent)
        await parley_model.wait_until_held()

        client.cancel(sent)

        await parley_model.wait_abandoned()


@pytest.mark.promises("hosts.timeouts")
@pytest.mark.parametrize("version", [PLAIN_VERSION, FULL_VERSION])
async def test_a_timeout_of_a_send_leaves_its_turn_running(parley_model: ScriptedModel, version: str) -> None:
    async with host(parley_model, version=version) as client:
        conversation = await client.create()
        with client.at_once():
            cancelled = {"requestId": client.message(conversation, "go"), "reason": TIMEOUTS[HOST]}
            client._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        ended: list[str] = []
        seq = 0
        while not ended:
            read = client.call("conversationRead", conversation_id=conversation, after=seq, wait_seconds=50)
            page = (await client.until_answer(read))[-1]["result"]["structuredContent"]
            seq = page["seq"]
            ended = [
                one["msg"]["type"] for one in page["events"] if one["msg"]["type"] in ("task_complete", "error")
            ]

        assert ended == ["task_complete"]
