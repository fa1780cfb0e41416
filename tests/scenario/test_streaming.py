"""A streamed conversation, message by message, as a client at 2025-06-18 reads it."""

from __future__ import annotations

import json
from pathlib import Path
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
    initial_state,
    live,
    refused,
    remains,
    spoken,
    taken_over,
    task_complete,
)
from kit.clients.wire_client import WireClient, speaking
from parley.client import ToolFailed
from parley.testing import HOLD, ParleyProcess, Pieces, Reasoning, ScriptedModel
from parley.testing.render import Api
from parley.wire.ids import ConversationId

either_api = pytest.mark.parametrize("api", EITHER_API)


async def read_turn(speaker: WireClient) -> list[Any]:
    return await speaker.until_method("task_complete")


# --- ways to begin a stream --------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises(
    "stream.answer", "stream.initial-state", "send.result", "turn.order", "catchup.live", "versions.plain"
)
@either_api
async def test_a_client_that_streams_and_then_sends_sees_the_turn_live(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("Hello", ", ", "world")
        conversation = await client.create()
        stream = client.stream(conversation)
        connected = await client.take(2)
        sent = client.message(conversation, "greet me")
        seen = await read_turn(client)

        assert connected == [answered(stream, {}), initial_state(conversation)]
        assert seen == [
            answered(sent, {"status": "ok"}),
            *map(live, spoken(api, "Hello", ", ", "world")),
        ]
        assert await client.meanwhile() == []


@pytest.mark.promises("stream.initial-state", "catchup.finished-alone")
@either_api
async def test_a_client_that_sends_and_then_streams_gets_the_stored_events_of_the_turn(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("Hello", ", ", "world")
        conversation = await client.create()
        sent = client.message(conversation, "greet me")
        accepted = await client.read()
        await client.over(conversation)
        stream = client.stream(conversation)
        connected = await client.take(2)

        assert accepted == answered(sent, {"status": "ok"})
        assert connected == [
            answered(stream, {}),
            initial_state(conversation, *remains(api, "Hello, world")),
        ]
        assert await client.meanwhile() == []


@pytest.mark.promises("stream.pause", "stream.again", "catchup.finished-alone")
@either_api
async def test_a_client_that_pauses_sends_and_reconnects_misses_nothing(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("One")
        parley_model.says("Two")
        parley_model.says("Three")
        conversation = await client.create()
        first_stream, _ = await client.open_stream(conversation)
        await client.say(conversation, "first")
        first = await read_turn(client)
        client.cancel(first_stream)
        sent = client.message(conversation, "second")
        accepted = await client.read()
        await client.over(conversation)
        stream = client.stream(conversation)
        connected = await client.take(2)
        await client.say(conversation, "third")
        third = await read_turn(client)

        assert first == [*map(live, spoken(api, "One"))]
        assert accepted == answered(sent, {"status": "ok"})
        assert connected == [
            answered(stream, {}),
            initial_state(conversation, *remains(api, "One"), *remains(api, "Two")),
        ]
        assert third == [*map(live, spoken(api, "Three"))]


# --- order -----------------------------------------------------------------------------


@pytest.mark.promises("send.answer-first")
@either_api
async def test_the_answer_to_a_send_comes_first_however_fast_the_model_is(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        turns = []
        for number in range(20):
            sent = client.message(conversation, f"message {number}")
            turns.append((sent, await read_turn(client)))

        assert [seen for _, seen in turns] == [
            [answered(sent, {"status": "ok"}), *map(live, spoken(api, "Done"))] for sent, _ in turns
        ]


@pytest.mark.promises("send.answer-first")
async def test_a_turn_that_is_over_at_once_is_answered_first_as_well(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "instant.json").write_text(json.dumps({"replies": [[{"text": "Done"}]]}))
    provider = '[model_providers.instant]\nname = "Instant"\nwire_api = "scripted"\nscript = "instant.json"\n'
    async with speaking(parley_model, home=home, config=f'model_provider = "instant"\n{provider}') as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        turns = []
        for number in range(50):
            sent = client.message(conversation, f"message {number}")
            turns.append((sent, await read_turn(client)))

        assert [seen for _, seen in turns] == [
            [answered(sent, {"status": "ok"}), *map(live, spoken("chat", "Done"))] for sent, _ in turns
        ]


@pytest.mark.promises("send.answer-first")
async def test_messages_to_many_conversations_in_one_write_are_each_answered_before_their_turn(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        conversations = [await client.create() for _ in range(10)]
        for conversation in conversations:
            await client.open_stream(conversation)
        with client.at_once():
            sent = {client.message(conversation, "go"): conversation for conversation in conversations}
        of_each: dict[str, list[Any]] = {conversation: [] for conversation in conversations}
        while any(len(seen) < 1 + len(spoken("chat", "Done")) for seen in of_each.values()):
            message = await client.read()
            of = sent[message["id"]] if "id" in message else message["params"]["_meta"]["conversationId"]
            of_each[of].append(message)

        assert of_each == {
            conversation: [
                answered(request, {"status": "ok"}),
                *(live(event, of=conversation) for event in spoken("chat", "Done")),
            ]
            for request, conversation in sent.items()
        }


@pytest.mark.promises("turn.order", "catchup.live")
async def test_reasoning_is_streamed_and_stays_in_its_place(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, api="responses") as client:
        parley_model.says(Reasoning("Let me think."), "So ", HOLD, "be it.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "think")
        before = await client.until(lambda message: message == live(delta("So ")))
        stream = client.stream(conversation)
        joined = await client.take(3)
        parley_model.release()
        after = await read_turn(client)

        thought = {"type": "agent_reasoning", "text": "Let me think."}
        assert before == [
            live(TASK_STARTED),
            live({"type": "agent_reasoning_delta", "delta": "Let me think."}),
            live(thought),
            live(delta("So ")),
        ]
        assert joined == [
            answered(stream, {}),
            taken_over(conversation),
            initial_state(conversation, TASK_STARTED, thought, delta("So ")),
        ]
        assert after == [live(delta("be it.")), *map(live, remains("responses", "So be it.")[1:])]


# --- events by client --------------------------------------------------------------------------


@pytest.mark.promises("stream.only-while-open", "create.silent")
async def test_nothing_is_sent_without_a_stream(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says(Pieces("Nobody wait_for_message this.", 2), HOLD, "Nor this.")
        conversation = await client.create()
        await client.say(conversation, "speak")
        await parley_model.wait_until_held()
        before = await client.meanwhile()
        parley_model.release()
        await client.over(conversation)  # otherwise its answers would not be the next messages

        assert before == []
        assert await client.meanwhile() == []


@pytest.mark.promises("stream.only-while-open", "stream.pause")
async def test_a_paused_stream_is_silent_while_the_turn_continues(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Heard", HOLD, "Unheard")
        conversation = await client.create()
        stream, _ = await client.open_stream(conversation)
        await client.say(conversation, "speak")
        heard = await client.take(2)
        client.cancel(stream)
        assert await client.meanwhile() == []
        parley_model.release()
        await client.over(conversation)
        again = client.stream(conversation)
        resumed = await client.take(2)

        assert heard == [live(TASK_STARTED), live(delta("Heard"))]
        assert resumed == [
            answered(again, {}),
            initial_state(conversation, *remains("chat", "HeardUnheard")),
        ]


@pytest.mark.promises("stream.again")
async def test_streaming_again_gives_the_whole_history_again(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.say(conversation, "go")
        await client.over(conversation)
        snapshots = []
        for _ in range(3):
            stream, snapshot = await client.open_stream(conversation)
            client.cancel(stream)
            snapshots.append(snapshot)

        assert snapshots == [initial_state(conversation, *remains("chat", "Done"))] * 3


@pytest.mark.promises("stream.unknown")
async def test_an_unknown_conversation_cannot_be_streamed(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        unknown, missing = client.stream(str(uuid4())), client.call("conversationStream")

        assert sorted(await client.take(2), key=lambda answer: int(answer["id"])) == [
            {"jsonrpc": "2.0", "id": unknown, "result": {"content": [], "isError": True}},
            refused(missing, "Failed to parse arguments for conversationStream: missing field `conversation_id`"),
        ]
        assert await client.meanwhile() == []


@pytest.mark.promises("stream.unknown")
async def test_a_newer_client_gets_an_error_for_an_unknown_conversation(parley_server: ParleyProcess) -> None:
    with pytest.raises(ToolFailed) as failed:
        await parley_server.client.conversation(ConversationId(str(uuid4()))).stream()

    assert str(failed.value) == "conversationStream: Conversation does not exist"


# --- taking over and cancelling --------------------------------------------------------


@pytest.mark.promises("stream.take-over")
async def test_a_second_stream_takes_over_from_the_first(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One")
        parley_model.says("Two")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first")
        await read_turn(client)
        second = client.stream(conversation)
        change = await client.take(3)
        await client.say(conversation, "second")
        seen = await read_turn(client)

        assert change == [
            answered(second, {}),
            taken_over(conversation),
            initial_state(conversation, *remains("chat", "One")),
        ]
        assert seen == [*map(live, spoken("chat", "Two"))]  # each event arrives once, because there is one stream


@pytest.mark.promises("stream.inert")
async def test_the_id_of_a_stream_that_was_taken_over_is_inert(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        old, _ = await client.open_stream(conversation)
        client.stream(conversation)
        await client.take(3)
        client.cancel(old)
        client.cancel(old)
        await client.say(conversation, "go")
        seen = await read_turn(client)

        assert seen == [*map(live, spoken("chat", "Done"))]


@pytest.mark.promises("stream.inert")
async def test_the_id_of_a_cancelled_stream_is_inert(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        old, _ = await client.open_stream(conversation)
        client.cancel(old)
        await client.open_stream(conversation)
        client.cancel(old)
        await client.say(conversation, "go")
        seen = await read_turn(client)

        assert seen == [*map(live, spoken("chat", "Done"))]


async def test_a_stream_after_a_cancelled_one_takes_nothing_over(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        with client.at_once():
            first = client.stream(conversation)
            client.cancel(first)
            second = client.stream(conversation)
        *early, last = await client.until_answer(second)

        # The first stream may have been cancelled before or after its snapshot. Its request is answered in both
        # cases.
        assert early in ([answered(first, {})], [answered(first, {}), initial_state(conversation)])
        assert last == answered(second, {})
        assert await client.read() == initial_state(conversation)
        assert await client.meanwhile() == []


@pytest.mark.promises("cancel.nothing")
async def test_cancelling_what_is_no_stream_leaves_the_stream_alone(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        create = client.call("conversationCreate", prompt="", model="m", cwd=str(client.raw.work))
        conversation = (await client.value_of(create))["conversation_id"]
        stream, _ = await client.open_stream(conversation)
        listed = client.call("conversationsList")
        await client.result_of(listed)
        for request in (create, listed, stream + 100):
            client.cancel(request)
        await client.say(conversation, "go")

        assert await read_turn(client) == [*map(live, spoken("chat", "Done"))]


@pytest.mark.promises("stream.pause")
async def test_cancelling_a_stream_does_not_interrupt_its_turn(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Still ", HOLD, "here")
        conversation = await client.create()
        await client.say(conversation, "go")
        await parley_model.wait_until_held()
        stream, _ = await client.open_stream(conversation)
        client.cancel(stream)
        assert await client.meanwhile() == []
        parley_model.release()
        await client.over(conversation)

        _, snapshot = await client.open_stream(conversation)
        assert snapshot == initial_state(conversation, *remains("chat", "Still here"))


# --- several conversations -------------------------------------------------------------


@pytest.mark.promises("stream.conversation-id")
async def test_events_name_their_conversation_exactly_while_several_are_streamed(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        one, other = await client.create(), await client.create()

        async def turn_of(conversation: str) -> list[Any]:
            await client.say(conversation, "go")
            return await read_turn(client)

        one_stream, _ = await client.open_stream(one)
        alone = await turn_of(one)
        other_stream, other_snapshot = await client.open_stream(other)
        together = [await turn_of(one), await turn_of(other)]
        client.cancel(other_stream)
        alone_again = await turn_of(one)
        client.stream(other)
        await client.take(2)
        client.cancel(one_stream)
        other_alone = await turn_of(other)

        plain = [*map(live, spoken("chat", "Done"))]
        assert alone == alone_again == other_alone == plain
        assert other_snapshot == initial_state(other)
        assert together == [
            [live(event, of=conversation) for event in spoken("chat", "Done")] for conversation in (one, other)
        ]


@pytest.mark.promises("stream.conversation-id")
async def test_a_conversation_gets_its_name_in_the_middle_of_a_sentence(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One ", HOLD, "two ", HOLD, "three")
        one, other = await client.create(), await client.create()
        await client.open_stream(one)
        await client.say(one, "go")
        first = await client.take(2)
        stream, _ = await client.open_stream(other)
        parley_model.release()
        second = await client.read()
        client.cancel(stream)
        assert await client.meanwhile() == []
        await parley_model.wait_until_held()
        parley_model.release()
        rest = await read_turn(client)

        assert first == [live(TASK_STARTED), live(delta("One "))]
        assert second == live(delta("two "), of=one)
        assert rest == [
            live(delta("three")),
            live(agent_message("One two three")),
            live(task_complete("One two three")),
        ]


@pytest.mark.promises("stream.take-over")
async def test_taking_over_one_stream_leaves_the_others_alone(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        one, other = await client.create(), await client.create()
        await client.open_stream(one)
        await client.open_stream(other)
        again = client.stream(one)
        change = await client.take(3)
        await client.say(other, "go")
        seen = await read_turn(client)

        assert change == [answered(again, {}), taken_over(one), initial_state(one)]
        assert seen == [live(event, of=other) for event in spoken("chat", "Done")]


@pytest.mark.promises("cancel.interrupt")
async def test_streaming_clients_see_an_interrupt(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        conversation = await client.create()
        await client.open_stream(conversation)
        sent = await client.say(conversation, "go")
        before = await client.take(2)
        client.cancel(sent)
        after = await client.read()
        await parley_model.wait_abandoned()

        assert before == [live(TASK_STARTED), live(delta("Never "))]
        assert after == live(error(" Turn interrupted"))
        assert await client.meanwhile() == []
