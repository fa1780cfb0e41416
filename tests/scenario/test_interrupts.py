"""Interrupts of every kind: the turn ends once, every waiting request is answered, and the session continues."""

from __future__ import annotations

from typing import Any

import pytest

from kit.builders.events import background_event, error, task_complete, task_started, user_message
from kit.builders.json import as_json
from kit.clients.codex_calls import (
    APIS,
    EITHER_API,
    User,
    Wire,
    answered,
    body,
    configured,
    failed,
    interrupted,
    is_event,
    pairs,
    shown,
    speaking,
    without_delays,
    without_message_ids,
)
from kit.clients.messages import turn_value
from kit.clients.traces import said
from parley.testing import HOLD, Call, Says, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.events import AgentMessageDelta, EventMsg
from parley.wire.mcp import FULL_VERSION

STOPPED = error(" Turn interrupted")


def _good_turn(api: Api, text: str = "Done") -> tuple[EventMsg, ...]:
    return (task_started(), *shown(api, *said(text)), task_complete(text))


@pytest.mark.child_process
@pytest.mark.promises("cancel.codex", "cancel.interrupt", "codex.failed-turn")
@pytest.mark.parametrize("api", EITHER_API)
async def test_an_interrupt_in_mid_stream_ends_the_turn_and_the_request_and_keeps_messages_of_the_user(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says("par", "tial", HOLD)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "first")
        before = await wire.until(
            lambda one: one["params"]["msg"].get("delta") == "tial" and "delta" in one["method"]
        )
        wire.cancel(1)
        after = await wire.answer(1)
        await parley_model.wait_abandoned()
        wire.reply(2, "second")
        second = await wire.answer(2)

    session = wire.sessions[0]
    deltas = (AgentMessageDelta(delta="par"), AgentMessageDelta(delta="tial"))
    assert before == [*configured(1, session), *pairs(1, "1", task_started(), *deltas)]
    assert after == [*pairs(1, "1", STOPPED), interrupted(1)]
    assert second == [*pairs(2, "2", *_good_turn(api)), answered(2, "Done")]
    assert parley_model.requests[1].body == body(api, User("first"), User("second"), cwd=wire.work, session=session)


