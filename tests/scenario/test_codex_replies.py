"""`codex-reply`: continuing a conversation of any client, and joining a running turn."""

from __future__ import annotations

import pytest

from kit.builders.events import agent_message, error, task_complete, task_started, user_message
from kit.clients.codex_calls import (
    EITHER_API,
    Assistant,
    User,
    answered,
    body,
    configured,
    failed,
    interrupted,
    is_event,
    pairs,
    shown,
    speaking,
    without_message_ids,
)
from kit.clients.messages import turn_value
from kit.clients.traces import SPENT, said
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.events import AgentMessageDelta
from parley.wire.mcp import FULL_VERSION


@pytest.mark.promises("reply.joins")
@pytest.mark.parametrize("api", EITHER_API)
async def test_a_reply_to_a_running_turn_joins_it_and_both_are_answered_alike(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says("First", HOLD, " part")
    parley_model.says("Both done")
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "first")
        before = await wire.until(is_event("agent_message_delta"))
        wire.reply(2, "joined")
        # the reply gets the text that was in progress when it joined
        await wire.until(is_event("agent_message_delta"))
        parley_model.release()
        messages = await wire.answer(1, 2)

    session = wire.sessions[0]
    assert before == [
        *configured(1, session),
        *pairs(1, "1", task_started(), AgentMessageDelta(delta="First")),
    ]
    rest = shown(
        api,
        AgentMessageDelta(delta=" part"),
        agent_message("First part"),
        SPENT,
        *said("Both done"),
        task_complete("Both done"),
    )
    for request_id in (1, 2):
        mine = [one for one in messages if _is_of(one, request_id)]
        assert mine == [*pairs(request_id, "1", *rest), answered(request_id, "Both done")]
    assert [request.body for request in parley_model.requests] == [
        body(api, User("first"), cwd=wire.work, session=session),
        body(api, User("first"), Assistant("First part"), User("joined"), cwd=wire.work, session=session),
    ]


def _is_of(message: dict[str, object], request_id: int) -> bool:
    params = message.get("params")
    if isinstance(params, dict):
        return bool(params["_meta"] == {"requestId": request_id})
    return message["id"] == request_id


