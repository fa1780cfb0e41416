"""Reconnecting over HTTP: after a cut at any byte, a client resumes and gets every event once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient, SseEvent
from kit.clients.http_events import last_id_of, logged, positions_in, until_seen
from kit.clients.reading import until_state
from kit.clients.requests import ping, pong, tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS
from parley.server.http.event_ids import CallCursor, EventIds, SessionCursors
from parley.server.http.sessions import MAX_STREAMS
from parley.server.positions import Position
from parley.testing import HOLD, ScriptedModel

ASKS = {"approval-policy": "untrusted", "sandbox": "workspace-write"}


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


async def cut_stream(
    client: HttpClient,
    method: str,
    body: bytes,
    *,
    bytes_read: int,
    last_id: str | None = None,
    meanwhile: asyncio.Task[None] | None = None,
) -> tuple[list[SseEvent], bool]:
    """Open a stream, read some bytes or until a task is done, and cut the connection.

    Return the complete events in these bytes, and whether the server ended the stream before the cut.
    """
    parts = urlsplit(client.url)
    headers = client.headers(Last_Event_ID=last_id, Connection="close", Host=f"127.0.0.1:{parts.port}")
    head = [f"{method} /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    head.append(f"Content-Length: {len(body)}")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        received, has_ended = bytearray(), False

        async def read() -> None:
            nonlocal has_ended
            while len(received) < bytes_read and not has_ended:
                size = int(await reader.readline(), 16)
                received.extend(await reader.readexactly(size))
                await reader.readexactly(2)
                has_ended = not size

        reading = asyncio.create_task(read())
        await asyncio.wait({reading, *((meanwhile,) if meanwhile else ())}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        writer.transport.abort()
    content = bytes(received if has_ended else received[:bytes_read])
    events = []
    for block in content.split(b"\n\n")[:-1]:
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
        if b"data" in fields:
            event_id = fields.get(b"id")
            events.append(SseEvent(None if event_id is None else event_id.decode(), json.loads(fields[b"data"])))
    return events, has_ended


@pytest.mark.promises("http.resume")
@pytest.mark.parametrize("seed", range(4))
async def test_streams_that_are_cut_anywhere_have_every_event_once(
    server: HttpServer, parley_model: ScriptedModel, seed: int
) -> None:
    chance = random.Random(seed)
    client, other = await server.client(), await server.client()
    conversations = [await client.create() for _ in range(3)]
    for conversation in conversations:
        await client.call("conversationStream", conversation_id=conversation)

    async def talk() -> None:
        for number in range(12):
            parley_model.says(*[f"{number} {piece} " for piece in range(chance.randrange(1, 6))])
            conversation = chance.choice(conversations)
            await other.say(conversation, f"message {number}")
            await until_state(other, conversation, "idle")

    talking = asyncio.create_task(talk())
    messages: list[Any] = []
    last_id: str | None = None
    while not talking.done():
        events, _ = await cut_stream(
            client,
            "GET",
            b"",
            bytes_read=chance.choice((4, 400, 2000, 9000)),
            last_id=last_id,
            meanwhile=talking,
        )
        # Messages without an id that follow the last id are sent again. A client without an id starts from the
        # beginning.
        last_id = last_id_of(events, last_id)
        received = [event.message for event in events]
        messages = [*messages, *received] if last_id is not None else []
    await talking
    async with client.stream(Last_Event_ID=last_id) as stream:
        for conversation in conversations:
            expected = await logged(other, conversation)
            while expected != positions_in(
                [*messages, *(event.message for event in stream.events)], conversation
            ) and (await stream.next()):
                found = positions_in([*messages, *(event.message for event in stream.events)], conversation)
                assert found == expected[: len(found)]

            assert positions_in([*messages, *(one.message for one in stream.events)], conversation) == expected


@pytest.mark.promises("http.resume")
@pytest.mark.parametrize("seed", range(4))
async def test_a_call_that_is_cut_anywhere_has_every_event_once_and_its_answer(
    server: HttpServer, parley_model: ScriptedModel, seed: int
) -> None:
    chance = random.Random(seed)
    client = await server.client()
    parley_model.says(sh("c1", "echo one"))
    parley_model.says(sh("c2", "echo two"))
    parley_model.says(*[f"piece {number} " for number in range(20)])
    call = json.dumps(tool("the call", "codex", {"prompt": "go", "cwd": str(server.work)})).encode()
    while True:  # until the client has an id from which it can resume
        size = chance.choice((3000, 6000))
        events, ended = await cut_stream(client, "POST", call, bytes_read=size)
        last_id = last_id_of(events, None)
        if last_id is not None:
            break
    messages = [event.message for event in events]
    while not ended:
        events, ended = await cut_stream(
            client, "GET", b"", bytes_read=chance.choice((2000, 3000, 8000)), last_id=last_id
        )
        last_id = last_id_of(events, last_id)
        messages += [event.message for event in events]
    kinds = [
        (message["method"], message["params"]["msg"]["type"])
        for message in messages
        if "method" in message and not message["params"]["msg"]["type"].endswith("_delta")
    ]
    (found,) = (await client.call("conversationsList"))["conversations"]
    page = await client.call("conversationRead", conversation_id=found["conversation_id"], limit=1000)
    types = [event["msg"]["type"] for event in page["events"]]
    expected = [kind for kind in types if not kind.endswith("_delta")]

    assert [kind for method, kind in kinds if method == "codex/event"][1:] == expected
    assert [kind for method, kind in kinds if method != "codex/event"][1:] == expected
    assert len({json.dumps(message["params"]["id"]) for message in messages if "method" in message}) <= 2
    (answered,) = [message for message in messages if message.get("id") == "the call"]
    assert answered["result"]["content"][0]["text"] == "".join(f"piece {number} " for number in range(20))


@pytest.mark.promises("http.resume")
async def test_open_texts_begin_again_at_offset_0(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client()
    conversation = await client.create()
    await client.call("conversationStream", conversation_id=conversation)
    parley_model.says("The first half, ", HOLD, "the second half.")
    async with client.stream() as stream:
        await stream.wait_for_message("notifications/initial_state")
        await client.say(conversation, "go")
        delta = await stream.wait_for_message("agent_message_delta")
        last_id = last_id_of(stream.events, None)
    async with client.stream(Last_Event_ID=last_id) as again:
        repeated = await again.wait_for_message("agent_message_delta")
        parley_model.release()
        end = await again.wait_for_message("task_complete")

    assert delta["params"] == repeated["params"]
    assert repeated["params"]["_meta"]["offset"] == 0
    assert end["params"]["msg"]["last_agent_message"] == "The first half, the second half."
    assert [one.id is None for one in again.events if one.message.get("method") == "agent_message_delta"] == [
        True,
        True,
    ]


@pytest.mark.promises("http.resume")
async def test_a_stream_that_replaced_another_begins_with_its_snapshot_whatever_was_received_of_the_other(
    server: HttpServer,
) -> None:
    client = await server.client()
    conversation = await client.create()
    await client.call("conversationStream", conversation_id=conversation)
    async with client.stream() as stream:
        first = await stream.wait_for_message("notifications/initial_state")
        last_id = last_id_of(stream.events, None)
    assert last_id is not None
    await client.call("conversationStream", conversation_id=conversation)
    async with client.stream(Last_Event_ID=last_id) as again:
        second = await again.wait_for_message("notifications/initial_state")

    assert first["params"]["initial_state"] == second["params"]["initial_state"]


@pytest.mark.promises("http.resume", "http.questions")
async def test_a_resumed_call_requests_its_approval_again_and_is_answered(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    async with client.codex("go", cwd=str(server.work), **ASKS) as stream:
        asked = await stream.wait_for_message("elicitation/create")
        last_id = last_id_of(stream.events, None)
    async with client.stream(Last_Event_ID=last_id) as resumed:
        again = await resumed.wait_for_message("elicitation/create")
        await client.post({"jsonrpc": "2.0", "id": again["id"], "result": {"decision": "approved"}})
        messages = await resumed.rest()

    assert asked == again
    assert messages[-1]["result"]["content"][0]["text"] == "Done."
    assert (server.work / "made").exists()


@pytest.mark.promises("http.resume", "framing.ids")
@pytest.mark.parametrize(
    "request_id", [2**70, -(10**1000), "\N{FOX FACE}" * 1024], ids=["large", "negative", "long"]
)
async def test_a_call_is_resumed_whatever_its_request_id_is(
    server: HttpServer, parley_model: ScriptedModel, request_id: int | str
) -> None:
    client = await server.client()
    parley_model.says("Hello", HOLD)
    async with client.stream_post(tool(request_id, "codex", {"prompt": "hi"})) as stream:
        await stream.wait_for_message("agent_message_delta")
        last_id = last_id_of(stream.events)
    parley_model.release()
    async with client.stream(Last_Event_ID=last_id) as resumed:
        answer = (await resumed.rest())[-1]

    assert (answer["id"], answer["result"]["content"][0]["text"]) == (request_id, "Hello")


@pytest.mark.promises("http.resume")
async def test_a_client_gets_no_notice_about_a_stream_that_it_has_cancelled(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client()
    cancelled, other = await client.create(), await client.create()
    await client.post(tool(70, "conversationStream", {"conversation_id": cancelled}))
    async with client.stream() as stream:
        await stream.wait_for_message("notifications/initial_state")
        last_id = last_id_of(stream.events)
    await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 70}})
    async with client.stream(Last_Event_ID=last_id) as stream:
        await client.call("conversationStream", conversation_id=other)
        await stream.wait_for_message("notifications/initial_state")

    assert [one.message["method"] for one in stream.events] == ["notifications/initial_state"]


@pytest.mark.promises("http.resume")
async def test_a_call_that_has_ended_is_answered_when_it_is_resumed(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client()
    parley_model.says("Hello", HOLD)
    async with client.codex("hi") as stream:
        await stream.wait_for_message("agent_message_delta")
        last_id = last_id_of(stream.events, None)
    parley_model.release()
    (found,) = (await client.call("conversationsList"))["conversations"]
    await until_state(client, found["conversation_id"], "idle")
    parley_model.says(HOLD, "Later")
    await client.say(found["conversation_id"], "a later turn, which the call does not wait for")
    await parley_model.wait_until_held()
    answers = []
    for _ in range(2):
        async with client.stream(Last_Event_ID=last_id) as resumed:
            answers.append((await resumed.rest())[-1]["result"]["content"][0]["text"])
    running = await client.call("conversationStatus", conversation_id=found["conversation_id"])
    parley_model.release()

    assert (answers, running["state"]) == (["Hello", "Hello"], "running")


@pytest.mark.promises("http.resume")
async def test_a_long_snapshot_that_is_cut_is_sent_again(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client()
    conversation = await client.create()
    for _ in range(4):
        parley_model.says("x" * 500_000)
        await client.say(conversation, "go")
        await until_state(client, conversation, "idle")
    await client.call("conversationStream", conversation_id=conversation)
    events, _ = await cut_stream(client, "GET", b"", bytes_read=500_000)
    async with client.stream() as stream:
        state = await stream.wait_for_message("notifications/initial_state")

    assert events == []
    assert positions_in([state], conversation) == await logged(client, conversation)


@pytest.mark.promises("http.stream")
async def test_a_second_get_stream_during_a_long_snapshot_leaves_the_client_with_every_event(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client(receive_bytes=4096)
    conversation = await client.create()
    for _ in range(4):
        parley_model.says("x" * 500_000)
        await client.say(conversation, "go")
        await until_state(client, conversation, "idle")
    await client.call("conversationStream", conversation_id=conversation)
    async with client.stream() as first:
        await first.response.content.readexactly(1000)  # the snapshot has begun
        async with client.stream() as second:
            await second.response.content.readexactly(1000)
        with pytest.raises((EOFError, aiohttp.ClientError)):
            await first.wait_for_message("notifications/initial_state")
    async with client.stream() as third:
        state = await third.wait_for_message("notifications/initial_state")
        parley_model.says("Later.")
        await client.say(conversation, "go on")
        end = await third.wait_for_message("task_complete")

    assert positions_in([state], conversation) == (await logged(client, conversation))[:-4]
    assert end["params"]["msg"]["last_agent_message"] == "Later."


@pytest.mark.promises("http.resume")
async def test_an_id_of_another_session_or_a_changed_one_is_refused(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client, other = await server.client(), await server.client()
    conversation = await client.create()
    await client.call("conversationStream", conversation_id=conversation)
    async with client.stream() as stream:
        await stream.wait_for_message("notifications/initial_state")
    good = stream.events[-1].id
    assert good is not None
    changed = [good[:-2] + ("AA" if good[-2:] != "AA" else "BB"), good + "A", good[1:], "x", "==", "é", "A" * 5000]
    statuses = [(await client.send("GET", Last_Event_ID=wrong)).status for wrong in changed]

    assert statuses == [400] * len(changed)
    assert (await other.send("GET", Last_Event_ID=good)).status == 400
    async with client.stream(Last_Event_ID=good):
        assert (await client.post(ping(1))).json == pong(1)


def test_ids_are_signed_for_one_session_and_one_home() -> None:
    cursors = SessionCursors(streams={"c1": Position(41), "c2": Position(7, 1)})
    call = SessionCursors(call=CallCursor("r", "c1", "e", Position(3)))
    ids, elsewhere = EventIds(b"k" * 32), EventIds(b"l" * 32)
    event_id = ids.encode("s1", cursors)

    assert ids.decode("s1", event_id) == cursors
    assert ids.decode("s1", ids.encode("s1", call)) == call
    assert [ids.decode("s2", event_id), ids.decode("s1", event_id + "=")] == [None] * 2
    assert elsewhere.decode("s1", event_id) is None


@pytest.mark.promises("http.resume", "stream.as-log")
async def test_a_stream_of_log_messages_continues_after_its_last_one(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    await client.call("conversationStream", **{"conversation_id": conversation, "as": "log"})
    parley_model.says("One")
    parley_model.says("Two")
    async with client.stream() as stream:
        await client.say(conversation, "1")
        await stream.until(lambda message: "task_complete" in str(message))
        before = list(stream.events)
    await client.say(conversation, "2")
    await until_state(client, conversation, "idle")
    async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
        await until_seen(stream, before, conversation, await logged(client, conversation))

    assert {event.message["method"] for event in (*before, *stream.events)} == {"notifications/message"}
    assert "initial_state" not in str(stream.events)


@pytest.mark.long
@pytest.mark.promises("http.resume", "http.limits")
async def test_a_client_with_many_streams_and_long_request_ids_resumes(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client()
    conversations = [await client.create() for _ in range(MAX_STREAMS)]
    for number, conversation in enumerate(conversations):
        opening = tool(f"{number:04}" + "x" * 1020, "conversationStream", {"conversation_id": conversation})
        assert not (await client.post(opening)).json["result"]["isError"]
    one_more = tool("more", "conversationStream", {"conversation_id": await client.create()})
    refused = (await client.post(one_more)).json["result"]
    again = (await client.post(tool("again", "conversationStream", {"conversation_id": conversations[0]}))).json
    async with client.stream() as stream:
        for _ in conversations:
            await stream.wait_for_message("notifications/initial_state")
        last_id = last_id_of(stream.events)
    parley_model.says("While the client was away.")
    await client.say(conversations[-1], "go")
    await until_state(client, conversations[-1], "idle")
    async with client.stream(Last_Event_ID=last_id) as stream:
        await stream.wait_for_message("task_complete")
    received = [event.message for event in stream.events]

    assert (refused["isError"], refused["structuredContent"]["code"]) == (True, "too_many_streams")
    assert not again["result"]["isError"]  # this stream takes over from another one
    assert last_id is not None
    assert len(last_id) < 28 * 1024
    assert positions_in(received, conversations[-1]) == await logged(client, conversations[-1])
    assert {one["params"]["_meta"]["conversationId"] for one in received if "params" in one} == {conversations[-1]}
