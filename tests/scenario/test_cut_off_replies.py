"""Responses that a provider truncates: the events for clients, the calls that run, and the next request."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from kit.clients.codex_calls import EVERY_API, events_in, speaking
from parley.testing import Call, Data, Says, ScriptedModel
from parley.testing.render import Api

WHOLE: Final = Call("shell", {"command": ["touch", "whole"]}, "c1")
HALF: Final = Call("shell", '{"command": ["touch", "half"]', "c2")
CUT_BY: Final[dict[Api, str]] = {"chat": "length", "responses": "max_output_tokens", "anthropic": "max_tokens"}
CUT_OFF_OUTPUT: Final = (
    "not run: the reply was cut off before the arguments of this call were complete ({}); make smaller calls"
)


def _cut_off(api: Api) -> Data:
    """Return the step with which a provider reports that it truncated the reply."""
    if api == "chat":
        return Data('{"choices": [{"delta": {}, "finish_reason": "length"}]}')
    if api == "anthropic":
        return Data('{"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}')
    response = {"id": "r", "incomplete_details": {"reason": "max_output_tokens"}}
    return Data(json.dumps({"type": "response.incomplete", "response": response}))


def _calls_and_outputs(api: Api, body: Any) -> list[tuple[str, str]]:
    """Return the calls of a request with their arguments, then the outputs."""
    if api == "responses":
        return [
            (item["call_id"], item.get("arguments", item.get("output")))
            for item in body["input"]
            if item["type"] in ("function_call", "function_call_output")
        ]
    if api == "anthropic":
        blocks = [block for message in body["messages"] for block in message["content"]]
        return [
            *((block["id"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"),
            *((block["tool_use_id"], block["content"]) for block in blocks if block["type"] == "tool_result"),
        ]
    found: list[tuple[str, str]] = []
    for message in body["messages"]:
        found += [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        if message["role"] == "tool":
            found.append((message["tool_call_id"], message["content"]))
    return found


def _notices(messages: list[Any]) -> list[str]:
    return [event["message"] for event in events_in(messages) if event["type"] == "background_event"]


@pytest.mark.promises("model.cut-off")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_call_that_was_cut_off_is_not_run_and_the_model_reads_so(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says("I write.", WHOLE, HALF, _cut_off(api))
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        made = {path.name for path in wire.work.iterdir()}

    assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Done"}]
    assert _notices(messages) == [f"The model's reply was cut off: {CUT_BY[api]}; calls not run: 1"]
    assert made == {"whole"}
    sent = dict(_calls_and_outputs(api, parley_model.requests[1].body)[-2:])
    assert sent["c2"] == CUT_OFF_OUTPUT.format(CUT_BY[api])
    assert ("c2", "{}") in _calls_and_outputs(api, parley_model.requests[1].body)


@pytest.mark.promises("model.cut-off")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_model_whose_calls_are_cut_off_again_and_again_ends_the_turn(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.default = Says((HALF, _cut_off(api)))
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    expected = f"the model's reply was cut off in the middle of a call, 3 times in a row: {CUT_BY[api]}"
    assert messages[-1]["result"]["error"] == expected
    assert len(parley_model.requests) == 3


@pytest.mark.promises("model.cut-off")
async def test_a_call_that_the_end_of_the_body_cut_off_is_not_run(parley_model: ScriptedModel) -> None:
    parley_model.cuts(HALF, how="end")
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert _notices(messages) == ["The model's reply was cut off: end of the stream; calls not run: 1"]


@pytest.mark.promises("model.cut-off")
async def test_a_call_without_a_name_that_was_cut_off_is_left_out(parley_model: ScriptedModel) -> None:
    piece = {"index": 0, "id": "c1", "function": {"arguments": ""}}
    parley_model.says("I", Data(json.dumps({"choices": [{"delta": {"tool_calls": [piece]}}]})), _cut_off("chat"))
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "I"
        wire.reply(2, "again")
        await wire.answer(2)

    roles = [message["role"] for message in parley_model.requests[1].body["messages"]]
    assert roles == ["system", "user", "user", "assistant", "user"]
    assert _calls_and_outputs("chat", parley_model.requests[1].body) == []
