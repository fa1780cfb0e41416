"""Chat Completions of real providers: each dialect with two calls and a second request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.codex_calls import (
    AskedFor,
    Assistant,
    CallSent,
    Output,
    User,
    Wire,
    body,
    events_in,
    is_event,
    speaking,
)
from kit.models.sent_back import ARGUMENTS, CALLS, FIELDS, IDS, THOUGHT, sent_back
from parley.testing import Call, Data, Reasoning, ScriptedModel, Usage
from parley.testing.dialects import DIALECTS, DialectName, details_of
from parley.testing.home import MODEL

SHOWN: Final = "show_raw_agent_reasoning = true"
LOOKED: Final[tuple[AskedFor, ...]] = (
    User("go"),
    Assistant("Looking."),
    CallSent(IDS[0], "look", ARGUMENTS[0]),
    CallSent(IDS[1], "look", ARGUMENTS[1], same_response=True),
    Output(IDS[0], "unsupported call: look"),
    Output(IDS[1], "unsupported call: look"),
)


def _second(wire: Wire, dialect: DialectName, *more: AskedFor) -> Any:
    """Return the expected request after two calls, with the fields that the provider requires."""
    expected = body("chat", *LOOKED, *more, cwd=wire.work, session=wire.sessions[0])
    expected["messages"][3:6] = sent_back("chat", dialect)
    return expected


@pytest.mark.promises("model.chat-calls", "model.chat-reasoning", "model.history")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_two_calls_and_what_was_thought_go_back_in_one_message(
    parley_model: ScriptedModel, dialect: DialectName
) -> None:
    parley_model.dialect = dialect
    parley_model.says(Reasoning(THOUGHT), "Looking.", *CALLS)
    async with speaking(parley_model, config=SHOWN) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    assert [request.body for request in parley_model.requests] == [
        body("chat", User("go"), cwd=wire.work, session=wire.sessions[0]),
        _second(wire, dialect),
        _second(wire, dialect, Assistant("Done"), User("again")),
    ]
    shown = [event for event in events_in(messages) if event["type"].startswith("agent_reasoning")]
    deltas = "".join(event["delta"] for event in shown if event["type"].endswith("_delta"))
    assert deltas == THOUGHT
    assert shown[-1] == {"type": "agent_reasoning_raw_content", "text": THOUGHT}


@pytest.mark.promises("model.usage", "model.chat-ends")
@pytest.mark.parametrize("dialect", ["openai", "openrouter"])
async def test_token_counts_are_shown_once_if_the_finish_arrives_twice(
    parley_model: ScriptedModel, dialect: DialectName
) -> None:
    parley_model.dialect = dialect
    parley_model.says("Fine", Usage(input_tokens=7, output_tokens=2))
    async with speaking(parley_model) as wire:
        wire.codex(1, "go", config={"model_providers.chat.stream_usage": True})
        messages = await wire.answer(1)

    assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Fine"}]
    counts = [event for event in events_in(messages) if event["type"] == "token_count"]
    assert [count["total_tokens"] for count in counts] == [9]


@pytest.mark.promises("model.chat-reasoning")
@pytest.mark.parametrize("dialect", ["deepseek", "kimi"])
async def test_a_provider_that_requires_reasoning_gets_some_where_there_was_none(
    parley_model: ScriptedModel, dialect: DialectName
) -> None:
    parley_model.dialect = dialect
    parley_model.says(CALLS[0])
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"

    assert parley_model.requests[1].body["messages"][3]["reasoning_content"] == " "


@pytest.mark.promises("model.chat-reasoning")
@pytest.mark.parametrize("dialect", ["deepseek", "gemini", "openrouter"])
async def test_reasoning_is_still_known_after_a_restart(
    parley_model: ScriptedModel, dialect: DialectName, tmp_path: Path
) -> None:
    parley_model.dialect = dialect
    parley_model.says(Reasoning(THOUGHT), "Looking.", *CALLS)
    async with speaking(parley_model, home=tmp_path) as wire:
        wire.codex(1, "go")
        await wire.answer(1)
    session = wire.sessions[0]
    async with speaking(parley_model, home=tmp_path) as again:
        again.sessions.append(session)
        again.reply(1, "again")
        assert await again.text(1) == "Done"

    before, after = (request.body["messages"][3] for request in parley_model.requests[1:])
    assert after == before


async def _streamed(wire: Wire) -> str:
    """Create a conversation with an open stream."""
    wire.call(1, "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
    (created,) = await wire.answer(1)
    conversation = str(created["result"]["structuredContent"]["conversation_id"])
    wire.stream(2, conversation)
    await wire.until(is_event("notifications/initial_state"))
    return conversation


async def _say(wire: Wire, conversation: str, text: str, **more: object) -> None:
    arguments = {"conversation_id": conversation, "content": [{"type": "text", "text": text}], **more}
    wire.call(wire.calls_made + 1, "conversationSendMessage", arguments)
    await wire.until(is_event("task_complete"))


@pytest.mark.promises("model.chat-reasoning-origin")
@pytest.mark.parametrize(
    ("then", "member"), [("deepseek", "reasoning_content"), ("kimi", "reasoning_content"), ("gemini", "tool_calls")]
)
async def test_a_conversation_of_another_model_continues_with_a_provider_that_requires_reasoning(
    parley_model: ScriptedModel, then: DialectName, member: str
) -> None:
    parley_model.dialect = "openrouter"
    parley_model.says(Reasoning(THOUGHT), *CALLS)
    async with speaking(parley_model) as wire:
        conversation = await _streamed(wire)
        await _say(wire, conversation, "go")
        parley_model.dialect = then
        await _say(wire, conversation, "again", model="other")
        await _say(wire, conversation, "and again")

    first, refused, accepted, later = parley_model.requests[1:]
    assert first.body["messages"][3]["reasoning_details"] == [details_of(THOUGHT)]
    plain = refused.body["messages"][3]
    assert set(plain) == {"role", "content", "tool_calls"}
    filled = accepted.body["messages"][3]
    google = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert filled[member] == (
        " " if member == "reasoning_content" else [{**plain[member][0], "extra_content": google}, plain[member][1]]
    )
    assert later.body["messages"][3] == filled  # the server adds the member without another refusal


NOT_ACCEPTED: Final = {
    "groq": "'messages.3' : for 'role:assistant' the following must be satisfied[('messages.3' : property "
    "'reasoning' is unsupported)]",
    "deepseek": '{"detail": [{"type": "extra_forbidden", "loc": ["body", "messages", 3, "assistant", '
    '"reasoning_content"], "msg": "Extra inputs are not permitted"}]}',
}


@pytest.mark.promises("model.chat-reasoning")
@pytest.mark.parametrize(("dialect", "status"), [("groq", 400), ("deepseek", 422)])
async def test_a_model_that_does_not_accept_its_reasoning_gets_none(
    parley_model: ScriptedModel, dialect: DialectName, status: int
) -> None:
    parley_model.dialect = dialect
    parley_model.says(Reasoning(THOUGHT), "Looking.")
    parley_model.fails(status, body=NOT_ACCEPTED[dialect])
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Looking."
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"
        wire.reply(3, "and again")
        assert await wire.text(3) == "Done"

    refused, accepted, later = (request.body["messages"][3] for request in parley_model.requests[1:])
    assert set(refused) == {"role", "content", *FIELDS[dialect]}
    assert accepted == later == {"role": "assistant", "content": "Looking."}


@pytest.mark.promises("model.chat-calls")
async def test_ids_of_another_model_are_shortened_for_a_model_of_mistral(parley_model: ScriptedModel) -> None:
    parley_model.says(Call("look", {}, "call_0123456789"), CALLS[0])
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"
        parley_model.dialect = "mistral"
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    _, before, _, accepted = (request.body["messages"] for request in parley_model.requests)
    assert [call["id"] for call in before[3]["tool_calls"]] == ["call_0123456789", IDS[0]]
    short, kept = (call["id"] for call in accepted[3]["tool_calls"])
    assert (len(short), short.isalnum(), kept) == (9, True, IDS[0])
    assert [one["tool_call_id"] for one in accepted if one["role"] == "tool"] == [short, kept]


# --- calls in pieces -----------------------------------------------------------------------------


def _piece(call: dict[str, Any]) -> Data:
    return Data(json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}))


def _function(name: str, arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


PIECES: Final[dict[str, list[dict[str, Any]]]] = {
    "index 0 for both": [
        {"index": 0, "id": "c1", "function": _function("one", "{}")},
        {"index": 0, "id": "c2", "function": _function("two", "{}")},
    ],
    "index 0 for both, in pieces": [
        {"index": 0, "id": "c1", "function": _function("one", "{")},
        {"index": 0, "function": {"arguments": "}"}},
        {"index": 0, "id": "c2", "function": _function("two", "{")},
        {"index": 0, "function": {"arguments": "}"}},
    ],
    "index 0 for both, interleaved": [
        {"index": 0, "id": "c1", "function": _function("one", "{")},
        {"index": 0, "id": "c2", "function": _function("two", "{")},
        {"index": 0, "id": "c1", "function": {"arguments": "}"}},
        {"index": 0, "id": "c2", "function": {"arguments": "}"}},
    ],
    "no index": [
        {"id": "c1", "function": _function("one", "{")},
        {"id": "c1", "function": {"arguments": "}"}},
        {"id": "c2", "function": _function("two", "{}")},
    ],
    "the same id with every piece": [
        {"index": 0, "id": "c1", "function": _function("one", "{")},
        {"index": 0, "id": "c1", "function": _function("one", "}")},
        {"index": 1, "id": "c2", "function": _function("two", "")},
        {"index": 1, "id": "c2", "function": _function("two", "{}")},
    ],
    "gaps and the wrong order": [
        {"index": 7, "id": "c2", "function": _function("two", "{")},
        {"index": 3, "id": "c1", "function": _function("one", "{")},
        {"index": 7, "function": {"arguments": "}"}},
        {"index": 3, "function": {"arguments": "}"}},
    ],
    "the id after the name": [
        {"index": 0, "function": _function("one", "{")},
        {"index": 0, "id": "c1", "function": {"arguments": "}"}},
        {"index": 1, "id": "c2", "function": _function("two", "{}")},
    ],
}


@pytest.mark.promises("model.chat-calls")
async def test_calls_are_distinguished_in_every_dialect(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        for number, (name, pieces) in enumerate(PIECES.items(), 1):
            print(name)  # pytest shows the last one if it fails
            parley_model.says(*map(_piece, pieces))
            wire.codex(number, "go")
            await wire.answer(number)

            spoken, *outputs = parley_model.requests[-1].body["messages"][3:]
            assert [call["function"] for call in spoken["tool_calls"]] == [
                _function("one", "{}"),
                _function("two", "{}"),
            ]
            assert [output["tool_call_id"] for output in outputs] == ["c1", "c2"]


async def test_calls_without_ids_and_with_the_same_index_are_distinguished_by_their_names(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(*(_piece({"index": 0, "function": _function(name, "{}")}) for name in ("one", "two")))
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        await wire.answer(1)

    outputs = [said["content"] for said in parley_model.requests[1].body["messages"] if said["role"] == "tool"]
    assert outputs == ["unsupported call: one", "unsupported call: two"]


# --- errors in the stream ------------------------------------------------------------------------


ERRORS: Final = {
    "a text": '{"error": "model not found"}',
    "an object": '{"error": {"message": "model not found", "code": 404}}',
    "with choices": '{"error": {"message": "model not found"}, "choices": [{"delta": {"content": ""}, '
    '"finish_reason": "error"}]}',
    "in the choice": '{"choices": [{"delta": {}, "finish_reason": "error", '
    '"error": {"message": "model not found"}}]}',
    "an object named error": '{"object": "error", "message": "model not found", "code": 404}',
    "a type named error": '{"type": "error", "message": "model not found"}',
    "a status message": '{"choices": null, "base_resp": {"status_code": 1004, "status_msg": "model not found"}}',
}


@pytest.mark.promises("failures.messages", "failures.chat-stream")
async def test_an_error_in_the_stream_is_a_failure_in_every_shape(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        for number, (name, error) in enumerate(ERRORS.items(), 1):
            print(name)  # pytest shows the last one if it fails
            parley_model.says("par", Data(error))
            wire.codex(number, "go")
            messages = await wire.answer(number)

            assert messages[-1]["result"]["error"] == "stream disconnected before completion: model not found"


@pytest.mark.promises("failures.chat-stream")
@pytest.mark.parametrize(
    "body", [b'{"error": "out of memory"}\n', b'data: {"choices": []}\n\n{"error":"out of memory"}']
)
async def test_an_error_that_is_no_event_is_a_failure(parley_model: ScriptedModel, body: bytes) -> None:
    parley_model.sends_raw(body)
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1]["result"]["error"] == "stream disconnected before completion: out of memory"


@pytest.mark.promises("failures.no-response")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body of the response is empty"),
        (b"<html>\n\x07", r"the body contains no response; it begins with: <html>\n\x07"),
        (b'event: error\ndata: {"message": "no key"}\n\n', "no key"),
    ],
)
async def test_a_body_without_a_response_is_a_failure(
    parley_model: ScriptedModel, body: bytes, reason: str
) -> None:
    parley_model.sends_raw(body)
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1]["result"]["error"] == f"stream disconnected before completion: {reason}"


@pytest.mark.promises("model.not-streamed")
async def test_a_provider_that_does_not_stream_is_understood(parley_model: ScriptedModel) -> None:
    function = {"name": "look", "arguments": "{}"}
    called = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c1", "function": function}]}
    parley_model.sends_raw(json.dumps({"choices": [{"message": called, "finish_reason": "tool_calls"}]}).encode())
    parley_model.sends_raw(json.dumps({"choices": [{"message": {"content": "Nothing."}}]}, indent=1).encode())
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Nothing."

    assert parley_model.requests[1].body["messages"][3:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "unsupported call: look"},
    ]


@pytest.mark.promises("failures.chat-stream")
async def test_a_finish_reason_that_is_an_error_is_a_failure(parley_model: ScriptedModel) -> None:
    parley_model.says("par", Data('{"choices": [{"delta": {}, "finish_reason": "error"}]}'))
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    expected = "stream disconnected before completion: the provider gave no reason"
    assert messages[-1]["result"]["error"] == expected
