"""Streamable HTTP: sessions, answers, streams, approval requests, and closed streams."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient, HttpReply, SseReader
from kit.clients.reading import until_state
from kit.clients.requests import ping, pong, request, tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.waiting import until
from parley.conversation import log as conversation_log
from parley.conversation.log import Delta
from parley.runtime import durable_log
from parley.runtime.conversation import Conversation
from parley.testing import HOLD, ScriptedModel
from parley.wire.events import AgentMessage
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import encode as wire_encode

ELICITS: dict[str, Any] = {"elicitation": {}}
ASKS = {"approval_policy": "untrusted", "sandbox": "workspace-write"}
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


def is_event(kind: str) -> Any:
    return lambda message: message.get("method") == kind


# --- sessions ------------------------------------------------------------------------------


def refusal(reply: HttpReply) -> tuple[int, Any, str]:
    """Return the status of a refused request, the id in its body, and its code."""
    return reply.status, reply.json["id"], reply.json["error"]["data"]["code"]


@pytest.mark.promises("http.session")
@pytest.mark.parametrize("version", VERSIONS)
async def test_initialize_begins_a_session_and_delete_ends_it(server: HttpServer, version: str) -> None:
    client = await server.stranger(version=version)
    begun = await client.initialize()
    assert (begun.status, begun.json["result"]["protocolVersion"]) == (200, version)
    assert client.session_id is not None
    assert len(client.session_id) >= 43

    initialized = await client.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    answered = await client.post(ping(2))
    deleted = await client.send("DELETE")
    gone = [(await client.post(ping(3))).status, (await client.send("GET")).status]

    assert (initialized.status, initialized.body) == (202, b"")
    assert (answered.status, answered.json) == (200, pong(2))
    assert (deleted.status, gone) == (204, [404, 404])
    assert len(server.service.sessions) == 0


@pytest.mark.promises("http.session")
async def test_a_request_without_a_session_is_refused(server: HttpServer) -> None:
    client = await server.client()

    replies = [
        await client.post(ping(1), Mcp_Session_Id=None),
        await client.post(ping(1), Mcp_Session_Id="x" * 43),
        await client.send("GET", Mcp_Session_Id=None),
        await client.send("DELETE", Mcp_Session_Id="other"),
    ]

    assert [refusal(reply) for reply in replies] == [
        (400, 1, "session_missing"),
        (404, 1, "unknown_session"),
        (400, None, "session_missing"),
        (404, None, "unknown_session"),
    ]


@pytest.mark.promises("http.session")
async def test_a_failed_initialize_leaves_no_session(server: HttpServer) -> None:
    client = await server.stranger()
    reply = await client.post(request(1, "initialize", {"protocolVersion": 5}))

    assert (reply.status, reply.json["error"]["code"]) == (200, -32602)
    assert "Mcp-Session-Id" not in reply.headers
    await until(lambda: len(server.service.sessions) == 0)


@pytest.mark.promises("http.version")
async def test_the_version_of_a_request_is_that_of_its_session(server: HttpServer) -> None:
    client = await server.client()
    replies = [
        await client.post(ping(1), MCP_Protocol_Version=version)
        for version in (None, "2025-11-25", "2025-06-18", "nonsense", "2030-01-01")
    ]

    assert [reply.status for reply in replies[:2]] == [200, 200]
    assert refusal(replies[2]) == (400, 1, "version_mismatch")
    assert [refusal(reply) for reply in replies[3:]] == [(400, 1, "unsupported_version")] * 2
    for reply, requested in ((replies[3], "unknown"), (replies[4], "2030-01-01")):
        error = reply.json["error"]
        assert (reply.json["id"], error["code"], error["data"]["requested"]) == (1, -32022, requested)
        assert "2025-11-25" in error["data"]["supported"]


# --- answers -------------------------------------------------------------------------------


@pytest.mark.promises("http.answers")
@pytest.mark.parametrize("version", VERSIONS)
async def test_codex_answers_as_a_stream_with_its_events_and_then_its_result(
    server: HttpServer, parley_model: ScriptedModel, version: str
) -> None:
    client = await server.client(version=version)
    parley_model.says("Hello", " there")
    async with client.codex("hi") as stream:
        messages = await stream.rest()

    assert stream.response.headers["X-Accel-Buffering"] == "no"
    assert [one["method"] for one in messages[:2]] == ["codex/event", "session_configured"]
    assert [one["params"]["msg"]["delta"] for one in messages if one.get("method") == "agent_message_delta"] == [
        "Hello",
        " there",
    ]
    assert messages[-1]["result"]["content"][0]["text"] == "Hello there"


@pytest.mark.promises("http.answers")
async def test_a_client_that_accepts_no_stream_gets_json(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client()
    parley_model.says("Hello")
    reply = await client.post(tool(7, "codex", {"prompt": "hi"}), Accept="application/json")
    refused = await client.post(ping(8), Accept="text/html")

    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    assert reply.json["result"]["content"][0]["text"] == "Hello"
    assert (refused.status, (await client.send("GET", Accept="application/json")).status) == (406, 406)


@pytest.mark.promises("http.answers")
async def test_requests_are_answered_at_the_same_time(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client()
    conversation = await client.create()
    parley_model.says(HOLD, "Done.")
    await client.say(conversation, "go")
    await parley_model.wait_until_held()
    status = await client.call("conversationStatus", conversation_id=conversation)
    waiting = asyncio.create_task(
        client.call("conversationRead", conversation_id=conversation, after=status["seq"], wait_seconds=50)
    )
    pinged = await client.post(ping("meanwhile"))
    parley_model.release()

    assert pinged.json == pong("meanwhile")
    assert (await waiting)["events"]


@pytest.mark.promises("http.arrays")
async def test_arrays_are_for_one_version_only(server: HttpServer) -> None:
    old, new = await server.client(version="2025-03-26"), await server.client()
    oldest = await server.client(version="2024-11-05")
    both = await old.post([ping(1), {"jsonrpc": "2.0", "method": "notifications/initialized"}, request("b", "x")])
    notices = await old.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}])
    refused = [await client.post([ping(1)]) for client in (oldest, new)]
    wrong = [
        refusal(await old.post(body))
        for body in ([], [ping(1)] * 1001, [1], [request(1, "initialize", {})], [[ping(1)]])
    ]

    assert sorted(one["id"] if "error" not in one else one["error"]["code"] for one in both.json) == [-32601, 1]
    assert (notices.status, notices.body) == (202, b"")
    assert [refusal(one) for one in refused] == [(400, None, "array_not_allowed")] * 2
    assert wrong == [(400, None, "bad_body")] * 5


NO_MESSAGES = [
    (b"", -32700),
    (b"{", -32700),
    (b"\xff", -32700),
    (b"[", -32700),
    (b"5", -32600),
    (b"{}", -32600),
    (b'{"id":null,"method":"ping"}', -32600),
    (b'{"id":1.5,"method":"ping"}', -32600),
    (b'{"id":1,"method":"ping","params":' + b"[" * 100_000, -32600),
]


@pytest.mark.promises("http.answers")
async def test_a_body_that_is_no_message_is_refused(server: HttpServer) -> None:
    client = await server.client()
    for body, code in NO_MESSAGES:
        reply = await client.send("POST", body)

        assert (body[:50], reply.status, reply.json["error"]["code"]) == (body[:50], 400, code)
        assert reply.json["id"] is None
    assert (await client.post(ping(1))).json == pong(1)


@pytest.mark.promises("http.answers")
async def test_a_cancelled_request_ends_without_an_answer(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client()
    parley_model.says(HOLD, "Never said.")
    async with client.stream_post(tool(50, "codex", {"prompt": "go"})) as stream:
        await stream.wait_for_message("task_started")
        await parley_model.wait_until_held()
        await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 50}})
        messages = await stream.rest()

    assert messages[-1]["params"]["msg"]["type"] == "error"
    assert not [one for one in messages if "id" in one]


# --- the GET stream ------------------------------------------------------------------------


@pytest.mark.promises("http.stream")
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_events_of_streams_come_on_the_get_stream_with_positions(
    server: HttpServer, parley_model: ScriptedModel, version: str
) -> None:
    client = await server.client(version=version)
    conversation = await client.create()
    started = await client.call("conversationStream", conversation_id=conversation)
    async with client.stream() as stream:
        state = await stream.wait_for_message("notifications/initial_state")
        parley_model.says("Hello", " there")
        await client.say(conversation, "hi")
        end = await stream.wait_for_message("task_complete")

    assert started == {}
    assert state["params"]["_meta"]["conversationId"] == end["params"]["_meta"]["conversationId"] == conversation
    assert end["params"]["_meta"]["seq"] > 0
    deltas = [one.message for one in stream.events if one.message.get("method") == "agent_message_delta"]
    assert [one["params"]["_meta"]["offset"] for one in deltas] == [0, 5]
    has_position = ["seq" in one.message["params"]["_meta"] for one in stream.events]
    assert [event.id is not None for event in stream.events] == has_position


async def test_each_event_is_encoded_once_for_all_clients(
    server: HttpServer, parley_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas: list[object] = []
    events: list[object] = []
    usual = conversation_log.encode_delta

    def encode_delta(delta: Delta) -> bytes:
        deltas.append(delta)
        return usual(delta)

    def encode(payload: object) -> bytes:
        events.append(payload)
        return wire_encode(payload)

    monkeypatch.setattr(durable_log, "encode_delta", encode_delta)
    monkeypatch.setattr(conversation_log, "encode", encode)
    parley_model.says("Hello", " there")
    async with contextlib.AsyncExitStack() as stack:
        clients = [await server.client() for _ in range(5)]
        conversation = await clients[0].create()
        streams = []
        for client in clients:
            await client.call("conversationStream", conversation_id=conversation)
            streams.append(await stack.enter_async_context(client.stream()))
            await streams[-1].wait_for_message("notifications/initial_state")
        await clients[0].say(conversation, "hi")
        for stream in streams:
            await stream.wait_for_message("task_complete")
    received = [one.message for stream in streams for one in stream.events]

    assert sum(one["method"] == "agent_message_delta" for one in received) == 5 * len(deltas) > 0
    assert sum(isinstance(one, AgentMessage) for one in events) == 1


@pytest.mark.promises("http.stream")
async def test_a_message_comes_on_one_stream_only_and_the_newest_get_stream_has_it(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    async with client.stream() as older, client.stream() as newer:
        await client.call("conversationStream", conversation_id=conversation)
        parley_model.says("Hello")
        await client.say(conversation, "hi")
        await newer.wait_for_message("task_complete")
        newer.close()
        parley_model.says("Again")
        await until(lambda: server.server.core.clients.copy().pop().out.streams == 1)  # type: ignore[attr-defined]  # a `PushOutbox`
        await client.say(conversation, "again")
        again = await older.wait_for_message("agent_message")

    assert again["params"]["msg"]["message"] == "Again"
    assert {one.message["method"] for one in older.events}.isdisjoint({"notifications/initial_state"})


@pytest.mark.promises("http.slow")
async def test_an_unread_stream_delays_no_other(server: HttpServer, parley_model: ScriptedModel) -> None:
    slow, quick = await server.client(), await server.client()
    conversation = await quick.create()
    for client in (slow, quick):
        await client.call("conversationStream", conversation_id=conversation)
    async with slow.stream() as unread, quick.stream() as stream:
        parley_model.says(*["x" * 50_000] * 60)
        await quick.say(conversation, "go")
        end = await stream.wait_for_message("task_complete")
        pinged = await slow.post(ping(1))
        await unread.wait_for_message("task_complete")

    assert end["params"]["msg"]["last_agent_message"] == "x" * 3_000_000
    assert pinged.json == pong(1)
    texts = [
        one.message["params"]["msg"]["delta"] for one in unread.events if is_event("agent_message_delta")(one[1])
    ]
    assert len("".join(texts)) <= 3_000_000


# --- approval requests -----------------------------------------------------------------------


async def settled(reader: SseReader) -> Any:
    return (await reader.wait_for_message("approval_settled"))["params"]["msg"]


def answer(approval: Any, decision: str = "approved") -> dict[str, Any]:
    result = {"action": "accept", "content": {"decision": decision}, "decision": decision}
    return {"jsonrpc": "2.0", "id": approval["id"], "result": result}


@pytest.mark.promises("http.questions")
async def test_the_approvals_of_a_call_are_requested_on_its_own_stream(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client(capabilities=ELICITS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    async with client.stream() as other, client.codex("go", cwd=str(server.work), **_codex(ASKS)) as stream:
        approval = await stream.wait_for_message("elicitation/create")
        accepted = await client.post(answer(approval))
        messages = await stream.rest()
        await client.send("DELETE")
        pushed = await other.rest()

    assert (accepted.status, accepted.body) == (202, b"")
    assert messages[-1]["result"]["content"][0]["text"] == "Done."
    assert (server.work / "made").exists()
    assert pushed == []


@pytest.mark.promises("http.questions", "http.closed")
async def test_an_approval_whose_stream_closed_is_requested_again_on_the_get_stream(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client(capabilities=ELICITS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    async with client.codex("go", cwd=str(server.work), **_codex(ASKS)) as stream:
        first = await stream.wait_for_message("elicitation/create")
    async with client.stream() as lost:
        second = await lost.wait_for_message("elicitation/create")
    async with client.stream() as found:
        third = await found.wait_for_message("elicitation/create")
        await client.post(answer(third))
        await until(lambda: (server.work / "made").exists())

    assert first == second == third


@pytest.mark.promises("http.questions")
async def test_an_answer_of_another_session_settles_nothing(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    asked, other = await server.client(capabilities=ELICITS), await server.client(capabilities=ELICITS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    async with asked.codex("go", cwd=str(server.work), **_codex(ASKS)) as stream:
        approval = await stream.wait_for_message("elicitation/create")
        ignored = await other.post(answer(approval))
        open_ones = await other.call("approvalsList")
        await asked.post(answer(approval, "denied"))
        await stream.rest()

    assert (ignored.status, len(open_ones["approvals"])) == (202, 1)
    assert not (server.work / "made").exists()


def _codex(settings: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in settings.items()}


# --- closed streams ------------------------------------------------------------------------


@pytest.mark.promises("http.closed")
async def test_a_closed_stream_interrupts_no_turn(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client()
    parley_model.says("The first half, ", HOLD, "the second half.")
    async with client.codex("go") as stream:
        await stream.wait_for_message("agent_message_delta")
    parley_model.release()
    (found,) = (await client.call("conversationsList"))["conversations"]
    await until_state(client, found["conversation_id"], "idle")
    page = await client.call("conversationRead", conversation_id=found["conversation_id"])

    assert page["events"][-1]["msg"]["last_agent_message"] == "The first half, the second half."


@pytest.mark.promises("http.closed")
async def test_a_deleted_session_interrupts_no_turn_and_ends_its_streams(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client, other = await server.client(), await server.client()
    conversation = await client.create()
    parley_model.says(HOLD, "Done.")
    async with client.stream() as stream:
        await client.call("conversationStream", conversation_id=conversation)
        await client.say(conversation, "go")
        await parley_model.wait_until_held()
        await client.send("DELETE")
        await stream.rest()
    status = await other.call("conversationStatus", conversation_id=conversation)
    parley_model.release()
    await until_state(other, conversation, "idle")

    assert status["state"] == "running"


# --- unpaired surrogates -------------------------------------------------------------------


@pytest.mark.promises("framing.lenient")
async def test_unpaired_surrogates_are_replaced_up_to_a_limit_and_cost_little(server: HttpServer) -> None:
    client = await server.client()
    few, many = (
        b'{"jsonrpc":"2.0","id":"%b","method":"ping"}' % (rb"\ud800" * count) for count in (1_000, 170_000)
    )
    replaced = await client.send("POST", few)
    assert replaced.json["id"] == "\N{REPLACEMENT CHARACTER}" * 1_000
    begin = time.process_time()

    refused = await client.send("POST", many)

    assert time.process_time() - begin < 0.15
    assert (refused.status, refused.json["error"]["code"]) == (400, -32600)
    assert (await client.send("POST", b"[%b]" % few)).json["error"]["data"]["code"] == "array_not_allowed"


# --- the end of a session --------------------------------------------------------------------


@pytest.mark.promises("http.answers", "http.session")
async def test_a_request_in_progress_when_its_session_is_deleted_gets_its_response(server: HttpServer) -> None:
    client = await server.client()
    conversation = await client.create()
    conversations = server.server.core.context.conversations
    find, began, goes_on = conversations.find, asyncio.Event(), asyncio.Event()

    async def slow_find(conversation_id: ConversationId) -> Conversation:
        began.set()
        await goes_on.wait()
        return await find(conversation_id)

    conversations.find = slow_find  # type: ignore[method-assign]  # a store cannot be made to wait at this moment
    status = asyncio.ensure_future(client.post(tool(1, "conversationStatus", {"conversation_id": conversation})))
    await began.wait()
    deleted = await client.send("DELETE")
    goes_on.set()
    answered = await status

    assert deleted.status == 204
    assert answered.status == 200
    assert answered.json["result"]["structuredContent"]["state"] == "idle"


async def begin_waiting(client: HttpClient, server: HttpServer, conversation: str) -> asyncio.Future[HttpReply]:
    """Send a `conversationRead` that waits for events."""
    arguments = {"conversation_id": conversation, "after": 0, "wait_seconds": 25}
    reading = asyncio.ensure_future(client.post(tool(1, "conversationRead", arguments)))
    assert client.session_id is not None
    session = server.service.sessions._sessions[client.session_id]
    await until(lambda: not session.is_idle or reading.done())
    return reading


@pytest.mark.promises("http.answers", "http.session")
async def test_a_request_that_the_end_of_its_session_stops_gets_404(server: HttpServer) -> None:
    client = await server.client()
    conversation = await client.create()
    reading = await begin_waiting(client, server, conversation)
    await client.send("DELETE")
    stopped = await reading

    assert (stopped.status, stopped.json["id"]) == (404, 1)
    assert stopped.json["error"]["data"]["code"] == "unknown_session"


@pytest.mark.promises("http.answers", "http.token")
async def test_a_request_in_progress_when_its_token_is_revoked_gets_401(server: HttpServer) -> None:
    client = await server.client(token=await server.create_token("gone", "admin"))
    conversation = await client.create()
    reading = await begin_waiting(client, server, conversation)
    await server.revoke_token("gone")

    assert (await reading).status == 401
