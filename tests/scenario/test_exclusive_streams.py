"""An exclusive stream, which ends the streams of all other clients. Tests `parley.runtime.open_streams`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient
from kit.clients.http_events import last_id_of
from kit.clients.modern_client import ModernHttpClient
from kit.clients.reading import until_state
from kit.clients.requests import tool
from kit.clients.shared_home import ASKS, DelayedAnswer, Start, events_until, is_, shared
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.servers.in_process_resident import CuttingSocket, InProcessResident
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import Stream, StreamEnded, connect
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import AgentMessageDelta, TaskComplete
from parley.wire.mcp import PLAIN_VERSION

DISCONNECTED = "notifications/stream_disconnected"
ELICITS: dict[str, Any] = {"elicitation": {}}
BY_DESK = "New stream() took over, opened by desk"


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home", config="[mcp]\nmodern = true\n") as server:
        yield server


async def desk(server: HttpServer, **options: Any) -> HttpClient:
    """Return a client whose token is named `desk`."""
    return await server.client(token=await server.create_token("desk", "approver"), **options)


@pytest.mark.promises("stream.exclusive", "stream.taken-over", "modern.stream")
async def test_an_exclusive_stream_ends_those_of_all_other_clients_of_the_server(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    full, plain, taker = await server.client(), await server.client(version=PLAIN_VERSION), await desk(server)
    conversation, other = await full.create(), await full.create()
    for client in (full, plain):
        await client.call("conversationStream", conversation_id=conversation)
    await full.call("conversationStream", conversation_id=other)
    async with (
        full.stream() as first,
        plain.stream() as second,
        taker.stream() as own,
        ModernHttpClient(server.url, token=server.token) as modern,
        modern.call_stream("conversationStream", conversation_id=conversation) as third,
    ):
        await third.wait_for_message("notifications/initial_state")
        await taker.call("conversationStream", conversation_id=conversation, exclusive=True)
        ends = [(await one.wait_for_message(DISCONNECTED))["params"] for one in (first, second, third)]
        answer = (await third.rest())[-1]["result"]["structuredContent"]
        await taker.say(conversation, "only for me")
        await own.wait_for_message("task_complete")
        await taker.say(other, "for the others")
        await first.wait_for_message("task_complete")

    meta = {"_meta": {"conversationId": conversation}}
    named = {**meta, "reason": BY_DESK, "code": "taken_over"}
    assert ends == [named, {**meta, "reason": "New stream() took over"}, named]
    assert answer["state"] == "idle"
    assert answer["seq"] == 1
    ended = [event.message.get("method") for event in first.events].index(DISCONNECTED)
    assert {event.message["params"]["_meta"]["conversationId"] for event in first.events[ended + 1 :]} == {other}


@pytest.mark.promises("stream.taken-over-again")
async def test_a_client_whose_stream_was_taken_over_may_stream_again_beside_the_other(server: HttpServer) -> None:
    first, second = await server.client(), await desk(server)
    conversation = await first.create()
    async with first.stream() as here, second.stream() as there:
        await first.call("conversationStream", conversation_id=conversation, exclusive=True)
        await second.call("conversationStream", conversation_id=conversation, exclusive=True)
        await here.wait_for_message(DISCONNECTED)
        await first.call("conversationStream", conversation_id=conversation)
        await first.say(conversation, "go")
        await here.wait_for_message("task_complete")
        await there.wait_for_message("task_complete")

    assert DISCONNECTED not in [event.message.get("method") for event in there.events]


@pytest.mark.promises("stream.taken-over-again", "http.resume")
async def test_an_http_client_that_reconnects_does_not_get_the_stream_back(server: HttpServer) -> None:
    away, taker = await server.client(), await desk(server)
    conversation = await away.create()
    await away.call("conversationStream", conversation_id=conversation)
    async with away.stream() as stream:
        await stream.wait_for_message("notifications/initial_state")
    await taker.call("conversationStream", conversation_id=conversation, exclusive=True)
    await taker.say(conversation, "go")
    await until_state(taker, conversation, "idle")
    other = await away.create()
    seen = []
    for last_id in (last_id_of(stream.events), None):
        async with away.stream(Last_Event_ID=last_id) as resumed:
            await away.call("conversationStream", conversation_id=other)
            await resumed.until(lambda message: message["params"]["_meta"]["conversationId"] == other)
            seen.append([event.message["params"] for event in resumed.events])

    end = {"_meta": {"conversationId": conversation}, "reason": BY_DESK, "code": "taken_over"}
    assert [messages[:-1] for messages in seen] == [[end], [end]]


@pytest.mark.promises("stream.exclusive")
async def test_an_observer_cannot_take_over(server: HttpServer) -> None:
    client = await server.client()
    observer = await server.client(token=await server.create_token("watcher", "observer"))
    conversation = await client.create()
    await client.call("conversationStream", conversation_id=conversation)
    reply = await observer.post(tool(9, "conversationStream", {"conversation_id": conversation, "exclusive": True}))
    async with client.stream() as stream:
        await client.say(conversation, "go")
        await stream.wait_for_message("task_complete")

    assert reply.json["result"]["structuredContent"]["code"] == "role_too_low"
    assert DISCONNECTED not in [event.message.get("method") for event in stream.events]


@pytest.mark.promises("stream.taken-over", "approvals.everybody")
async def test_open_approvals_go_with_the_streams_and_stay_with_calls(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    streaming, calling = await server.client(capabilities=ELICITS), await server.client(capabilities=ELICITS)
    taker = await desk(server, capabilities=ELICITS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done")
    settings = {"approval-policy": "untrusted", "sandbox": "workspace-write", "cwd": str(server.work)}
    async with calling.codex("make it", **settings) as call:
        asked = await call.wait_for_message("elicitation/create")
        conversation = asked["params"]["_meta"]["parley_conversation_id"]
        for client in (streaming, calling):
            await client.call("conversationStream", conversation_id=conversation)
        async with streaming.stream() as first, calling.stream() as second, taker.stream() as own:
            approval = await first.wait_for_message("elicitation/create")
            await second.wait_for_message("notifications/initial_state")
            await taker.call("conversationStream", conversation_id=conversation, exclusive=True)
            ends = [(await one.wait_for_message(DISCONNECTED))["params"]["reason"] for one in (first, second)]
            withdrawn = await first.wait_for_message("notifications/cancelled")
            again = await own.wait_for_message("elicitation/create")
            answer = {"action": "accept", "content": {"decision": "approved"}}
            await taker.post({"jsonrpc": "2.0", "id": again["id"], "result": answer})
            messages = await call.rest()

    assert ends == [BY_DESK] * 2
    assert withdrawn["params"] == {"requestId": approval["id"], "reason": BY_DESK}
    settled = [one["params"] for one in messages if one.get("method") == "notifications/cancelled"]
    assert [one["requestId"] for one in settled] == [asked["id"]]
    assert "settled" in settled[0]["reason"]
    assert messages[-1]["result"]["structuredContent"]["content"] == "Done"


@pytest.mark.promises("stream.taken-over-again")
async def test_the_python_client_does_not_open_a_stream_again_that_was_taken_over(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        InProcessResident(parley_model, tmp_path / "home") as resident,
        CuttingSocket(resident.path, str(tmp_path / "cut.sock")) as cutting,
        connect(resident.socket(cutting.path)) as one,
        connect(resident.socket()) as two,
    ):
        here = await one.create(cwd=tmp_path, model=MODEL)
        there = two.conversation(here.id)
        parley_model.says("Hello, ", HOLD, "world")
        async with here.stream() as first, here.stream() as second:
            turn = await here.send("greet me")
            await events_until(first, is_(AgentMessageDelta))
            of_turn = turn.detailed()
            await anext(of_turn)
            async with there.stream(exclusive=True, last=0) as own, there.stream() as beside:
                with pytest.raises(StreamEnded) as ended:
                    await first.turn()
                with pytest.raises(StreamEnded):
                    _ = [event async for event in of_turn]
                assert [type(event) async for event in second][-1] is AgentMessageDelta
                cutting.cut()
                await here.status()
                parley_model.release()
                text = await own.text()
                await events_until(beside, is_(TaskComplete))

        assert (ended.value.code, text) == ("taken_over", "Hello, world")
        assert ended.value.reason == "New stream() took over, opened by local"
        assert (first.disconnected_code, second.disconnected_code) == ("taken_over", "taken_over")
        async with here.stream() as again:
            assert await again.text() == "Hello, world"


@pytest.mark.child_process
@pytest.mark.promises("stream.exclusive", "stream.taken-over", "keeping.shared")
async def test_an_exclusive_stream_ends_those_of_clients_of_other_processes(
    start: Start, parley_model: ScriptedModel
) -> None:
    asks, taker_asks = DelayedAnswer(), DelayedAnswer()
    one, two = await start(on_approval=asks), await start(on_approval=taker_asks)
    here = await one.create(**ASKS)
    there = two.client.conversation(here.id)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done")
    async with here.stream() as first:
        await here.send("make it")
        await asks.asked()
        async with there.stream(exclusive=True) as second:
            with pytest.raises(StreamEnded) as ended:
                await first.turn()
            await asks.taken_back.wait()
            await taker_asks.asked()
            async with here.stream() as again:  # both streams are open
                taker_asks.answer("approved")
                texts = await second.text(), await again.text()

    assert (ended.value.code, ended.value.reason) == ("taken_over", "New stream() took over, opened by local")
    assert texts == ("Done", "Done")


@pytest.mark.child_process
@pytest.mark.promises("stream.exclusive")
async def test_of_clients_that_take_over_at_the_same_time_one_keeps_its_stream(
    start: Start, parley_model: ScriptedModel
) -> None:
    _, _, here, there = await shared(start)
    for _ in range(5):
        streams = await asyncio.gather(here.stream(exclusive=True), there.stream(exclusive=True))
        kept = await the_one_kept(*streams)
        await here.send("go")
        await kept.text()
        await kept.close()


async def the_one_kept(first: Stream, second: Stream) -> Stream:
    """Wait until one of two streams has ended, and return the other."""
    await until(lambda: first.closed or second.closed)
    return second if first.closed else first
