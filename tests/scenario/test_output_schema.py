"""`output_schema`: the JSON Schema for the answers of one turn (`parley.models.answer_format`)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kit.clients.shared_home import Start
from kit.clients.wire_client import WireClient, speaking
from parley.client import Conversation, ToolFailed
from parley.testing import HOLD, ScriptedModel
from parley.testing.render import Api
from parley.wire.events import TaskComplete
from parley.wire.mcp import FULL_VERSION

SCHEMA: Final = {
    "type": "object",
    "properties": {"files": {"type": "array", "items": {"type": "string"}}},
    "required": ["files"],
    "additionalProperties": False,
}
ANSWER: Final = '{"files": []}'

MEMBERS: Final[dict[Api, dict[str, Any]]] = {
    "chat": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
        }
    },
    "responses": {"text": {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}}},
    "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
"""The members of a request that contain the schema."""


def schemas(model: ScriptedModel) -> list[bool]:
    """Return, for each request over the Chat Completions API, whether it contains the schema."""
    for request in model.requests:
        assert request.body.get("response_format") in (None, MEMBERS["chat"]["response_format"])
    return ["response_format" in request.body for request in model.requests]


@pytest.mark.promises("model.output-schema", "send.output-schema")
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_a_schema_is_in_the_requests_of_its_turn_only(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, version=FULL_VERSION, api=api) as client:
        conversation = await client.create()
        parley_model.says(ANSWER)
        await client.say(conversation, "one", output_schema=SCHEMA)
        await client.over(conversation)
        parley_model.says("Done.")
        await client.say(conversation, "two")
        await client.over(conversation)

        with_schema, without = (request.body for request in parley_model.requests)
        assert {name: with_schema[name] for name in MEMBERS[api]} == MEMBERS[api]
        assert not without.keys() & MEMBERS[api].keys()


@pytest.mark.promises("send.output-schema")
async def test_a_turn_that_continues_after_a_restart_keeps_its_schema(
    start: Start, parley_model: ScriptedModel
) -> None:
    first = await start()
    conversation = await first.create()
    parley_model.says("{", HOLD)
    await conversation.send("go", output_schema=SCHEMA)
    await parley_model.wait_until_held()
    first.close_stdin()
    await first.exit_code()
    parley_model.says(ANSWER)
    second = (await start()).client.conversation(conversation.id)
    await second.continue_turn()
    await until_idle(second)
    parley_model.says("Done.")
    await (await second.send("and now in words")).result()

    assert schemas(parley_model) == [True, True, False]


async def until_idle(conversation: Conversation) -> None:
    while (page := await conversation.read()).state != "idle":
        await conversation.read(after=page.seq, wait_seconds=1)


async def until_completed(conversation: Conversation, turns: int) -> None:
    page = await conversation.read()
    while sum(isinstance(one.msg, TaskComplete) for one in page.events) < turns:
        await conversation.read(after=page.seq, wait_seconds=1)
        page = await conversation.read()


@pytest.mark.promises("send.output-schema", "queue.settings")
async def test_a_queued_message_keeps_its_schema_and_a_joining_message_cannot_have_one(
    start: Start, parley_model: ScriptedModel
) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says("One", HOLD)
    turn = await conversation.send("go")
    await parley_model.wait_until_held()
    with pytest.raises(ToolFailed, match="A turn is running") as refused:
        await conversation.send("join", output_schema=SCHEMA)
    content = [{"type": "text", "text": "later"}]
    arguments = {"conversation_id": conversation.id, "content": content, "delivery": "queue"}
    await process.client.call_tool("conversationSendMessage", {**arguments, "output_schema": SCHEMA})
    parley_model.says(ANSWER)
    parley_model.release()
    await turn.result()
    await until_completed(conversation, 2)

    assert refused.value.code == "turn_is_running"
    assert schemas(parley_model) == [False, True]
    assert "join" not in str([event.msg for event in (await conversation.read()).events])


@pytest.mark.promises("send.output-schema")
async def test_a_message_that_joins_leaves_the_schema_of_the_turn(
    start: Start, parley_model: ScriptedModel
) -> None:
    conversation = await (await start()).create()
    parley_model.says("{", HOLD, "}")
    turn = await conversation.send("go", output_schema=SCHEMA)
    await parley_model.wait_until_held()
    await conversation.send("and faster", approval_policy="never")
    parley_model.says(ANSWER)
    parley_model.release()
    await turn.result()

    assert schemas(parley_model) == [True, True]


@pytest.mark.promises("send.output-schema")
async def test_a_branch_does_not_inherit_a_schema(start: Start, parley_model: ScriptedModel) -> None:
    conversation = await (await start()).create()
    parley_model.says(ANSWER)
    first = await conversation.send("go", output_schema=SCHEMA)
    await first.result()
    parley_model.says("Done.")
    await (await conversation.send("again", parent_message_id=first.message_id)).result()
    parley_model.says(ANSWER)
    await (await conversation.send("again", output_schema=SCHEMA)).result()

    assert schemas(parley_model) == [True, False, True]


@pytest.mark.promises("send.output-schema", "send.failure")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({}, "`output_schema` must not be empty"),
        ({"description": "x" * 65_536}, "`output_schema` has 65554 bytes, which is more than 65536"),
        ([], "expected a map (output_schema)"),
        ("{}", "expected a map (output_schema)"),
    ],
)
async def test_an_invalid_schema_changes_nothing(parley_model: ScriptedModel, schema: Any, why: str) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        failure = await failure_of(client, conversation, schema)
        state = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

    assert failure["status"] == "error"
    assert failure["message"].startswith("Failed to parse arguments for conversationSendMessage: ")
    assert failure["message"].endswith(why)
    assert (state["state"], parley_model.requests) == ("idle", [])


async def failure_of(client: WireClient, conversation: str, schema: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "go"}]
    sent = client.call(
        "conversationSendMessage", conversation_id=conversation, content=content, output_schema=schema
    )
    failure: dict[str, Any] = await client.value_of(sent)
    return failure


async def test_a_provider_that_refuses_the_schema_fails_the_turn_with_its_reason(
    start: Start, parley_model: ScriptedModel
) -> None:
    conversation = await (await start()).create()
    parley_model.fails(400, body="Invalid schema for response_format 'answer'")
    turn = await conversation.send("go", output_schema=SCHEMA)
    with pytest.raises(Exception, match="Invalid schema for response_format"):
        await turn.result()
