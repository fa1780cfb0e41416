"""Messages during a turn, and the ways to interrupt a turn."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kit.clients.messages import (
    EITHER_API,
    TASK_STARTED,
    agent_message,
    answered,
    delta,
    error,
    failed,
    initial_state,
    live,
    remains,
    spoken,
    task_complete,
)
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, Call, RecordedRequest, ScriptedModel
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION

either_api = pytest.mark.parametrize("api", EITHER_API)

INTERRUPTED = error(" Turn interrupted")


def history(request: RecordedRequest) -> list[Any]:
    """Return the input of the model after the instructions and the environment, in one form for both APIs."""
    if request.api == "chat":
        return [item for message in request.body["messages"][2:] for item in _chat_items(message)]
    return [_responses_item(item) for item in request.body["input"][1:]]


def _chat_items(message: Any) -> list[tuple[str, str]]:
    match message:
        case {"role": "tool", "tool_call_id": call_id, "content": output, **rest} if not rest:
            return [(f"output of {call_id}", output)]
        case {"role": "assistant", "content": text, "tool_calls": calls, **rest} if not rest:
            made = [(f"call {call['id']}", call["function"]["name"]) for call in calls]
            return [("assistant", text), *made] if text else made
        case {"role": role, "content": str(text), **rest} if not rest:
            return [(role, text)]
        case _:
            raise AssertionError(f"{message} is not part of a history")


def _responses_item(item: Any) -> tuple[str, str]:
    match item:
        case {"type": "function_call_output", "call_id": call_id, "output": output}:
            return f"output of {call_id}", output
        case {"type": "function_call", "call_id": call_id, "name": name}:
            return f"call {call_id}", name
        case {"type": "message", "role": role, "content": [{"text": text}]}:
            return role, text
        case _:
            raise AssertionError(f"{item} is not part of a history")


async def read_turn(client: WireClient) -> list[Any]:
    return await client.until_method("task_complete")


# --- joining ---------------------------------------------------------------------------


@pytest.mark.promises("send.joins", "calls.unknown", "model.history")
@either_api
async def test_a_message_during_a_turn_joins_it_after_the_outputs(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("Let me look.", HOLD, Call("no_such_tool", {}, call_id="c1"))
        parley_model.says("Both ", "done.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first")
        begun = await client.take(2)
        joining = client.message(conversation, "second")
        joined = await client.read()
        await parley_model.wait_until_held()
        parley_model.release()
        rest = await read_turn(client)

        first, second = parley_model.requests
        assert begun == [live(TASK_STARTED), live(delta("Let me look."))]
        assert joined == answered(joining, {"status": "ok"})
        assert rest == [
            *map(live, remains(api, "Let me look.")[1:-1]),
            *map(live, spoken(api, "Both ", "done.")[1:]),
        ]
        assert history(first) == [("user", "first")]
        assert history(second) == [
            ("user", "first"),
            ("assistant", "Let me look."),
            ("call c1", "no_such_tool"),
            ("output of c1", "unsupported call: no_such_tool"),
            ("user", "second"),
        ]
        assert await client.meanwhile() == []


@pytest.mark.promises("send.joins")
@either_api
async def test_a_turn_does_not_end_while_input_waits(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("One.", HOLD)
        parley_model.says("Two.", HOLD)
        parley_model.says("Three.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first")
        await parley_model.wait_until_held()
        with client.at_once():
            requests = [client.message(conversation, text) for text in ("second", "third")]
        scripted = await client.until_answer(requests[-1])
        parley_model.release()
        await parley_model.wait_for_requests(2)
        await parley_model.wait_until_held()
        last = client.message(conversation, "fourth")
        scripted += await client.until_answer(last)
        parley_model.release()
        scripted += await read_turn(client)

        events = [message for message in scripted if "method" in message]
        turns = [spoken(api, text) for text in ("One.", "Two.", "Three.")]
        assert events == [
            *map(live, turns[0][:-1]),
            *map(live, turns[1][1:-1]),
            *map(live, turns[2][1:]),
        ]
        assert [message for message in scripted if "id" in message] == [
            answered(request, {"status": "ok"}) for request in (*requests, last)
        ]
        assert [history(request) for request in parley_model.requests] == [
            [("user", "first")],
            [("user", "first"), ("assistant", "One."), ("user", "second"), ("user", "third")],
            [
                ("user", "first"),
                ("assistant", "One."),
                ("user", "second"),
                ("user", "third"),
                ("assistant", "Two."),
                ("user", "fourth"),
            ],
        ]


@pytest.mark.promises("send.joins")
async def test_messages_in_one_write_make_one_turn_and_are_each_used_once(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says(HOLD, "Done")
        conversation = await client.create()
        with client.at_once():
            requests = [client.message(conversation, f"message {number}") for number in range(5)]
        answers = await client.take(5)
        await parley_model.wait_until_held()
        parley_model.release()
        await client.over(conversation)
        _, snapshot = await client.open_stream(conversation)

        assert answers == [answered(request, {"status": "ok"}) for request in requests]
        said = [text for role, text in history(parley_model.requests[-1]) if role == "user"]
        assert said == [f"message {number}" for number in range(5)]
        kinds = [one["msg"]["type"] for one in snapshot["params"]["initial_state"]["events"]]
        assert (kinds.count("task_started"), kinds.count("task_complete")) == (1, 1)


@pytest.mark.promises("turn.failed", "turn.one-end")
async def test_input_that_waited_when_the_turn_failed_is_in_the_next_request(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.cuts("One", HOLD)
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first")
        await client.take(2)
        await client.say(conversation, "second")
        await parley_model.wait_until_held()
        parley_model.release()
        broken = await read_turn(client)
        await client.say(conversation, "third")
        whole = await read_turn(client)

        failure, end = broken
        assert failure["method"] == "error"
        assert end == live(task_complete(None))
        assert whole == [*map(live, spoken("chat", "Done"))]
        assert history(parley_model.requests[-1]) == [("user", "first"), ("user", "second"), ("user", "third")]


# --- message ids -----------------------------------------------------------------------------


@pytest.mark.promises("send.same-id", "send.result")
@pytest.mark.parametrize("version", ["2025-06-18", FULL_VERSION])
async def test_the_same_message_again_is_answered_again_and_runs_nothing(
    parley_model: ScriptedModel, version: str
) -> None:
    async with speaking(parley_model, version=version) as client:
        message_id = str(uuid4())
        conversation = await client.create()
        with client.at_once():
            early = [client.message(conversation, "once", message_id=message_id) for _ in range(3)]
        answers = await client.take(3)
        await client.over(conversation)
        late = client.message(conversation, "once", message_id=message_id)
        answers.append(await client.read())
        await client.open_stream(conversation)
        meanwhile = await client.meanwhile()

        value = {"status": "ok", "message_id": message_id} if version == FULL_VERSION else {"status": "ok"}
        assert answers == [answered(request, value) for request in (*early, late)]
        assert meanwhile == []
        assert [history(request) for request in parley_model.requests] == [[("user", "once")]]


@pytest.mark.promises("send.same-id")
async def test_a_message_id_cannot_stand_for_two_messages(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        message_id = str(uuid4())
        conversation, other = await client.create(), await client.create()
        await client.say(conversation, "once", message_id=message_id)
        await client.over(conversation)
        before = await client.value_of(client.call("conversationRead", conversation_id=conversation))
        request = client.message(conversation, "something else", message_id=message_id)
        answer = await client.read()
        elsewhere = client.message(other, "something else", message_id=message_id)
        accepted = await client.read()
        await client.over(other)

        assert answer == failed(request, "Message id was used for another message", "message_id_taken")
        assert await client.value_of(client.call("conversationRead", conversation_id=conversation)) == before
        assert accepted == answered(elsewhere, {"status": "ok", "message_id": message_id})


async def test_cancelling_the_repetition_of_a_message_interrupts_the_turn_that_took_it(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One ", HOLD, "turn")
        message_id = str(uuid4())
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "once", message_id=message_id)
        begun = await client.take(2)
        again = await client.say(conversation, "once", message_id=message_id)
        client.cancel(again)

        assert [*begun, *await client.take(1)] == [
            live(TASK_STARTED),
            live(delta("One ")),
            live(error(" Turn interrupted")),
        ]


async def test_a_message_sent_twice_after_an_interrupt_runs_once(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        message_id = str(uuid4())
        conversation = await client.create()
        await client.open_stream(conversation)
        sent = await client.say(conversation, "first")
        await client.take(2)
        with client.at_once():
            client.cancel(sent)
            twice = [client.message(conversation, "second", message_id=message_id) for _ in range(2)]
        seen = await read_turn(client)

        assert [message for message in seen if "id" in message] == [
            answered(request, {"status": "ok"}) for request in twice
        ]
        assert [message for message in seen if "method" in message] == [
            live(INTERRUPTED),
            *map(live, spoken("chat", "Done")),
        ]
        assert history(parley_model.requests[-1]) == [("user", "first"), ("user", "second")]


# --- interrupting ----------------------------------------------------------------------


@pytest.mark.promises("cancel.send", "cancel.interrupt", "turn.one-end")
@either_api
async def test_cancelling_a_send_interrupts_its_turn_and_the_next_message_works(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("Never ", HOLD, "finished")
        parley_model.says("Fine.")
        conversation = await client.create()
        await client.open_stream(conversation)
        sent = await client.say(conversation, "first")
        begun = await client.take(2)
        client.cancel(sent)
        ended = await client.read()
        await parley_model.wait_abandoned()
        assert await client.meanwhile() == []
        await client.say(conversation, "second")
        after = await read_turn(client)

        assert begun == [live(TASK_STARTED), live(delta("Never "))]
        assert ended == live(INTERRUPTED)
        assert after == [*map(live, spoken(api, "Fine."))]
        assert history(parley_model.requests[-1]) == [("user", "first"), ("user", "second")]


@pytest.mark.promises("cancel.send")
async def test_cancelling_a_send_whose_turn_is_over_does_not_touch_the_present_one(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One")
        parley_model.says("Two ", HOLD, "more")
        conversation = await client.create()
        await client.open_stream(conversation)
        old = await client.say(conversation, "first")
        await read_turn(client)
        await client.say(conversation, "second")
        begun = await client.take(2)
        client.cancel(old)
        assert await client.meanwhile() == []
        parley_model.release()

        assert [*begun, *await read_turn(client)] == [*map(live, spoken("chat", "Two ", "more"))]


@pytest.mark.promises("cancel.send")
async def test_cancelling_a_message_that_joined_interrupts_the_turn_that_took_it(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first")
        await client.take(2)
        joined = await client.say(conversation, "second")
        client.cancel(joined)
        ended = await client.read()
        await parley_model.wait_abandoned()
        await client.say(conversation, "third")
        after = await read_turn(client)

        assert ended == live(INTERRUPTED)
        assert after == [*map(live, spoken("chat", "Done"))]
        # A message that was not sent to the model yet is not removed.
        assert history(parley_model.requests[-1]) == [("user", "first"), ("user", "second"), ("user", "third")]


async def test_a_send_that_is_cancelled_at_once_is_answered_and_interrupted(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says(HOLD, "never")
        conversation = await client.create()
        await client.open_stream(conversation)
        with client.at_once():
            sent = client.message(conversation, "first")
            client.cancel(sent)
        seen = await client.take(3)

        assert seen == [answered(sent, {"status": "ok"}), live(TASK_STARTED), live(INTERRUPTED)]
        assert await client.meanwhile() == []


@pytest.mark.promises("send.after-interrupt")
async def test_a_message_directly_after_a_cancel_gets_a_turn_of_its_own(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        parley_model.says("Fine.")
        conversation = await client.create()
        await client.open_stream(conversation)
        sent = await client.say(conversation, "first")
        await client.take(2)
        with client.at_once():
            client.cancel(sent)
            second = client.message(conversation, "second")
        seen = await read_turn(client)

        assert seen == [
            live(INTERRUPTED),
            answered(second, {"status": "ok"}),
            *map(live, spoken("chat", "Fine.")),
        ]
        assert history(parley_model.requests[-1]) == [("user", "first"), ("user", "second")]


@pytest.mark.promises("send.after-interrupt")
async def test_a_message_directly_after_an_interrupt_gets_a_turn_of_its_own(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first")
        await client.take(2)
        with client.at_once():
            interrupt = client.call("conversationInterrupt", conversation_id=conversation)
            second = client.message(conversation, "second")
        seen = await read_turn(client)

        assert seen == [
            answered(interrupt, {"status": "ok"}),
            live(INTERRUPTED),
            answered(second, {"status": "ok"}),
            *map(live, spoken("chat", "Done")),
        ]


@pytest.mark.promises("send.after-interrupt")
async def test_messages_after_an_interrupt_keep_their_order(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        conversation = await client.create()
        sent = await client.say(conversation, "first")
        await parley_model.wait_until_held()
        with client.at_once():
            client.cancel(sent)
            requests = [client.message(conversation, f"message {number}") for number in range(5)]
        answers = await client.take(5)
        await client.over(conversation)

        assert answers == [answered(request, {"status": "ok"}) for request in requests]
        assert [text for role, text in history(parley_model.requests[-1]) if role == "user"] == [
            "first",
            *(f"message {number}" for number in range(5)),
        ]


@pytest.mark.promises("send.after-interrupt")
async def test_a_message_does_not_overtake_one_that_waits_for_the_end_of_an_interrupted_turn(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        for number in range(60):  # the moment at which it could is short
            parley_model.says(HOLD, "never said")
            conversation = await client.create()
            sent = await client.say(conversation, "first")
            await parley_model.wait_until_held()
            with client.at_once():
                client.cancel(sent)
                second = client.message(conversation, "second")
            await parley_model.wait_abandoned(number + 1)
            third = client.message(conversation, "third")
            answers = await client.take(2)
            await client.over(conversation)

            assert answers == [answered(request, {"status": "ok"}) for request in (second, third)]
            said = [text for role, text in history(parley_model.requests[-1]) if role == "user"]
            assert said == ["first", "second", "third"]


@pytest.mark.promises("interrupt.result", "cancel.interrupt")
async def test_an_interrupt_ends_the_running_turn_for_all_readers(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Let me look.", Call("no_such_tool", {}, call_id="c1"))
        parley_model.says("Never ", HOLD, "finished")
        conversation = await client.create()
        await client.say(conversation, "first")
        await parley_model.wait_until_held()
        interrupt = client.call("conversationInterrupt", conversation_id=conversation)
        answer = await client.read()
        await parley_model.wait_abandoned()
        await client.over(conversation)
        _, snapshot = await client.open_stream(conversation)
        await client.say(conversation, "second")
        await read_turn(client)

        *begun, _ = remains("chat", "Let me look.")
        assert answer == answered(interrupt, {"status": "ok"})
        assert snapshot == initial_state(conversation, *begun, INTERRUPTED)
        assert history(parley_model.requests[-1]) == [
            ("user", "first"),
            ("assistant", "Let me look."),
            ("call c1", "no_such_tool"),
            ("output of c1", "unsupported call: no_such_tool"),
            ("user", "second"),
        ]


@pytest.mark.promises("interrupt.result")
async def test_an_interrupt_without_a_turn_changes_nothing(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        idle = client.call("conversationInterrupt", conversation_id=conversation)
        assert await client.read() == answered(idle, {"status": "ok"})
        unheard_of = client.call("conversationInterrupt", conversation_id=str(uuid4()))
        assert await client.read() == failed(unheard_of, "Conversation does not exist")
        await client.say(conversation, "go")

        assert await read_turn(client) == [*map(live, spoken("chat", "Done"))]


async def test_an_interrupt_of_one_conversation_leaves_the_others_alone(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One ", HOLD, "more")
        parley_model.says("Two ", HOLD, "more")
        one, other = await client.create(), await client.create()
        await client.say(one, "go")
        await parley_model.wait_until_held()
        await client.say(other, "go")
        await parley_model.wait_until_held(2)
        assert await client.value_of(client.call("conversationInterrupt", conversation_id=one)) == {"status": "ok"}
        await parley_model.wait_abandoned()
        parley_model.release()
        await client.over(other)
        snapshots = [(await client.open_stream(conversation))[1] for conversation in (one, other)]

        assert snapshots == [
            initial_state(one, TASK_STARTED, INTERRUPTED),
            initial_state(other, TASK_STARTED, agent_message("Two more"), task_complete("Two more")),
        ]


async def test_a_turn_can_be_interrupted_again_and_again(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        for number in range(10):
            parley_model.says(f"Attempt {number} ", HOLD, "never ends")
            sent = await client.say(conversation, f"message {number}")
            begun = await client.take(2)
            client.cancel(sent)
            client.cancel(sent)

            assert begun == [live(TASK_STARTED), live(delta(f"Attempt {number} "))]
            assert await client.read() == live(INTERRUPTED)
        await client.say(conversation, "last")

        assert await read_turn(client) == [*map(live, spoken("chat", "Done"))]
        assert history(parley_model.requests[-1]) == [
            *(("user", f"message {number}") for number in range(10)),
            ("user", "last"),
        ]
