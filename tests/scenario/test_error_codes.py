"""Error codes and the reasons for the ends of turns, which programs read instead of texts."""

from __future__ import annotations

from typing import Any

import pytest

from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

INTERRUPTED = " Turn interrupted"


async def ends_of_turns(client: WireClient, model: ScriptedModel) -> list[Any]:
    """Return the last events of turns that were completed, failed and interrupted, both live and in a snapshot."""
    conversation = await client.create()
    await client.value_of(client.stream(conversation, event_meta=False))
    live: list[Any] = []
    model.says("Done")
    client.message(conversation, "one")
    live += await client.until_method("task_complete")
    model.fails(400, body="no")
    client.message(conversation, "two")
    live += await client.until_method("task_complete")
    model.says("Half", HOLD)
    client.message(conversation, "three")
    live += await client.until_method("agent_message_delta")
    client.call("conversationInterrupt", conversation_id=conversation)
    live += await client.until_method("error")
    ends = [one["params"]["msg"] for one in live if one.get("method") in ("error", "task_complete")]
    await client.meanwhile()
    events = (await client.value_of(client.call("conversationRead", conversation_id=conversation)))["events"]
    assert [one["msg"] for one in events if one["msg"]["type"] in ("error", "task_complete")] == ends
    return ends


@pytest.mark.promises("errors.reason")
async def test_the_end_of_a_turn_says_why_in_a_field(parley_model: ScriptedModel) -> None:
    refused = "unexpected status 400 Bad Request: no"
    async with speaking(parley_model, version=FULL_VERSION) as client:
        assert await ends_of_turns(client, parley_model) == [
            {"type": "task_complete", "last_agent_message": "Done"},
            {"type": "error", "message": refused, "reason": "failed", "code": "unexpected_status"},
            {"type": "task_complete", "last_agent_message": None},
            {"type": "error", "message": INTERRUPTED, "reason": "interrupted", "principal": "local"},
        ]
    async with speaking(parley_model, version=PLAIN_VERSION) as client:
        assert await ends_of_turns(client, parley_model) == [
            {"type": "task_complete", "last_agent_message": "Done"},
            {"type": "error", "message": refused},
            {"type": "task_complete", "last_agent_message": None},
            {"type": "error", "message": INTERRUPTED},
        ]


@pytest.mark.promises("errors.reason")
async def test_the_result_of_a_codex_call_says_why_the_turn_ended(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("Done")
        done = (await client.until_answer(client.call("codex", prompt="go")))[-1]["result"]["structuredContent"]
        parley_model.fails(400, body="no")
        reply = client.call("codex-reply", threadId=done["threadId"], prompt="go")
        failed = (await client.until_answer(reply))[-1]["result"]

        assert (done["reason"], "code" in done) == ("done", False)
        value = failed["structuredContent"]
        assert (failed["isError"], value["reason"], value["code"]) == (True, "failed", "unexpected_status")


@pytest.mark.promises("errors.codes")
@pytest.mark.parametrize("version", [FULL_VERSION, PLAIN_VERSION])
async def test_errors_have_codes_at_the_newest_version_only(parley_model: ScriptedModel, version: str) -> None:
    async with speaking(parley_model, version=version) as client:
        unknown = (await client.until_answer(client.call("nothing")))[-1]["result"]
        method = (await client.until_answer(client.request("nothing", {})))[-1]["error"]
        params = (await client.until_answer(client.request("tools/call", {})))[-1]["error"]
        conversation = await client.create()
        client.stream(conversation)
        client.stream(conversation)
        ended = (await client.until_method("notifications/stream_disconnected"))[-1]["params"]

        codes = [
            unknown.get("structuredContent", {}).get("code"),
            method.get("data", {}).get("code"),
            params.get("data", {}).get("code"),
            ended.get("code"),
        ]
        expected = ["unknown_tool", "method_not_found", "invalid_params", "taken_over"]
        assert codes == (expected if version == FULL_VERSION else [None] * 4)