async def test_a_reply_that_joins_in_mid_sentence_reads_the_sentence_from_its_beginning(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("Hello, ", HOLD, "world")
    async with speaking(parley_model, version=FULL_VERSION) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.reply(2, "joined")
        joined = await wire.until(
            lambda one: one.get("method") == "agent_message_delta" and one["params"]["_meta"] == {"requestId": 2}
        )
        parley_model.release()
        messages = await wire.answer(1, 2)

    said_so_far, reply = AgentMessageDelta(delta="Hello, "), user_message("joined", principal="local")
    assert without_message_ids(joined) == [
        *pairs(1, "1", reply),
        *pairs(2, "1", reply, said_so_far),
    ]
    turn = (
        AgentMessageDelta(delta="world"),
        agent_message("Hello, world"),
        AgentMessageDelta(delta="Done"),
        agent_message("Done"),
        task_complete("Done"),
    )
    expected = turn_value(wire.sessions[0], "Done")
    for request_id in (1, 2):
        mine = [one for one in messages if _is_of(one, request_id)]
        assert mine == [
            *pairs(request_id, "1", *turn),
            answered(request_id, "Done", structuredContent=expected),
        ]


@pytest.mark.promises("reply.joins")
async def test_several_replies_join_one_turn_in_their_order(parley_model: ScriptedModel) -> None:
    parley_model.says("So", HOLD, Call("look", "{}", "c1"))
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        for request_id in (2, 3, 4):
            wire.reply(request_id, f"joined {request_id}")
            await wire.until(is_event("agent_message_delta"))  # the text that was in progress when the reply joined
        parley_model.release()
        messages = await wire.answer(1, 2, 3, 4)

    turn = (agent_message("So"), AgentMessageDelta(delta="Done"), agent_message("Done"), task_complete("Done"))
    for request_id in (1, 2, 3, 4):
        mine = [one for one in messages if _is_of(one, request_id)]
        assert mine == [*pairs(request_id, "1", *turn), answered(request_id, "Done")]
    contents = [one["content"] for one in parley_model.requests[-1].body["messages"][2:]]
    assert contents == ["first", "So", "unsupported call: look", "joined 2", "joined 3", "joined 4"]


async def test_a_reply_that_joined_a_turn_that_fails_is_answered_with_the_failure(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("First", HOLD)
    parley_model.fails(400, body="no")
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.reply(2, "joined")
        await wire.until(is_event("agent_message_delta"))
        parley_model.release()
        messages = await wire.answer(1, 2)
        wire.reply(3, "next")
        after = await wire.answer(3)

    message = "unexpected status 400 Bad Request: no"
    for request_id in (1, 2):
        mine = [one for one in messages if _is_of(one, request_id)]
        events = (agent_message("First"), error(message), task_complete())
        assert mine == [*pairs(request_id, "1", *events), failed(request_id, message)]
    done = (task_started(), AgentMessageDelta(delta="Done"), agent_message("Done"), task_complete("Done"))
    assert after == [*pairs(3, "2", *done), answered(3, "Done")]
    assert [one["content"] for one in parley_model.requests[-1].body["messages"][2:]] == [
        "first",
        "First",
        "joined",
        "next",
    ]


@pytest.mark.promises("cancel.codex")
@pytest.mark.parametrize("cancelled", [1, 2])
async def test_cancelling_either_of_two_calls_in_one_turn_interrupts_it_for_both(
    parley_model: ScriptedModel, cancelled: int
) -> None:
    parley_model.says("First", HOLD)
    async with speaking(parley_model) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.reply(2, "joined")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(cancelled)
        messages = [*await wire.answer(1, 2), *await wire.silence()]

    for request_id in (1, 2):
        mine = [one for one in messages if _is_of(one, request_id)]
        assert mine == [*pairs(request_id, "1", error(" Turn interrupted")), interrupted(request_id)]
    assert len(parley_model.requests) == 1


# --- one kind of conversation ------------------------------------------------------------------


@pytest.mark.promises("codex.conversation")
async def test_a_reply_continues_any_conversation(parley_model: ScriptedModel) -> None:
    parley_model.says("One")
    parley_model.says("Two")
    async with speaking(parley_model) as wire:
        wire.call(1, "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
        (created,) = await wire.answer(1)
        conversation = created["result"]["structuredContent"]["conversation_id"]
        wire.reply(2, "to a conversation", session=conversation)
        first = await wire.answer(2)
        wire.reply(3, "once more", session=conversation.upper())
        second = await wire.answer(3)

    for request_id, event_id, text, messages in ((2, "1", "One", first), (3, "2", "Two", second)):
        turn = (task_started(), AgentMessageDelta(delta=text), agent_message(text), task_complete(text))
        assert messages == [*pairs(request_id, event_id, *turn), answered(request_id, text)]
    assert parley_model.requests[1].body == body(
        "chat",
        User("to a conversation"),
        Assistant("One"),
        User("once more"),
        cwd=wire.work,
        session=conversation,
    )


async def test_a_reply_joins_a_turn_that_a_message_began_and_a_message_joins_that_of_a_call(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("One", HOLD)
    parley_model.says("Two", HOLD)
    async with speaking(parley_model) as wire:
        wire.call(1, "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
        (created,) = await wire.answer(1)
        conversation = created["result"]["structuredContent"]["conversation_id"]
        wire.send(2, conversation, "first")
        await wire.answer(2)
        await parley_model.wait_until_held()
        wire.reply(3, "second", session=conversation)
        messages = await wire.until(is_event("agent_message_delta"))
        parley_model.release()
        messages += await wire.until(
            lambda one: one.get("method") == "agent_message_delta" and one["params"]["msg"]["delta"] == "Two"
        )
        await parley_model.wait_until_held()
        wire.send(4, conversation, "third")
        await wire.answer(4)
        parley_model.release()
        messages += await wire.answer(3)

    turn = (*said("One"), *said("Two"), *said("Done"), task_complete("Done"))
    assert messages == [*pairs(3, "1", *shown("chat", *turn)), answered(3, "Done")]
    assert parley_model.requests[-1].body == body(
        "chat",
        User("first"),
        Assistant("One"),
        User("second"),
        Assistant("Two"),
        User("third"),
        cwd=wire.work,
        session=conversation,
    )


@pytest.mark.promises("reply.result")
async def test_an_event_id_is_never_used_twice_in_a_session(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        wire.codex(2, "first")
        messages = await wire.answer(2)
        for request_id in (3, 4):
            wire.reply(request_id, "more")
            messages += await wire.answer(request_id)
        parley_model.says("Begun", HOLD)
        wire.send(5, wire.sessions[0], "a turn that no call began")
        await wire.answer(5)
        await parley_model.wait_until_held()
        wire.reply(6, "and one that joins it")
        messages += await wire.until(is_event("agent_message_delta"))
        parley_model.release()
        for request_id in (6, 7):
            messages += await wire.answer(request_id)
            wire.reply(request_id + 1, "more")
        messages += await wire.answer(8)

    ids = [(one["params"]["_meta"]["requestId"], one["params"]["id"]) for one in messages if "method" in one]
    assert list(dict.fromkeys(ids)) == [
        (2, "0"),
        (2, "2"),
        (3, "1"),
        (4, "3"),
        (6, "4"),
        (7, "5"),
        (8, "6"),
    ]
