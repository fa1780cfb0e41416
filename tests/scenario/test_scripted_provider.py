"""The embedded provider: a script from a file in place of a model."""

from __future__ import annotations

import json
from typing import Any

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    background_event,
    error,
    task_complete,
    task_started,
    token_count,
)
from kit.builders.json import as_json
from kit.clients.codex_calls import (
    Wire,
    answered,
    configured,
    events_in,
    failed,
    interrupted,
    is_event,
    pairs,
    speaking,
    without_delays,
)
from parley.testing import ScriptedModel
from parley.wire.events import AgentMessageDelta, AgentReasoningDelta, EventMsg

REHEARSAL = """
model_provider = "rehearsal"

[model_providers.rehearsal]
name = "Rehearsal"
wire_api = "scripted"
script = "rehearsal.json"
stream_max_retries = {retries}
"""


def _config(*, retries: int = 0) -> str:
    return REHEARSAL.format(retries=retries)


def _write(wire: Wire, *replies: Any, **more: Any) -> None:
    (wire.raw.home / "rehearsal.json").write_text(json.dumps({"replies": replies, **more}))


def _deltas(*pieces: str) -> tuple[EventMsg, ...]:
    return tuple(AgentMessageDelta(delta=piece) for piece in pieces)


async def test_a_script_is_played_reply_by_reply_without_any_model(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config=_config()) as wire:
        _write(
            wire,
            [
                {"reasoning": "A listing will tell."},
                {"text": "Let me look."},
                {"call": {"name": "look", "arguments": {"at": "."}}},
            ],
            [
                {"text": "I see "},
                {"delay_ms": 1},
                {"text": "a few files."},
                {"usage": {"input_tokens": 120, "output_tokens": 14, "cached_input_tokens": 3}},
            ],
            [{"text": "Bye."}],
            delta_delay_ms=1,
        )
        wire.codex(1, "go")
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)
        wire.reply(3, "from the start")
        third = await wire.answer(3)

    thinking = tuple(AgentReasoningDelta(delta=piece) for piece in ("A", " listing", " will", " tell."))
    looking = (*thinking, agent_reasoning("A listing will tell."), *_deltas("Let", " me", " look."))
    looking = (*looking, agent_message("Let me look."))
    seen = (
        *_deltas("I", " see", " ", "a", " few", " files."),
        agent_message("I see a few files."),
        token_count(input_tokens=120, output_tokens=14, cached=3),
    )
    assert first == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", task_started(), *looking, *seen, task_complete("I see a few files.")),
        answered(1, "I see a few files."),
    ]
    bye = (*_deltas("Bye."), agent_message("Bye."))
    assert second == [*pairs(2, "2", task_started(), *bye, task_complete("Bye.")), answered(2, "Bye.")]
    assert third == [
        *pairs(3, "3", task_started(), *looking, *seen, task_complete("I see a few files.")),
        answered(3, "I see a few files."),
    ]
    assert parley_model.requests == []


async def test_a_call_in_a_script_is_really_made(parley_model: ScriptedModel) -> None:
    command = ["sh", "-c", "echo rehearsed > made.txt"]
    async with speaking(parley_model, config=_config()) as wire:
        _write(
            wire,
            [{"call": {"name": "shell", "arguments": {"command": command}, "call_id": "c1"}}],
            [{"text": "Made."}],
        )
        wire.codex(1, "go")
        _, _, begun, ended, *rest = events_in(await wire.answer(1))

        assert (wire.work / "made.txt").read_text() == "rehearsed\n"
    assert (begun["type"], begun["call_id"], begun["command"]) == ("exec_command_begin", "c1", command)
    assert (ended["type"], ended["call_id"], ended["exit_code"]) == ("exec_command_end", "c1", 0)
    assert rest == [as_json(event) for event in (*_deltas("Made."), agent_message("Made."), task_complete("Made."))]
    assert parley_model.requests == []


async def test_a_reply_that_fails_is_tried_again_with_the_next(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config=_config(retries=1)) as wire:
        _write(
            wire,
            [{"text": "Not"}, {"fail": "the line went dead"}],
            [{"text": "Whole"}],
            [{"fail": "a"}],
            [{"fail": "b"}],
        )
        wire.codex(1, "go")
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    def notice(why: str) -> EventMsg:
        broke = f"stream disconnected before completion: {why}"
        return background_event(f"stream error: {broke}; retrying 1/1 in <delay>…")

    whole = (*_deltas("Whole"), agent_message("Whole"), task_complete("Whole"))
    assert without_delays(first) == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", task_started(), *_deltas("Not"), notice("the line went dead"), *whole),
        answered(1, "Whole"),
    ]
    message = "stream disconnected before completion: b"
    assert without_delays(second) == [
        *pairs(2, "2", task_started(), notice("a"), error(message), task_complete()),
        failed(2, message),
    ]


async def test_a_pause_of_the_script_can_be_interrupted(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config=_config()) as wire:
        _write(wire, [{"text": "Wait"}, {"delay_ms": 600_000}, {"text": "for it"}], [{"text": "Next"}])
        wire.codex(1, "go")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        assert await wire.answer(1) == [*pairs(1, "1", error(" Turn interrupted")), interrupted(1)]
        wire.reply(2, "again")
        assert await wire.text(2) == "Next"


BAD_SCRIPTS = {
    '{"replies": [[{"text": 5}]]}': "Expected `str`, got `int` - at `$.replies[0][0].text`",
    '{"replies": []}': "Expected `array` of length >= 1 - at `$.replies`",
    '{"replies": [[{"text": "a", "fail": "b"}]]}': (
        "Expected exactly one field in a step, got text and fail - at `$.replies[0][0]`"
    ),
    "{": "Input data was truncated",
}


async def test_a_bad_script_fails_the_turn_at_once_and_a_better_one_is_used_next(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, config=_config(retries=5)) as wire:
        file = wire.raw.home / "rehearsal.json"
        wire.codex(0, "go")
        missing = await wire.text(0)
        for request_id, (script, detail) in enumerate(BAD_SCRIPTS.items(), start=1):
            file.write_text(script)
            wire.codex(request_id, "go")
            messages = await wire.answer(request_id)

            message = f"script {file}: {detail}"
            assert messages == [
                *configured(request_id, wire.sessions[-1]),
                *pairs(request_id, str(request_id), task_started(), error(message), task_complete()),
                failed(request_id, message),
            ]
        _write(wire, [{"text": "Better"}])
        for request_id, session in enumerate(wire.sessions, start=10):
            wire.reply(request_id, "again", session=session)
            assert await wire.text(request_id) == "Better"

    assert missing == f"script {file}: No such file or directory"


async def test_sessions_play_the_script_each_for_itself(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config=_config()) as wire:
        _write(wire, [{"text": "One"}], [{"text": "Two"}])
        wire.codex(1, "go")
        wire.codex(2, "go")
        messages = await wire.answer(1, 2)
        wire.reply(3, "again", session=wire.sessions[0])
        wire.reply(4, "again", session=wire.sessions[1])
        messages += await wire.answer(3, 4)

    answers = {one["id"]: one for one in messages if "method" not in one}
    assert answers == {
        1: answered(1, "One"),
        2: answered(2, "One"),
        3: answered(3, "Two"),
        4: answered(4, "Two"),
    }


async def test_the_demonstration_needs_no_file(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config="model_provider = 'scripted'") as wire:
        wire.codex(1, "go")
        before = await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        messages = await wire.answer(1)

    assert before[:2] == configured(1, wire.sessions[0])
    assert messages[-1] == interrupted(1)
    assert parley_model.requests == []
