"""The history that a model gets after turns with every kind of end."""

from __future__ import annotations

import json
from typing import Final

import pytest

from kit.clients.codex_calls import (
    EVERY_API,
    AskedFor,
    Assistant,
    CallSent,
    Output,
    User,
    Wire,
    body,
    is_event,
    speaking,
)
from parley.agent.instructions import BASE_INSTRUCTIONS
from parley.testing import HOLD, Call, Data, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION


def _bodies(wire: Wire, api: Api, *requests: tuple[AskedFor, ...]) -> list[object]:
    return [body(api, *items, cwd=wire.work, session=wire.sessions[0]) for items in requests]


def _sent(model: ScriptedModel) -> list[object]:
    return [request.body for request in model.requests]


@pytest.mark.promises("model.history")
@pytest.mark.parametrize("api", EVERY_API)
async def test_three_turns_with_calls_between_are_sent_whole(parley_model: ScriptedModel, api: Api) -> None:
    parley_model.says(Call("look", '{"at": "one"}', "c1"))
    parley_model.says("First ", "answer")
    parley_model.says("Second ", "answer")
    parley_model.says(Call("look", '{"at": "two"}', "c1"))  # models use a call id more than once
    parley_model.says("Third answer")
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "turn one")
        await wire.answer(1)
        for request_id, prompt in ((2, "turn two"), (3, "turn three")):
            wire.reply(request_id, prompt)
            await wire.answer(request_id)

    one = (User("turn one"),)
    looked = (*one, CallSent("c1", "look", '{"at": "one"}'), Output("c1", "unsupported call: look"))
    two = (*looked, Assistant("First answer"), User("turn two"))
    three = (*two, Assistant("Second answer"), User("turn three"))
    again = (*three, CallSent("c1", "look", '{"at": "two"}'), Output("c1", "unsupported call: look"))
    assert _sent(parley_model) == _bodies(wire, api, one, looked, two, three, again)


@pytest.mark.parametrize("api", EVERY_API)
async def test_joined_input_comes_after_the_outputs_of_the_response_it_waited_for(
    parley_model: ScriptedModel, api: Api
) -> None:
    calls = (Call("look", "{}", "c1"), Call("look", "{}", "c2"))
    parley_model.says("Looking.", HOLD, *calls)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.send(2, wire.sessions[0], "and ", "this")
        await wire.answer(2)
        parley_model.release()
        await wire.answer(1)

    outputs = [
        item
        for call_id, item_id in (("c1", "fc_2"), ("c2", "fc_3"))
        for item in (
            CallSent(call_id, "look", "{}", item_id, same_response=True),
            Output(call_id, "unsupported call: look"),
        )
    ]
    first = (User("first"),)
    if api != "responses":
        joined = (User("and this"),) if api == "chat" else (User("and "), User("this"))
        second: tuple[AskedFor, ...] = (*first, Assistant("Looking."), *outputs, *joined)
        assert _sent(parley_model) == _bodies(wire, api, first, second)
    else:
        message = {
            "type": "message",
            "id": None,
            "role": "user",
            "content": [{"type": "input_text", "text": "and "}, {"type": "input_text", "text": "this"}],
        }
        expected = body(api, *first, Assistant("Looking."), *outputs, cwd=wire.work, session=wire.sessions[0])
        expected["input"].append(message)
        assert _sent(parley_model) == [*_bodies(wire, api, first), expected]


@pytest.mark.parametrize("api", EVERY_API)
async def test_input_that_joins_while_the_last_words_are_said_is_answered_in_the_same_turn(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says("Bye", HOLD)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("agent_message_delta"))
        wire.send(2, wire.sessions[0], "wait")
        await wire.answer(2)
        parley_model.release()
        assert await wire.text(1) == "Done"

    assert _sent(parley_model) == _bodies(
        wire, api, (User("first"),), (User("first"), Assistant("Bye"), User("wait"))
    )


ONE: Final = (User("turn one"),)
LOOKED: Final = (
    *ONE,
    Assistant("Looking."),
    CallSent("c1", "look", "{}", "fc_2"),
    Output("c1", "unsupported call: look"),
)


@pytest.mark.promises("model.history", "failures.usable")
@pytest.mark.parametrize("api", EVERY_API)
async def test_after_a_failed_turn_all_that_was_complete_is_still_there(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says("Looking.", Call("look", "{}", "c1"))
    parley_model.cuts("I see")
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "turn one")
        await wire.answer(1)
        wire.reply(2, "turn two")
        await wire.answer(2)

    assert _sent(parley_model) == _bodies(wire, api, ONE, LOOKED, (*LOOKED, User("turn two")))


