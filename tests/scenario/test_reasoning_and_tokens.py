"""Reasoning and token counts: the events for clients, and the reasoning in the next request."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    agent_reasoning_raw_content,
    task_complete,
    task_started,
    token_count,
)
from kit.clients.codex_calls import Assistant, User, answered, body, configured, pairs, shown, speaking
from kit.clients.traces import SPENT, said
from parley.testing import Call, Data, Says, ScriptedModel, Usage
from parley.wire.events import (
    AgentMessageDelta,
    AgentReasoningDelta,
    AgentReasoningRawContentDelta,
    EventMsg,
)

THOUGHT: Final = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [
        {"type": "summary_text", "text": "First thought"},
        {"type": "summary_text", "text": "Second thought"},
    ],
    "content": [{"type": "reasoning_text", "text": "raw thinking"}],
    "encrypted_content": "ENC",
}


def _typed(kind: str, **fields: Any) -> Data:
    return Data(json.dumps({"type": kind, **fields}))


THINKS_AND_ANSWERS: Final = Says(
    (
        _typed("response.in_progress", response={"id": "r"}),
        _typed("response.reasoning_summary_part.added"),
        _typed("response.reasoning_summary_text.delta", delta="First "),
        _typed("response.reasoning_summary_text.delta", delta="thought"),
        _typed("response.reasoning_text.delta", delta="raw "),
        _typed("response.reasoning_text.delta", delta="thinking"),
        _typed("response.reasoning_summary_text.done", text="First thought"),
        _typed("response.output_item.done", item=THOUGHT),
        "Ans",
        "wer",
        Usage(input_tokens=10, cached_input_tokens=2, output_tokens=5, reasoning_output_tokens=1),
    )
)

ANSWER: Final = (
    AgentMessageDelta(delta="Ans"),
    AgentMessageDelta(delta="wer"),
    agent_message("Answer"),
    token_count(input_tokens=10, output_tokens=5, cached=2, reasoning=1),
    task_complete("Answer"),
)


@pytest.mark.parametrize(
    ("config", "raw_deltas", "raw", "changes"),
    [
        ("", (), (), {}),
        (
            "show_raw_agent_reasoning = true",
            (AgentReasoningRawContentDelta(delta="raw "), AgentReasoningRawContentDelta(delta="thinking")),
            (agent_reasoning_raw_content("raw thinking"),),
            {},
        ),
        (
            "disable_response_storage = true",
            (),
            (),
            {"store": False, "include": ["reasoning.encrypted_content"]},
        ),
    ],
)
async def test_a_summary_is_shown_part_by_part_and_sent_back_whole(
    parley_model: ScriptedModel,
    config: str,
    raw_deltas: tuple[EventMsg, ...],
    raw: tuple[EventMsg, ...],
    changes: dict[str, Any],
) -> None:
    parley_model.queue(THINKS_AND_ANSWERS)
    parley_model.says("Next")
    async with speaking(parley_model, api="responses", config=config) as wire:
        wire.codex(1, "go", model="o3")
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    session = wire.sessions[0]
    thinking = (
        task_started(),
        AgentReasoningDelta(delta="First "),
        AgentReasoningDelta(delta="thought"),
        *raw_deltas,
        agent_reasoning("First thought"),
        agent_reasoning("Second thought"),
        *raw,
    )
    assert first == [
        *configured(1, session, "o3"),
        *pairs(1, "1", *thinking, *ANSWER),
        answered(1, "Answer"),
    ]
    assert second == [*pairs(2, "2", task_started(), *said("Next"), task_complete("Next")), answered(2, "Next")]
    asked = {"model": "o3", "reasoning": {"effort": "medium", "summary": "auto"}, **changes}
    again = body("responses", User("go"), cwd=wire.work, session=session, **asked)
    assert parley_model.requests[0].body == again
    expected = body(
        "responses", User("go"), Assistant("Answer"), User("again"), cwd=wire.work, session=session, **asked
    )
    expected["input"].insert(2, THOUGHT)
    assert parley_model.requests[1].body == expected


@pytest.mark.parametrize("is_shown", [False, True])
async def test_reasoning_over_chat_is_raw_and_shown_only_if_wanted(
    parley_model: ScriptedModel, is_shown: bool
) -> None:
    pieces = ('"think "', '{"text": "hard "}', '{"content": "now"}', "{}", "null")
    parley_model.says(
        *(Data(f'{{"choices": [{{"delta": {{"reasoning": {piece}}}}}]}}') for piece in pieces), "An", "swer"
    )
    async with speaking(parley_model, config=f"show_raw_agent_reasoning = {str(is_shown).lower()}") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        wire.reply(2, "again")
        await wire.answer(2)

    thinking = tuple(AgentReasoningRawContentDelta(delta=delta) for delta in ("think ", "hard ", "now"))
    answer = (AgentMessageDelta(delta="An"), AgentMessageDelta(delta="swer"))
    thought = (agent_reasoning_raw_content("think hard now"),)
    events = (
        *(thinking if is_shown else ()),
        *(thought if is_shown else ()),
        *answer,
        agent_message("Answer"),
        task_complete("Answer"),
    )
    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", task_started(), *events),
        answered(1, "Answer"),
    ]
    again = body("chat", User("go"), Assistant("Answer"), User("again"), cwd=wire.work, session=wire.sessions[0])
    again["messages"][3]["reasoning"] = "think hard now"
    assert parley_model.requests[1].body == again


# --- tokens ------------------------------------------------------------------------------------


@pytest.mark.promises("model.usage", "status.result")
async def test_every_response_says_what_it_cost_and_the_status_adds_it_up(parley_model: ScriptedModel) -> None:
    parley_model.says(Call("look", "{}", "c1"), Usage(input_tokens=100, cached_input_tokens=20, output_tokens=7))
    parley_model.says("Done", Usage(input_tokens=120, output_tokens=9, reasoning_output_tokens=4))
    async with speaking(parley_model, api="responses") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        wire.call(2, "conversationStatus", {"conversation_id": wire.sessions[0]})
        (status,) = await wire.answer(2)

    events = (
        task_started(),
        token_count(input_tokens=100, output_tokens=7, cached=20, reasoning=0),
        AgentMessageDelta(delta="Done"),
        agent_message("Done"),
        token_count(input_tokens=120, output_tokens=9, cached=0, reasoning=4),
        task_complete("Done"),
    )
    assert messages == [*configured(1, wire.sessions[0]), *pairs(1, "1", *events), answered(1, "Done")]
    assert status["result"]["structuredContent"]["tokens"] == {
        "input_tokens": 220,
        "cached_input_tokens": 20,
        "output_tokens": 16,
        "reasoning_output_tokens": 4,
        "total_tokens": 236,
    }


@pytest.mark.promises("model.usage")
async def test_chat_token_counts_are_requested_and_shown_if_the_provider_is_configured_for_it(
    parley_model: ScriptedModel,
) -> None:
    config = (
        f"[model_providers.counts]\nname = 'Counts'\nbase_url = '{parley_model.base_url}'\nstream_usage = true\n"
    )
    async with speaking(parley_model, config=f"model_provider = 'counts'\n{config}") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    events = (task_started(), *said("Done"), task_complete("Done"))
    assert messages == [*configured(1, wire.sessions[0]), *pairs(1, "1", *events), answered(1, "Done")]
    counted: dict[str, Any] = {"stream_options": {"include_usage": True}}
    assert parley_model.requests[0].body == body(
        "chat", User("go"), cwd=wire.work, session=wire.sessions[0], **counted
    )


async def test_a_response_that_does_not_say_what_it_cost_costs_nothing(parley_model: ScriptedModel) -> None:
    parley_model.sends_raw(b'data: {"type": "response.completed", "response": {"id": "r"}}\n\n')
    async with speaking(parley_model, api="responses") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        wire.call(2, "conversationStatus", {"conversation_id": wire.sessions[0]})
        (status,) = await wire.answer(2)

    events = shown("chat", task_started(), SPENT, task_complete())
    assert messages == [*configured(1, wire.sessions[0]), *pairs(1, "1", *events), answered(1, "")]
    assert status["result"]["structuredContent"]["tokens"] is None