async def test_an_interrupted_call_has_structured_content_for_the_full_version(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(HOLD)
    async with speaking(parley_model, version=FULL_VERSION) as wire:
        wire.codex("a", "first")
        before = await wire.until(is_event("user_message"))
        await parley_model.wait_until_held()
        wire.call("b", "conversationInterrupt", {"conversation_id": wire.sessions[0]})
        after = [one for one in await wire.answer("a", "b") if one.get("id") != "b"]

    session = wire.sessions[0]
    assert without_message_ids(before) == [
        *configured("a", session),
        *pairs("a", "a", task_started(), user_message("first", principal="local")),
    ]
    expected = turn_value(session, " Turn interrupted", "interrupted")
    stopped = error(" Turn interrupted", "interrupted", principal="local")
    assert after == [*pairs("a", "a", stopped), failed("a", " Turn interrupted", structuredContent=expected)]


@pytest.mark.promises("cancel.codex")
async def test_a_cancel_directly_after_the_call_is_an_interrupt_too(parley_model: ScriptedModel) -> None:
    parley_model.default = Says((HOLD,))
    async with speaking(parley_model) as wire:
        for request_id in range(1, 21):
            wire.codex(request_id, "go")
            wire.cancel(request_id)
        messages = [*await wire.answer(*range(1, 21)), *await wire.silence()]

    for request_id in range(1, 21):
        mine = [one for one in messages if _is_of(one, request_id)]
        assert mine == [
            *configured(request_id, mine[0]["params"]["msg"]["session_id"]),
            *pairs(request_id, str(request_id), task_started(), STOPPED),
            interrupted(request_id),
        ]


def _is_of(message: Any, request_id: int) -> bool:
    if "method" in message:
        return bool(message["params"]["_meta"] == {"requestId": request_id})
    return bool(message["id"] == request_id)


@pytest.mark.promises("cancel.nothing")
async def test_cancelling_twice_or_too_late_changes_nothing(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        wire.cancel(1)
        assert await wire.answer(1) == [*pairs(1, "1", STOPPED), interrupted(1)]
        wire.cancel(1)
        assert await wire.silence() == []
        parley_model.says("going on", HOLD)
        wire.reply(2, "second")
        await wire.until(is_event("agent_message_delta"))
        for request_id in (1, "1", "2", 99):
            wire.cancel(request_id)
        assert await wire.silence() == []
        parley_model.release()
        messages = await wire.answer(2)

    assert messages == [
        *pairs(2, "2", *shown("chat", *said("going on"))[1:], task_complete("going on")),
        answered(2, "going on"),
    ]


async def test_an_interrupt_during_a_pause_before_a_retry_ends_the_turn(parley_model: ScriptedModel) -> None:
    for _ in range(4):
        parley_model.cuts("par")
    async with speaking(parley_model, stream_max_retries=9) as wire:
        wire.codex(1, "first")
        before = await wire.until(
            lambda one: one["method"] == "background_event" and "retrying 4/9" in one["params"]["msg"]["message"]
        )
        wire.cancel(1)
        after = await wire.answer(1)
        asked = len(parley_model.requests)
        wire.reply(2, "second")
        await wire.answer(2)

    broke_off = "stream disconnected before completion: the response broke off"
    tries = (
        event
        for number in range(1, 5)
        for event in (
            AgentMessageDelta(delta="par"),
            background_event(f"stream error: {broke_off}; retrying {number}/9 in <delay>…"),
        )
    )
    assert without_delays(before) == [*configured(1, wire.sessions[0]), *pairs(1, "1", task_started(), *tries)]
    assert after == [*pairs(1, "1", STOPPED), interrupted(1)]
    assert asked == 4
    assert parley_model.requests[4].body == body(
        "chat", User("first"), User("second"), cwd=wire.work, session=wire.sessions[0]
    )


async def test_an_interrupt_while_a_refused_request_waits_ends_the_turn(parley_model: ScriptedModel) -> None:
    parley_model.fails(503, headers={"retry-after": "60"})
    async with speaking(parley_model, request_max_retries=9) as wire:
        wire.codex(1, "first")
        await parley_model.wait_for_requests()
        await wire.until(is_event("task_started"))
        wire.cancel(1)
        assert await wire.answer(1) == [*pairs(1, "1", STOPPED), interrupted(1)]
        wire.reply(2, "second")
        assert await wire.text(2) == "Done"

    assert len(parley_model.requests) == 2


async def test_a_reply_directly_after_an_interrupt_is_a_turn_of_its_own(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        wire.reply(2, "second")
        messages = await wire.answer(1, 2)

    assert messages == [
        *pairs(1, "1", STOPPED),
        interrupted(1),
        *pairs(2, "2", *_good_turn("chat")),
        answered(2, "Done"),
    ]


async def test_input_that_waited_when_the_turn_was_interrupted_stays(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.reply(2, "waits")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(2)
        await wire.answer(1, 2)
        wire.reply(3, "next")
        await wire.answer(3)

    assert parley_model.requests[1].body == body(
        "chat", User("first"), User("waits"), User("next"), cwd=wire.work, session=wire.sessions[0]
    )


@pytest.mark.promises("interrupt.result")
async def test_the_tool_that_interrupts_does_so_for_a_call(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.call(2, "conversationInterrupt", {"conversation_id": wire.sessions[0]})
        messages = await wire.answer(1, 2)
        wire.call(3, "conversationInterrupt", {"conversation_id": wire.sessions[0]})
        again = [*await wire.answer(3), *await wire.silence()]

    done = {"content": [{"type": "text", "text": '{"status":"ok"}'}], "isError": False}
    done["structuredContent"] = {"status": "ok"}
    assert [one for one in messages if one.get("id") != 2] == [*pairs(1, "1", STOPPED), interrupted(1)]
    assert [one for one in messages if one.get("id") == 2] == [{"jsonrpc": "2.0", "id": 2, "result": done}]
    assert again == [{"jsonrpc": "2.0", "id": 3, "result": done}]


# --- messages ----------------------------------------------------------------------------------


async def _streamed_conversation(wire: Wire) -> str:
    wire.call("create", "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
    (created,) = await wire.answer("create")
    conversation = str(created["result"]["structuredContent"]["conversation_id"])
    wire.stream("stream", conversation)
    await wire.until(is_event("notifications/initial_state"))
    return conversation


def _live(*events: EventMsg) -> list[Any]:
    return [
        {"jsonrpc": "2.0", "method": as_json(event)["type"], "params": {"msg": as_json(event)}} for event in events
    ]


@pytest.mark.parametrize("api", EITHER_API)
async def test_cancelling_a_send_interrupts_its_turn(parley_model: ScriptedModel, api: Api) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model, api=api) as wire:
        conversation = await _streamed_conversation(wire)
        wire.send(1, conversation, "first")
        (_, *before) = await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        after = await wire.until(is_event("error"))
        wire.send(2, conversation, "second")
        (_, *second) = await wire.until(is_event("task_complete"))

    assert before == _live(task_started(), AgentMessageDelta(delta="par"))
    assert after == _live(STOPPED)
    assert second == _live(*_good_turn(api))
    assert parley_model.requests[1].body == body(
        api, User("first"), User("second"), cwd=wire.work, session=conversation
    )


async def test_cancelling_a_send_that_joined_interrupts_the_turn_that_took_it(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model) as wire:
        conversation = await _streamed_conversation(wire)
        wire.send(1, conversation, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.send(2, conversation, "second")
        await wire.answer(2)
        wire.cancel(2)
        after = [*await wire.until(is_event("error")), *await wire.silence()]

    assert after == _live(STOPPED)


async def test_cancelling_a_send_whose_turn_is_over_does_not_touch_the_next(parley_model: ScriptedModel) -> None:
    parley_model.says("One")
    parley_model.says("Two", HOLD)
    async with speaking(parley_model) as wire:
        conversation = await _streamed_conversation(wire)
        wire.send(1, conversation, "first")
        await wire.until(is_event("task_complete"))
        wire.send(2, conversation, "second")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        assert await wire.silence() == []
        parley_model.release()
        rest = await wire.until(is_event("task_complete"))

    assert rest == _live(*shown("chat", *said("Two"))[1:], task_complete("Two"))


@pytest.mark.parametrize("api", APIS)
async def test_a_call_whose_reply_did_not_end_is_forgotten_with_it(parley_model: ScriptedModel, api: Api) -> None:
    parley_model.says("Looking.", Call("look", "{}", "c1"), HOLD)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "first")
        await parley_model.wait_until_held()
        await wire.until(is_event("agent_message_delta" if api == "chat" else "agent_message"))
        wire.cancel(1)
        assert await wire.answer(1) == [*pairs(1, "1", STOPPED), interrupted(1)]
        wire.reply(2, "second")
        await wire.answer(2)

    assert parley_model.requests[1].body == body(
        api, User("first"), User("second"), cwd=wire.work, session=wire.sessions[0]
    )
