"""A client that stops reading: the turn continues, and the client misses nothing."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from kit.builders.json import from_json
from kit.clients.messages import (
    EITHER_API,
    TASK_STARTED,
    agent_message,
    answered,
    delta,
    initial_state,
    live,
    remains,
    spoken,
    taken_over,
    task_complete,
)
from kit.clients.slow_client import SlowClient
from kit.clients.view import View
from kit.clients.wire_client import BaseClient, speaking
from parley.testing import HOLD, Call, Pieces, RawBody, ScriptedModel
from parley.testing.render import Api, render, writer_for
from parley.wire.ids import Seq
from parley.wire.jsonrpc import encode
from parley.wire.mcp import FULL_VERSION
from parley.wire.notifications import ConversationEvent

either_api = pytest.mark.parametrize("api", EITHER_API)

MEGABYTE: Final = 1024 * 1024

SIZE: Final = 4096
"""The number of characters in a large delta."""

EIGHT_CHARACTERS: Final = "abcdefgh"
"""The text of one small delta."""

MANY: Final = 60_000
"""The number of these deltas. Their messages are several times as large as the pipe and the server's buffer."""


def long_text(size: int) -> str:
    """Return a text whose pieces all differ."""
    return "%07d " * (size // 8) % tuple(range(size // 8))


@cache
def many_deltas(api: Api, deltas: int) -> RawBody:
    """Return a response of many small deltas that ends with a call, so that another request follows."""
    steps = (Pieces(EIGHT_CHARACTERS * deltas, 8), Call("no_such_tool", {}, call_id="c1"))
    parts = (part for part in render(writer_for(api), steps) if isinstance(part, bytes))
    return RawBody(body=b"".join(parts), cut_every=64 * 1024)


async def stall(client: BaseClient, conversation: str, deltas: int, *, api: Api = "chat") -> None:
    """Run a turn to the end of its first response without reading, and hold its second response after one word.

    The server then has far more messages for its client than the buffers hold.
    """
    model = client.model
    asked = len(model.requests)
    model.queue(many_deltas(api, deltas))
    model.says("And ", HOLD, "more.")
    client.message(conversation, "go")
    await model.wait_for_requests(asked + 2)
    await model.wait_until_held()


async def stall_streamed(client: BaseClient, deltas: int) -> None:
    """Run a turn as `stall` does, in a new conversation that the client streams."""
    conversation = await client.create()
    await client.open_stream(conversation)
    await stall(client, conversation, deltas)


def by_id(message: Any) -> int:
    return int(message["id"])


def events_in(messages: list[Any]) -> list[Any]:
    return [message["params"]["msg"] for message in messages if "method" in message]


def without_deltas(events: list[Any]) -> list[Any]:
    return [event for event in events if not event["type"].endswith("_delta")]


# --- reading again -----------------------------------------------------------------------------


@pytest.mark.promises("framing.slow-client", "catchup.merged")
async def test_a_client_that_reads_again_gets_the_missed_deltas_merged(
    parley_model: ScriptedModel,
) -> None:
    text = long_text(8 * MEGABYTE)  # far more than the buffers of the pipe and the sockets hold
    async with SlowClient(parley_model) as client:
        parley_model.says(Pieces(text, SIZE), HOLD, "The end.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "speak")
        # the model has sent the long text, and the client has read none of it
        await parley_model.wait_until_held()
        begun = await client.read()
        deltas: list[str] = []
        while sum(map(len, deltas)) < len(text):
            message = await client.read()
            assert message == live(delta(message["params"]["msg"]["delta"]))
            deltas.append(message["params"]["msg"]["delta"])
        parley_model.release()
        rest = await client.until_method("task_complete")

        sizes = [*map(len, deltas)]
        assert begun == live(TASK_STARTED)
        assert "".join(deltas) == text
        assert len(sizes) < len(text) // SIZE
        assert sizes[0] == SIZE  # a delta that was sent while the client kept up
        assert max(sizes) > MEGABYTE  # the missed deltas, merged
        assert rest == [live(delta("The end.")), *map(live, remains("chat", text + "The end.")[1:])]


@pytest.mark.promises("catchup.merged")
async def test_a_client_that_reads_after_the_end_of_the_text_gets_it_complete(parley_model: ScriptedModel) -> None:
    async with SlowClient(parley_model) as client:
        await stall_streamed(client, MANY)
        parley_model.release()
        answers_and_events = await client.until_method("task_complete")

        text = EIGHT_CHARACTERS * MANY
        events = events_in(answers_and_events)
        came = events.count(delta(EIGHT_CHARACTERS))
        assert 0 < came < MANY // 2
        begun = [TASK_STARTED, *[delta(EIGHT_CHARACTERS)] * came, agent_message(text)]
        assert events[: came + 2] == begun
        assert events[came + 2 :] in (
            [delta("And "), delta("more."), agent_message("And more."), task_complete("And more.")],
            [delta("And more."), agent_message("And more."), task_complete("And more.")],
            [agent_message("And more."), task_complete("And more.")],
        )


async def test_positions_and_offsets_have_no_gap_over_a_pause_in_reading(parley_model: ScriptedModel) -> None:
    async with SlowClient(parley_model, version=FULL_VERSION) as client:
        text = long_text(4 * MEGABYTE)
        parley_model.says(Pieces(text, SIZE), HOLD, "The end.")
        conversation = await client.create()
        _, snapshot = await client.open_stream(conversation)
        await client.say(conversation, "speak")
        await parley_model.wait_until_held()
        parley_model.release()
        seen = await client.until_method("task_complete")
        client.stream(conversation)
        _, _, again = await client.take(3)

        view, whole = View(), View()
        view.reached(Seq(snapshot["params"]["_meta"]["seq"]))
        for message in seen:
            view.take(from_json(ConversationEvent, message["params"]))  # the view fails if there is a gap
        for one in again["params"]["initial_state"]["events"]:
            whole.take(from_json(ConversationEvent, one))
        assert (view.events, view.open) == (whole.events, {})


async def test_a_codex_call_that_is_not_read_is_answered_after_all_its_events(
    parley_model: ScriptedModel,
) -> None:
    async with SlowClient(parley_model) as client:
        parley_model.queue(many_deltas("chat", MANY))
        call = client.call("codex", prompt="go")
        await parley_model.wait_for_requests(2)
        configured, _, *received, answer = await client.until_answer(call)

        text = EIGHT_CHARACTERS * MANY
        events = [one["params"]["msg"] for one in received if one["method"] == "codex/event"]
        came = events.count(delta(EIGHT_CHARACTERS))
        assert configured["params"]["msg"]["type"] == "session_configured"
        assert 0 < came < MANY // 2
        assert received[1::2] == [{**one, "method": one["params"]["msg"]["type"]} for one in received[::2]]
        assert without_deltas(events) == [
            TASK_STARTED,
            agent_message(text),
            agent_message("Done"),
            task_complete("Done"),
        ]
        assert answer["result"] == {"content": [{"type": "text", "text": "Done"}]}


# --- other clients ---------------------------------------------------------------------------


async def test_a_client_that_does_not_read_costs_its_server_no_memory(parley_model: ScriptedModel) -> None:
    deltas = 200_000
    unread = deltas * len(encode(live(delta(EIGHT_CHARACTERS))))
    grown = []
    for streamed in (False, True):
        async with SlowClient(parley_model) as client:
            conversation = await client.create()
            await client.say(conversation, "warm up")
            await client.over(conversation)
            if streamed:
                await client.open_stream(conversation)
            before = client.memory()
            await stall(client, conversation, deltas)
            grown.append(client.most_memory() - before)
            parley_model.release()

    alone, watched = grown
    assert unread > 20 * MEGABYTE
    assert watched - alone < 8 * MEGABYTE


@pytest.mark.promises("framing.slow-client")
async def test_turns_of_other_conversations_continue_while_the_client_does_not_read(
    parley_model: ScriptedModel,
) -> None:
    async with SlowClient(parley_model) as client, speaking(parley_model) as elsewhere:
        other = await client.create()
        await stall_streamed(client, MANY)
        asked = len(parley_model.requests)
        client.message(other, "first")
        await parley_model.wait_for_requests(asked + 1)
        their_own = await elsewhere.create()
        await elsewhere.open_stream(their_own)
        await elsewhere.say(their_own, "go")
        theirs = await elsewhere.until_method("task_complete")
        parley_model.release()
        await client.until_method("task_complete")
        client.stream(other)
        shown = (await client.take(2))[1]

        assert theirs == [*map(live, spoken("chat", "Done"))]
        assert shown == initial_state(other, *remains("chat", "Done"))


# --- streams that the client is not ready for ------------------------------------------


async def test_a_snapshot_that_is_cancelled_before_it_could_be_taken_is_never_made(
    parley_model: ScriptedModel,
) -> None:
    async with SlowClient(parley_model) as client:
        other = await client.create()
        await stall_streamed(client, MANY)
        with client.at_once():
            unwanted = client.stream(other)
            ping = client.request("ping", {})
        asked = len(parley_model.requests)
        client.cancel(unwanted)
        client.message(other, "go")  # when the model gets this message, the server has read the cancellation
        await parley_model.wait_for_requests(asked + 1)
        parley_model.release()
        seen = await client.until_method("task_complete")
        seen += await client.meanwhile()

        assert sorted((message for message in seen if message.get("id") in (unwanted, ping)), key=by_id) == [
            answered(unwanted, {}),
            {"jsonrpc": "2.0", "id": ping, "result": {}},
        ]
        assert [message for message in seen if message.get("method") == "notifications/initial_state"] == []
        # The message contains no conversation id, because only one stream was open: the second had ended before
        # this event.
        assert live(task_complete("And more.")) in seen


async def test_a_snapshot_is_as_new_as_the_moment_at_which_the_client_takes_it(
    parley_model: ScriptedModel,
) -> None:
    async with SlowClient(parley_model) as client:
        other = await client.create()
        await stall_streamed(client, MANY)
        asked, whole = len(parley_model.requests), remains("chat", "Done")
        with client.at_once():
            stream = client.stream(other)
            client.message(other, "first")  # after the request for the stream, and before the stream can begin
        await parley_model.wait_for_requests(asked + 1)
        parley_model.release()
        seen = await client.until(
            lambda message: message in (live(task_complete("Done"), of=other), initial_state(other, *whole))
        )

        its = [message for message in seen if message.get("params", {}).get("_meta") == {"conversationId": other}]
        snapshot, *rest = its
        events = [one["msg"] for one in snapshot["params"]["initial_state"]["events"]]
        assert snapshot == initial_state(other, *events)
        assert answered(stream, {}) in seen
        assert without_deltas([*events, *(message["params"]["msg"] for message in rest)]) == whole
        assert events != []


async def test_a_stream_can_be_taken_over_before_its_snapshot_was_made(parley_model: ScriptedModel) -> None:
    async with SlowClient(parley_model) as client:
        other = await client.create()
        await stall_streamed(client, MANY)
        with client.at_once():
            first = client.stream(other)
            second = client.stream(other)
        parley_model.release()
        seen = await client.until(lambda message: message == initial_state(other))

        concerning = [
            message
            for message in seen
            if message.get("id") in (first, second) or message.get("method", "").startswith("notifications/")
        ]
        assert concerning == [
            answered(first, {}),
            answered(second, {}),
            taken_over(other),
            initial_state(other),
        ]
        assert [message for message in await client.meanwhile() if message == initial_state(other)] == []


@pytest.mark.promises("lifecycle.stopped-turn", "framing.slow-client")
async def test_a_client_that_is_behind_when_the_server_ends_still_reads_the_end_of_its_turn(
    parley_model: ScriptedModel,
) -> None:
    async with SlowClient(parley_model) as client:
        await stall_streamed(client, 40_000)

        client.close_stdin()
        await client.take_all()
        messages = await client.until_method("notifications/stream_disconnected")

        events = without_deltas(events_in(messages[:-1]))
        text = EIGHT_CHARACTERS * 40_000
        assert events[-1] == {"type": "error", "message": "Turn interrupted: the server was stopped"}
        assert {"type": "agent_message", "message": text} in events
        assert messages[-1]["params"]["reason"] == "Server is shutting down"


async def test_a_call_that_is_read_late_is_answered_with_what_came_of_its_own_turn(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    text = long_text(4 * MEGABYTE)
    async with SlowClient(parley_model, home=tmp_path) as slow, speaking(parley_model, home=tmp_path) as other:
        parley_model.says(HOLD, Pieces(text, SIZE))
        call = slow.call("codex", prompt="go", cwd=str(slow.work))
        (*_, configured) = await slow.until_method("session_configured")
        conversation = configured["params"]["msg"]["session_id"]
        await other.open_stream(conversation)
        await parley_model.wait_until_held()
        parley_model.release()
        await other.until_method("task_complete")
        await other.say(conversation, "again")
        await other.until_method("task_complete")
        *_, answer = await slow.until_answer(call)

        assert answer["result"]["content"][0]["text"] == text


# --- the long version ------------------------------------------------------------------

PAUSE_SECONDS: Final = 10.0
"""The time in seconds for which a client does not read.

The test measures the effect of this pause, and waits for nothing else.
"""


@pytest.mark.long
@either_api
async def test_a_client_that_does_not_read_for_ten_seconds_misses_nothing(
    parley_model: ScriptedModel, api: Api
) -> None:
    deltas = 1_000_000
    async with SlowClient(parley_model, api=api) as client, speaking(parley_model) as elsewhere:
        conversation = await client.create()
        await client.say(conversation, "warm up")
        await client.over(conversation)
        _, snapshot = await client.open_stream(conversation)
        before = client.memory()
        await stall(client, conversation, deltas, api=api)
        their_own = await elsewhere.create()
        await elsewhere.open_stream(their_own)
        loop = asyncio.get_running_loop()
        until = loop.time() + PAUSE_SECONDS
        while loop.time() < until:
            await elsewhere.say(their_own, "go")
            assert await elsewhere.until_method("task_complete") == [*map(live, spoken("chat", "Done"))]
        grown = client.most_memory() - before
        parley_model.release()
        seen = await client.until_method("task_complete")
        client.stream(conversation)
        _, _, again = await client.take(3)

        first_turn = [one["msg"] for one in snapshot["params"]["initial_state"]["events"]]
        whole = [one["msg"] for one in again["params"]["initial_state"]["events"]]
        assert [*first_turn, *without_deltas(events_in(seen))] == whole
        assert agent_message(EIGHT_CHARACTERS * deltas) in whole
        unread = deltas * len(encode(live(delta(EIGHT_CHARACTERS))))
        assert grown < unread
