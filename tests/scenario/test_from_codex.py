"""Clients of `codex mcp-server` that use Parley: the arguments and answers of the latest releases of Codex."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.messages import APIS, turn_value
from kit.clients.wire_client import WireClient, speaking
from parley.agent.compaction import INSTRUCTIONS
from parley.agent.instructions import BASE_INSTRUCTIONS
from parley.client import ServerProcess, connect
from parley.testing import ScriptedModel
from parley.testing.home import MODEL, Home
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

VERSIONS: Final = (PLAIN_VERSION, FULL_VERSION)
NAMES: Final = ("threadId", "conversationId", "sessionId", "thread_id", "conversation_id", "session-id")

DEVELOPER: Final = "Ask before you change a test."
LONG: Final = "a" * 60_000
"""A text that is larger than the window of `WINDOW`."""
WINDOW: Final = "model_context_window = 10000"


async def result_of(client: WireClient, tool: str, **arguments: Any) -> Any:
    return (await client.until_answer(client.call(tool, **arguments)))[-1]["result"]


async def begun(client: WireClient, **arguments: Any) -> str:
    """Run a turn of a new conversation with `codex`.

    Return the id of the conversation, which events contain at every version.
    """
    messages = await client.until_answer(client.call("codex", prompt="one", cwd=str(client.work), **arguments))
    events = [message["params"]["msg"] for message in messages if "msg" in message.get("params", {})]
    return str(next(event["session_id"] for event in events if event["type"] == "session_configured"))


@pytest.mark.promises("reply.names")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_reply_names_its_conversation_in_any_of_three_ways(
    parley_model: ScriptedModel, version: str
) -> None:
    async with speaking(parley_model, version=version) as client:
        conversation = await begun(client)
        for name in NAMES:
            result = await result_of(client, "codex-reply", prompt="two", **{name: conversation})

            assert result["content"] == [{"type": "text", "text": "Done"}]
        assert len(parley_model.requests) == 1 + len(NAMES)


@pytest.mark.promises("reply.names")
async def test_two_names_for_different_conversations_are_refused(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        one, other = await begun(client), await begun(client)
        both = await result_of(client, "codex-reply", prompt="two", threadId=one, sessionId=other)
        twice = await result_of(client, "codex-reply", prompt="two", threadId=one, conversationId=one)

        assert "`threadId` and `sessionId` are one argument with different values" in both["content"][0]["text"]
        assert twice["content"] == [{"type": "text", "text": "Done"}]


@pytest.mark.promises("reply.names")
async def test_the_schema_names_one_of_them(parley_model: ScriptedModel) -> None:
    for version, name in zip(VERSIONS, ("sessionId", "threadId"), strict=True):
        async with speaking(parley_model, version=version) as client:
            tools = (await client.result_of(client.request("tools/list", {})))["tools"]
            (schema,) = (tool["inputSchema"] for tool in tools if tool["name"] == "codex-reply")

            assert (sorted(schema["properties"]), sorted(schema["required"])) == (
                ["prompt", name],
                ["prompt", name],
            )


@pytest.mark.promises("codex.structured")
async def test_results_have_the_names_of_every_release(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        first = await result_of(client, "codex", prompt="one", cwd=str(client.work))
        conversation = first["structuredContent"]["threadId"]
        second = await result_of(client, "codex-reply", prompt="two", threadId=conversation)
        tools = (await client.result_of(client.request("tools/list", {})))["tools"]

        assert [first["structuredContent"], second["structuredContent"]] == [turn_value(conversation, "Done")] * 2
        for tool in tools[:2]:
            names = ["code", "content", "message", "reason", "sessionId", "threadId", "workspace"]
            assert sorted(tool["outputSchema"]["properties"]) == names


@pytest.mark.promises("model.developer")
@pytest.mark.parametrize("api", APIS)
async def test_developer_instructions_are_sent_besides_the_base_instructions(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, config=f"developer_instructions = '{DEVELOPER}'", api=api) as client:
        conversations = [await begun(client), await begun(client, **{"developer-instructions": "No tests."})]
        await begun(client, **{"developer-instructions": ""})
        await result_of(client, "codex-reply", prompt="two", sessionId=conversations[1])

    first, second, third, fourth = (sent(request.body) for request in parley_model.requests)
    if api == "chat":
        assert first[0] == {"role": "system", "content": f"{BASE_INSTRUCTIONS}\n\n{DEVELOPER}"}
        assert second[0] == fourth[0] == {"role": "system", "content": f"{BASE_INSTRUCTIONS}\n\nNo tests."}
        assert third[0] == {"role": "system", "content": BASE_INSTRUCTIONS}
    else:
        assert first[0] == developer_message(DEVELOPER)
        assert second[0] == fourth[0] == developer_message("No tests.")
        assert third[0]["role"] == "user"
        assert {request.body["instructions"] for request in parley_model.requests} == {BASE_INSTRUCTIONS}


def sent(request: Any) -> Any:
    return request["messages"] if "messages" in request else request["input"]


def developer_message(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": None, "role": "developer", "content": content}


@pytest.mark.promises("model.developer")
async def test_developer_instructions_hold_in_another_process(parley_model: ScriptedModel, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with speaking(parley_model, home=home) as client:
        conversation = await begun(client, **{"developer-instructions": DEVELOPER})
    async with speaking(parley_model, home=home) as client:
        await result_of(client, "codex-reply", prompt="two", threadId=conversation)

    assert sent(parley_model.requests[1].body)[0]["content"].endswith(f"\n\n{DEVELOPER}")


@pytest.mark.promises("context.prompt")
@pytest.mark.parametrize(
    ("config", "arguments", "instructions"),
    [
        (WINDOW, {}, INSTRUCTIONS),
        (WINDOW, {"compact-prompt": "Sum up."}, "Sum up."),
        (f"{WINDOW}\ncompact_prompt = 'In a word.'", {}, "In a word."),
        (f"{WINDOW}\ncompact_prompt = 'In a word.'", {"compact-prompt": "Sum up."}, "Sum up."),
        (f"{WINDOW}\ncompact_prompt = 'In a word.'", {"compact-prompt": ""}, INSTRUCTIONS),
    ],
)
async def test_a_summary_is_requested_with_the_prompt_of_the_call_or_of_the_settings(
    parley_model: ScriptedModel, config: str, arguments: dict[str, str], instructions: str
) -> None:
    async with speaking(parley_model, config=config) as client:
        parley_model.says(LONG)
        conversation = await begun(client, **arguments)
        await result_of(client, "codex-reply", prompt="two", sessionId=conversation)

    _, summary, _ = (sent(request.body) for request in parley_model.requests)
    assert summary[0] == {"role": "system", "content": instructions}
    assert summary[1]["content"].startswith("<record>")


@pytest.mark.promises("cli.mcp-server")
async def test_the_server_starts_under_the_name_that_it_had_in_codex(parley_model: ScriptedModel) -> None:
    home = Home(parley_model)
    home.open()
    try:
        command = (sys.executable, "-m", "parley", "mcp-server", "-c", f"model={MODEL}")
        async with connect(ServerProcess(command, env=home.environ, cwd=home.work, stderr=home.stderr)) as client:
            result = await client.codex("go")

        assert result.content[0].text == "Done"
    finally:
        home.close()
