"""Streams that begin with the last events of a conversation, over every transport and in both eras."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kit.clients.http_events import last_id_of, logged, positions_in, until_seen
from kit.clients.messages import answered, refused
from kit.clients.modern_client import speaking_modern
from kit.clients.reading import until_state
from kit.clients.wire_client import WireClient, speaking
from kit.servers.http_server import HttpServer
from parley.app.http_choice import HttpChoice
from parley.client import events
from parley.testing import HOLD, ParleyProcess, ScriptedModel
from parley.wire.mcp import FULL_VERSION


async def read(client: WireClient, conversation: str, **arguments: Any) -> Any:
    return await client.value_of(client.call("conversationRead", conversation_id=conversation, **arguments))


async def talk(client: WireClient, conversation: str, *texts: str) -> None:
    for text in texts:
        await client.say(conversation, text)
        await client.over(conversation)


def snapshot_events(snapshot: Any) -> list[Any]:
    """Return the events of a snapshot in the form of `conversationRead`."""
    return [
        {"seq": one["_meta"]["seq"], "msg": one["msg"]} for one in snapshot["params"]["initial_state"]["events"]
    ]


@pytest.mark.promises("stream.last", "read.before")
@pytest.mark.parametrize("more", [{}, {"as": "log"}])
@pytest.mark.parametrize("last", [0, 1, 5, 8, 1000])
async def test_a_stream_begins_with_the_last_events_and_the_others_can_be_read(
    parley_model: ScriptedModel, last: int, more: dict[str, Any]
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await talk(client, conversation, "one", "two")
        whole = await read(client, conversation)
        _, snapshot = await client.open_stream(conversation, last=last, **more)
        if more:
            snapshot = snapshot["params"]["data"]
        meta, shown = snapshot["params"]["_meta"], snapshot_events(snapshot)
        earlier = (await read(client, conversation, before=meta["before"]))["events"] if "before" in meta else []
        await client.say(conversation, "three")
        live = await client.read()

        assert len(whole["events"]) == 8
        assert [*earlier, *shown] == whole["events"]
        assert (len(shown), "before" in meta) == (min(last, 8), last < 8)
        assert meta["seq"] == whole["seq"]
        params = live["params"]["data"]["params"] if more else live["params"]
        assert params["_meta"]["seq"] > meta["seq"]
        assert params["msg"] == {"type": "task_started"}


@pytest.mark.promises("stream.last")
async def test_texts_that_are_being_written_follow_the_last_events(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("Hello, ", HOLD, "world")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "greet me")
        await client.until_method("agent_message_delta")
        client.stream(conversation, last=1)
        _, _, snapshot = await client.take(3)
        parley_model.release()
        rest = await client.until_method("agent_message")

        shown = [one["msg"] for one in snapshot["params"]["initial_state"]["events"]]
        assert [one["type"] for one in shown] == ["user_message", "agent_message_delta"]
        assert [one["params"]["msg"].get("delta", one["params"]["msg"].get("message")) for one in rest] == [
            "world",
            "Hello, world",
        ]


@pytest.mark.promises("stream.last")
async def test_a_snapshot_of_large_events_has_fewer_of_them(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await talk(client, conversation, *(str(number) * 1_000_000 for number in range(6)))
        _, snapshot = await client.open_stream(conversation, last=1000)

        questions = [one["msg"] for one in snapshot_events(snapshot) if one["msg"]["type"] == "user_message"]
        assert [one["content"][0]["text"][0] for one in questions] == ["1", "2", "3", "4", "5"]
        assert snapshot["params"]["_meta"]["before"] == snapshot_events(snapshot)[0]["seq"]


@pytest.mark.promises("stream.last")
async def test_last_is_refused_with_after_and_unknown_to_older_clients(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        request = client.stream(conversation, last=1, after=0)
        answer = await client.read()

        text = "Failed to parse arguments for conversationStream: `last` cannot be combined with `after`"
        assert answer["result"].pop("structuredContent")["code"] == "bad_arguments"
        assert answer == refused(request, text)
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await talk(client, conversation, "one")
        request = client.stream(conversation, last=1)
        answer, snapshot = await client.take(2)

        assert answer == answered(request, {})
        assert len(snapshot["params"]["initial_state"]["events"]) == 3
        assert snapshot["params"]["_meta"] == {"conversationId": conversation}


@pytest.mark.promises("stream.last", "modern.stream")
async def test_a_request_at_2026_07_28_begins_with_the_last_events(parley_model: ScriptedModel) -> None:
    async with speaking_modern(parley_model, config="[mcp]\nmodern = true\n") as client:
        conversation = await client.create()
        await talk(client, conversation, "one")
        whole = await read(client, conversation)
        client.stream(conversation, last=1)
        snapshot = await client.read()

        assert snapshot_events(snapshot) == whole["events"][-1:]
        assert snapshot["params"]["_meta"]["before"] == whole["events"][-1]["seq"]


@pytest.mark.promises("stream.last", "http.resume", "http.restart")
async def test_over_http_the_stream_is_resumed_after_a_cut_and_after_a_restart(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    token = "t" * 32

    def serving() -> HttpServer:
        return HttpServer(parley_model, tmp_path / "home", choice=HttpChoice(token=token))

    async with serving() as server:
        client = await server.client(token=token)
        conversation = await client.create()
        for text in ("one", "two"):
            await client.say(conversation, text)
            await until_state(client, conversation, "idle")
        earlier = (await logged(client, conversation))[:-2]
        await client.call("conversationStream", conversation_id=conversation, last=2)
        async with client.stream() as stream:
            first = (await stream.wait_for_message("notifications/initial_state"))["params"]["_meta"]
        await client.say(conversation, "three")
        await until_state(client, conversation, "idle")
        async with client.stream(Last_Event_ID=last_id_of(stream.events)) as resumed:
            expected = (await logged(client, conversation))[len(earlier) :]
            await until_seen(resumed, stream.events, conversation, expected)
        async with client.stream() as anew:
            again = await anew.wait_for_message("notifications/initial_state")
        session = client.session_id
    async with serving() as server:
        client = await server.stranger(token=token)
        client.session_id = session
        async with client.stream() as restarted:
            after = await restarted.wait_for_message("notifications/initial_state")

    assert first["before"] == expected[0] > earlier[-1]
    for snapshot in (again, after):
        assert snapshot["params"]["_meta"]["before"] == first["before"]
        assert positions_in([snapshot], conversation) == expected


@pytest.mark.promises("stream.last")
async def test_the_python_client_begins_with_the_last_events(
    parley_process: Callable[..., Awaitable[ParleyProcess]],
) -> None:
    server = await parley_process()
    conversation = await server.create()
    await (await conversation.send("one")).result()
    whole = (await conversation.read()).events
    async with conversation.stream(last=2) as alone, conversation.stream() as all_of_it:
        async with conversation.stream(last=2) as beside, conversation.stream(last=0) as empty:
            start = beside.seq
            await conversation.send("two")
            shown = [await stream.turn() for stream in (alone, beside, all_of_it)]
            [*_, live] = await empty.turn()
            earlier = await conversation.read(before=start + 1)
        pages = [await conversation.read(before=10**6, limit=3)]
        while pages[-1].before is not None:
            pages.append(await conversation.read(before=pages[-1].before, limit=3))

    for turn in shown[:2]:
        message, end = turn
        assert isinstance(message, events.AgentMessage)
        assert isinstance(end, events.TaskComplete)
    assert len(alone.snapshot) == len(beside.snapshot) == 2
    assert empty.snapshot == []
    assert isinstance(live, events.TaskComplete)
    assert len(shown[2]) == len(whole) == 4
    assert earlier.events == whole[:2]
    assert [event for page in reversed(pages) for event in page.events] == list((await conversation.read()).events)
    with pytest.raises(TypeError):
        conversation.stream(after=1, last=1)
