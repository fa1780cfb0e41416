"""Turns and streams of the Python client against a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import parley
from kit.clients.reading import until_state
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import ClientError, Event, Stream, Turn, TurnFailed, TurnResult, events
from parley.testing import HOLD, Call, ParleyProcess, ScriptedModel, Usage
from parley.testing.home import Home
from parley.wire.tools import Tokens


def texts(shown: list[Event]) -> list[str]:
    return [event.message for event in shown if isinstance(event, events.AgentMessage)]


async def test_the_result_of_a_turn_is_the_answer_to_its_message(
    parley_process: Callable[..., Awaitable[ParleyProcess]],
) -> None:
    parley_server = await parley_process(api="responses")
    parley_server.model.says("first answer")
    parley_server.model.says("second answer", Usage(input_tokens=7, cached_input_tokens=1, output_tokens=2))
    conversation = await parley_server.create()

    async with asyncio.timeout(TIMEOUT_SECONDS):
        first = await conversation.send("one")
        assert (await first.result()).text == "first answer"
        second = await conversation.send("two")
        usage = Tokens(
            input_tokens=7, cached_input_tokens=1, output_tokens=2, reasoning_output_tokens=0, total_tokens=9
        )
        assert await second.result() == TurnResult(text="second answer", usage=usage, diff=None, reason="done")
        assert (await first.result()).text == "first answer"
        assert [type(event) for event in [event async for event in second]] == [
            events.TaskStarted,
            events.UserMessage,
            events.AgentMessage,
            events.TokenCount,
            events.TaskComplete,
        ]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_turn_of_a_conversation_with_history_shows_its_own_events(
    parley_server: ParleyProcess, is_streamed: bool
) -> None:
    for number in range(3):
        parley_server.model.says(f"answer {number}")
    created = await parley_server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await (await created.send("one")).result()
        await (await created.send("two")).result()
        conversation = parley_server.client.conversation(created.id)
        if is_streamed:
            async with conversation.stream() as stream:
                turn = await conversation.send("three")
                assert texts([event async for event in turn]) == ["answer 2"]
                assert [await stream.text() for _ in range(3)] == ["answer 0", "answer 1", "answer 2"]
        else:
            turn = await conversation.send("three")
            assert texts([event async for event in turn]) == ["answer 2"]


async def test_readers_of_one_conversation_share_a_stream_and_miss_and_repeat_nothing(
    parley_server: ParleyProcess,
) -> None:
    model = parley_server.model
    model.says("Hello, ", HOLD, "wor", HOLD, "ld", HOLD, "!")
    conversation = await parley_server.create()

    async with asyncio.timeout(TIMEOUT_SECONDS), conversation.stream() as first:
        turn = await conversation.send("greet me")
        seen = [await anext(first) for _ in range(3)]
        assert seen[-1] == events.AgentMessageDelta(delta="Hello, ")
        reading = aiter(turn)
        assert [await anext(reading) for _ in range(3)] == seen
        model.release()
        await model.wait_until_held()
        # the second stream takes over the first on the connection
        async with conversation.stream(after=0) as second:
            model.release()
            await model.wait_until_held()
            model.release()
            whole = [await rest(first), [event async for event in reading], await rest(second)]

    assert ["".join(deltas) for deltas in map(deltas_in, whole)] == ["world!", "world!", "Hello, world!"]
    assert [texts(shown) for shown in whole] == [["Hello, world!"]] * 3


async def rest(stream: Stream) -> list[Event]:
    """Return the events up to the end of the turn."""
    shown: list[Event] = []
    async for event in stream:
        shown.append(event)
        if isinstance(event, events.TaskComplete):
            break
    return shown


def deltas_in(shown: list[Event]) -> list[str]:
    return [event.delta for event in shown if isinstance(event, events.AgentMessageDelta)]


async def test_a_message_that_joins_a_running_turn_has_the_result_of_that_turn(
    parley_server: ParleyProcess,
) -> None:
    parley_server.model.says("first", HOLD)
    parley_server.model.says("and second")
    conversation = await parley_server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        begun = await conversation.send("one")
        await parley_server.model.wait_until_held()
        joined = await conversation.send("two")
        parley_server.model.release()
        shown = [event async for event in joined]

        assert isinstance(shown[0], events.UserMessage)
        assert shown[0].message_id == joined.message_id
        assert isinstance(shown[-1], events.TaskComplete)
        assert texts(shown)[-1] == "and second"
        assert (await begun.result()).text == "first\nand second"


async def test_a_joined_turn_that_is_interrupted_fails_for_both_messages(parley_server: ParleyProcess) -> None:
    parley_server.model.says("half", HOLD)
    conversation = await parley_server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        turns = [await conversation.send("one")]
        await parley_server.model.wait_until_held()
        turns.append(await conversation.send("two"))
        await conversation.interrupt()
        for turn in turns:
            with pytest.raises(TurnFailed) as failed:
                await turn.result()
            assert (failed.value.reason, failed.value.text) == ("interrupted", "")


async def test_a_failed_turn_raises_with_its_text_reason_and_code(parley_server: ParleyProcess) -> None:
    parley_server.model.says("Let me see.", Call("shell", {"command": ["true"]}))
    parley_server.model.fails(400, body="no")
    conversation = await parley_server.create()
    turn = await conversation.send("go")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(TurnFailed, match="400") as failed:
            await turn.result()

    assert (failed.value.reason, failed.value.text, failed.value.code) == (
        "failed",
        "Let me see.",
        "unexpected_status",
    )


async def test_a_message_that_is_sent_again_has_its_turn_wherever_it_is_in_the_log(
    parley_server: ParleyProcess,
) -> None:
    parley_server.model.says("first answer")
    conversation = await parley_server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        turn = await conversation.send("one")
        await turn.result()
        await (await conversation.send("two")).result()
        later = parley_server.client.conversation(conversation.id)
        again = await later.send("one", message_id=turn.message_id)

        assert (await again.result()).text == "first answer"


async def test_a_turn_that_is_not_read_opens_no_stream(parley_server: ParleyProcess) -> None:
    conversation = await parley_server.create()
    turn = await conversation.send("one")
    await until_state(parley_server.client, conversation.id, "idle")

    assert isinstance(turn, Turn)
    assert not [frame for frame in parley_server.frames if b'"method":' in frame[:40]]


async def test_leaving_a_turn_closes_its_stream_and_its_result_can_still_be_read(
    parley_server: ParleyProcess,
) -> None:
    parley_server.model.says("Hello, ", HOLD, "world")
    conversation = await parley_server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        turn = await conversation.send("greet me")
        async for event in turn:
            if isinstance(event, events.AgentMessageDelta):
                break
        await parley_server.client.ping()
        before = len(parley_server.frames)
        parley_server.model.release()
        await until_state(parley_server.client, conversation.id, "idle")
        assert not [frame for frame in parley_server.frames[before:] if b'"method":' in frame[:40]]

        assert (await turn.result()).text == "Hello, world"


async def test_a_server_without_user_messages_says_that_a_turn_cannot_be_followed(
    parley_model: ScriptedModel,
) -> None:
    async with ParleyProcess(parley_model, protocol_version="2025-06-18") as parley:
        turn = await (await parley.create()).send("one")
        with pytest.raises(ClientError, match="2025-11-25"):
            await turn.result()


async def test_a_query_whose_turn_fails_raises_its_error(parley_model: ScriptedModel) -> None:
    parley_model.fails(400)
    home = Home(parley_model)
    home.open()
    shown: list[Event] = []

    async def ask() -> None:
        async for event in parley.query("greet me", cwd=home.work, transport=home.server()):
            shown.append(event)  # noqa: PERF401 - the events before the error count

    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            with pytest.raises(TurnFailed):
                await ask()
    finally:
        home.close()

    assert isinstance(shown[-1], events.TaskComplete)


async def test_a_query_yields_the_events_of_one_turn(parley_model: ScriptedModel) -> None:
    parley_model.says("Hello!")
    home = Home(parley_model)
    home.open()
    try:
        server = home.server()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            shown = [event async for event in parley.query("greet me", cwd=home.work, transport=server)]
    finally:
        home.close()

    assert (texts(shown), type(shown[-1])) == (["Hello!"], events.TaskComplete)
    assert server.exit_code == 0
