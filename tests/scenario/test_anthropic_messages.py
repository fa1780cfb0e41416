"""The Anthropic Messages API: what goes back to the model, and how the stop reasons end a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.codex_calls import events_in, speaking
from parley.testing import Call, Data, Reasoning, ScriptedModel, Usage
from parley.testing.dialects import signature_of

THOUGHT: Final = "I look twice."
CALLS: Final = (Call("look", {"at": "one"}, "c1"), Call("look", {"at": "two"}, "c2"))


def _stopped(reason: str, **details: Any) -> Data:
    return Data(
        json.dumps({"type": "message_delta", "delta": {"stop_reason": reason, "stop_details": details or None}})
    )


@pytest.mark.promises("model.anthropic-reasoning", "model.history", "model.usage")
async def test_two_calls_and_the_reasoning_go_back_unchanged_even_after_a_restart(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says(Reasoning(THOUGHT), "Looking.", *CALLS, Usage(input_tokens=50, cached_input_tokens=40))
    async with speaking(parley_model, api="anthropic", home=tmp_path) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
    session = wire.sessions[0]
    async with speaking(parley_model, api="anthropic", home=tmp_path) as again:
        again.sessions.append(session)
        again.reply(1, "again")
        assert await again.text(1) == "Done"

    spoken = [
        {"type": "thinking", "thinking": THOUGHT, "signature": signature_of(THOUGHT)},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "one"}},
        {"type": "tool_use", "id": "c2", "name": "look", "input": {"at": "two"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": one, "content": "unsupported call: look"} for one in ("c1", "c2")
    ]
    second = parley_model.requests[1].body["messages"]
    assert second[1:] == [{"role": "assistant", "content": spoken}, {"role": "user", "content": results}]
    assert parley_model.requests[2].body["messages"] == [
        *second,
        {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
        {"role": "user", "content": [{"type": "text", "text": "again"}]},
    ]
    events = events_in(messages)
    assert {"type": "agent_reasoning", "text": THOUGHT} in events
    counts = [event for event in events if event["type"] == "token_count"]
    assert (counts[0]["input_tokens"], counts[0]["cached_input_tokens"]) == (50, 40)


@pytest.mark.promises("model.anthropic-ends", "failures.messages")
async def test_a_refusal_ends_the_turn_with_its_explanation_and_runs_no_call(parley_model: ScriptedModel) -> None:
    touch = Call("shell", {"command": ["touch", "made"]}, "c1")
    parley_model.says("I will", touch, _stopped("refusal", category="cyber", explanation="Not this."))
    async with speaking(parley_model, api="anthropic") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        assert list(wire.work.iterdir()) == []
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    assert messages[-1]["result"]["error"] == "the model refused the request (cyber): Not this."
    assert [event["type"] for event in events_in(messages)][-3:] == ["token_count", "error", "task_complete"]


@pytest.mark.promises("model.anthropic-ends")
async def test_a_paused_response_is_sent_back_and_continues(parley_model: ScriptedModel) -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "cheese"}}
    start = {"type": "content_block_start", "index": 1, "content_block": search}
    stop = {"type": "content_block_stop", "index": 1}
    parley_model.says("Searching.", Data(json.dumps(start)), Data(json.dumps(stop)), _stopped("pause_turn"))
    parley_model.says("Found.")
    async with speaking(parley_model, api="anthropic") as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Found."

    assert parley_model.requests[1].body["messages"][1:] == [
        {"role": "assistant", "content": [{"type": "text", "text": "Searching."}, search]}
    ]


@pytest.mark.promises("model.anthropic-ends")
async def test_a_response_that_fills_the_context_window_compacts_the_history(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, api="anthropic") as wire:
        wire.codex(1, "word " * 2_000)
        await wire.answer(1)
        parley_model.says("cut", _stopped("model_context_window_exceeded"))
        parley_model.says("A summary.")
        parley_model.says("Fine.")
        wire.reply(2, "again")
        assert await wire.text(2) == "Fine."

    assert "A summary." in json.dumps(parley_model.requests[-1].body)


@pytest.mark.promises("failures.requests")
async def test_an_error_event_in_mid_stream_is_retried_by_the_turn(parley_model: ScriptedModel) -> None:
    parley_model.says(
        "par", Data('{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}')
    )
    async with speaking(parley_model, api="anthropic", stream_max_retries=1) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Done"}]
    notices = [event["message"] for event in events_in(messages) if event["type"] == "background_event"]
    assert notices[0].startswith("stream error: stream disconnected before completion: Overloaded; retrying 1/1")