@pytest.mark.promises("failures.turns", "catchup.void")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_retry_sends_the_very_same_request_and_the_broken_text_is_not_kept(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.says("Looking.", Call("look", "{}", "c1"))
    parley_model.cuts("broken", Call("never", "{}", "c2"))
    parley_model.fails(503)
    parley_model.says("whole")
    async with speaking(parley_model, api=api, stream_max_retries=2) as wire:
        wire.codex(1, "turn one")
        assert await wire.text(1) == "whole"
        wire.reply(2, "turn two")
        await wire.answer(2)

    next_turn = (*LOOKED, Assistant("whole"), User("turn two"))
    assert _sent(parley_model) == _bodies(wire, api, ONE, LOOKED, LOOKED, LOOKED, next_turn)
    assert len({request.raw for request in parley_model.requests[1:4]}) == 1


async def test_input_that_joins_during_the_pause_before_a_retry_waits_for_the_next_request(
    parley_model: ScriptedModel,
) -> None:
    parley_model.cuts("broken")
    parley_model.says("whole")
    async with speaking(parley_model, stream_max_retries=1) as wire:
        wire.codex(1, "first")
        await wire.until(is_event("background_event"))
        wire.send(2, wire.sessions[0], "second")
        await wire.answer(1, 2)

    first = (User("first"),)
    assert _sent(parley_model) == _bodies(wire, "chat", first, first, (*first, Assistant("whole"), User("second")))


@pytest.mark.promises("model.responses")
async def test_items_that_only_the_responses_api_understands_go_back_as_they_came(
    parley_model: ScriptedModel,
) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ENC", "new": {"a": [1.50]}}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    shell = {
        "type": "local_shell_call",
        "id": "ls_1",
        "call_id": "c1",
        "action": {"type": "exec", "command": ["no-such-program"], "env": {"A": "1"}},
    }
    items = [
        Data(json.dumps({"type": "response.output_item.done", "item": item})) for item in (thought, search, shell)
    ]
    parley_model.says(*items)
    async with speaking(parley_model, api="responses") as wire:
        wire.codex(1, "go")
        await wire.answer(1)

    expected = body("responses", User("go"), cwd=wire.work, session=wire.sessions[0])
    text = "execution error: No such file or directory (os error 2)"
    output = {"type": "function_call_output", "call_id": "c1", "output": text}
    expected["input"] += [thought, search, shell, output]
    assert parley_model.requests[1].body == expected


async def test_text_that_was_shown_and_never_declared_whole_is_kept_once(parley_model: ScriptedModel) -> None:
    parley_model.says(
        Data('{"type": "response.output_text.delta", "delta": "Hel"}'),
        Data('{"type": "response.output_text.delta", "delta": "lo"}'),
    )
    async with speaking(parley_model, api="responses") as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Hello"
        wire.reply(2, "again")
        await wire.answer(2)

    assert _sent(parley_model) == _bodies(
        wire, "responses", (User("go"),), (User("go"), Assistant("Hello", None), User("again"))
    )


@pytest.mark.parametrize("api", EVERY_API)
async def test_several_texts_of_a_message_are_one_message(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as wire:
        wire.call(1, "conversationCreate", {"prompt": "not used", "model": MODEL, "cwd": str(wire.work)})
        (created,) = await wire.answer(1)
        conversation = created["result"]["structuredContent"]["conversation_id"]
        wire.send(2, conversation, "First text", "Second text")
        await wire.answer(2)
        await parley_model.wait_for_requests()

    expected = body(api, User("First textSecond text"), cwd=wire.work, session=conversation)
    if api == "responses":
        parts = [{"type": "input_text", "text": text} for text in ("First text", "Second text")]
        expected["input"][-1]["content"] = parts
    if api == "anthropic":
        texts = (User("First text"), User("Second text"))
        expected = body(api, *texts, cwd=wire.work, session=conversation)
    assert _sent(parley_model) == [expected]


# --- changes by a message ------------------------------------------------------------------------

FIRST, SECOND, THIRD = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2, 3))


async def _say(wire: Wire, conversation: str, text: str, **more: object) -> None:
    """Send a message to a streamed conversation, and wait for the end of its turn."""
    arguments = {"conversation_id": conversation, "content": [{"type": "text", "text": text}], **more}
    wire.call(wire.calls_made + 1, "conversationSendMessage", arguments)
    await wire.until(is_event("task_complete"))


async def _streamed(wire: Wire) -> str:
    """Create a conversation with an open stream."""
    wire.call(1, "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
    (created,) = await wire.answer(1)
    conversation = str(created["result"]["structuredContent"]["conversation_id"])
    wire.stream(2, conversation)
    await wire.until(is_event("notifications/initial_state"))
    return conversation


@pytest.mark.promises("send.parent")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_branch_continues_from_its_parent_and_sees_nothing_that_came_after(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        conversation = await _streamed(wire)
        await _say(wire, conversation, "one", message_id=FIRST)
        await _say(wire, conversation, "two", message_id=SECOND)
        await _say(wire, conversation, "instead", message_id=THIRD, parent_message_id=FIRST)
        await _say(wire, conversation, "anew", parent_message_id=conversation)

    one = (User("one"), Assistant("Done"))
    asked: list[tuple[AskedFor, ...]] = [one[:1], (*one, User("two")), (*one, User("instead")), (User("anew"),)]
    assert _sent(parley_model) == [body(api, *items, cwd=wire.work, session=conversation) for items in asked]


@pytest.mark.promises("send.overrides", "send.parent")
async def test_overrides_hold_from_their_message_on_and_a_branch_has_those_of_its_parent(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as wire:
        conversation = await _streamed(wire)
        await _say(wire, conversation, "one", message_id=FIRST)
        await _say(wire, conversation, "two", model="other", base_instructions="Be brief.")
        await _say(wire, conversation, "three")
        await _say(wire, conversation, "instead", message_id=THIRD, parent_message_id=FIRST)

    def asked(*items: AskedFor, model: str = MODEL, instructions: str = BASE_INSTRUCTIONS) -> object:
        return body("chat", *items, cwd=wire.work, session=conversation, model=model, instructions=instructions)

    done = Assistant("Done")
    two = (User("one"), done, User("two"))
    assert _sent(parley_model) == [
        asked(User("one")),
        asked(*two, model="other", instructions="Be brief."),
        asked(*two, done, User("three"), model="other", instructions="Be brief."),
        asked(User("one"), done, User("instead")),
    ]
