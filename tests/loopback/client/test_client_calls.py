"""Requests, answers and failures of a client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from parley.client import (
    CallCancelled,
    CallTimedOut,
    Client,
    Disconnected,
    RequestFailed,
    ServerProcess,
    ToolFailed,
    connect,
)
from parley.client.conversation import EventPage, ReadEvent
from parley.wire.events import AgentMessage, SessionConfigured, TaskStarted
from parley.wire.ids import ConversationId, ItemId, Seq
from parley.wire.items import ImageItem, TextItem
from parley.wire.mcp import CallToolResult, TextContent, ToolDefinition
from parley.wire.tools import ConversationsListResult, ConversationSummary, OpenText

PEER = Path(__file__).with_name("peer.py")

StartPeer = Callable[..., AbstractAsyncContextManager[Client]]

ID = "11111111-1111-4111-8111-111111111111"


def typed(value: Any, *, failed: bool = False) -> list[dict[str, Any]]:
    text = json.dumps(value)
    return [
        {
            "id": "$id",
            "result": {"content": [{"type": "text", "text": text}], "isError": failed, "structuredContent": value},
        }
    ]


async def received(client: Client) -> list[Any]:
    """Return the messages that the peer received after the handshake, without the envelope."""
    _, _, *messages = json.loads(await client.request("test/received"))
    return [{key: value for key, value in message.items() if key not in ("jsonrpc", "id")} for message in messages]


async def test_the_handshake_names_client_and_server(peer: StartPeer) -> None:
    frames: list[bytes] = []
    async with asyncio.timeout(90), peer({}, on_frame=frames.append) as client:
        assert client.initialize_result.server_info.name == "peer"
    assert [json.loads(frame)["id"] for frame in frames] == [1]


async def test_a_ping_is_answered(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"ping": [{"id": "$id", "result": {}}]}) as client:
        await client.ping()
        assert await received(client) == [{"method": "ping", "params": {}}]


async def test_tools_are_listed_as_definitions(peer: StartPeer) -> None:
    tool = {"name": "codex", "title": "Codex", "description": "Run.", "inputSchema": {"type": "object"}}
    async with asyncio.timeout(90), peer({"tools/list": [{"id": "$id", "result": {"tools": [tool]}}]}) as client:
        assert await client.list_tools() == (
            ToolDefinition(name="codex", title="Codex", description="Run.", input_schema={"type": "object"}),
        )


async def test_an_error_of_the_protocol_is_raised_with_its_code(peer: StartPeer) -> None:
    error = {"code": -32601, "message": "Method not found", "data": {"code": "method_not_found"}}
    refusal = [{"id": "$id", "error": error}]
    async with asyncio.timeout(90), peer({"nonsense": refusal}) as client:
        with pytest.raises(RequestFailed) as failure:
            await client.request("nonsense")
    assert (failure.value.number, failure.value.message) == (-32601, "Method not found")
    assert failure.value.code == "method_not_found"


async def test_a_created_conversation_knows_its_model(peer: StartPeer) -> None:
    script = {"conversationCreate": typed({"conversation_id": ID, "model": "gpt-5"})}
    async with asyncio.timeout(90), peer(script) as client:
        conversation = await client.create(model="gpt-5", cwd="/project", approval_policy="never")

        assert (conversation.id, conversation.model) == (ID, "gpt-5")
        arguments = {"prompt": "", "model": "gpt-5", "cwd": "/project", "approval_policy": "never"}
        assert await received(client) == [
            {"method": "tools/call", "params": {"name": "conversationCreate", "arguments": arguments}}
        ]


async def test_a_failed_typed_call_raises_with_the_tool_s_own_words(peer: StartPeer) -> None:
    script = {"conversationCreate": typed({"message": "Failed to load config: no"}, failed=True)}
    async with asyncio.timeout(90), peer(script) as client:
        with pytest.raises(ToolFailed) as failure:
            await client.create(model="m", cwd="/")
    assert (failure.value.tool, failure.value.message) == ("conversationCreate", "Failed to load config: no")


async def test_call_tool_returns_failures_like_any_result(peer: StartPeer) -> None:
    answer = [{"id": "$id", "result": {"content": [{"type": "text", "text": "Unknown tool 'x'"}], "isError": True}}]
    async with asyncio.timeout(90), peer({"x": answer}) as client:
        assert await client.call_tool("x") == CallToolResult(
            content=(TextContent(text="Unknown tool 'x'"),), is_error=True
        )


async def test_a_sent_message_has_its_id(peer: StartPeer) -> None:
    script = {"conversationSendMessage": typed({"status": "ok", "message_id": ID})}
    async with asyncio.timeout(90), peer(script) as client:
        turn = await client.conversation(ID).send("hello", message_id=ID, model="other")

        assert turn.message_id == ID
        arguments = {"conversation_id": ID, "content": [{"type": "text", "text": "hello"}], "message_id": ID}
        assert await received(client) == [
            {
                "method": "tools/call",
                "params": {"name": "conversationSendMessage", "arguments": {**arguments, "model": "other"}},
            },
        ]


async def test_items_are_sent_unchanged_and_every_message_has_an_id_of_the_client(peer: StartPeer) -> None:
    script = {
        "conversationCreate": typed({"conversation_id": ID, "model": "m"}),
        "conversationSendMessage": typed({"status": "ok"}),
    }
    async with asyncio.timeout(90), peer(script) as client:
        turn = await (await client.create(cwd="/")).send(
            [TextItem(text="see"), ImageItem(image_url="https://example.org/a.png")]
        )

        arguments = (await received(client))[1]["params"]["arguments"]
        assert arguments["content"] == [
            {"type": "text", "text": "see"},
            {"type": "image", "image_url": "https://example.org/a.png"},
        ]
        assert arguments["message_id"] == turn.message_id
        assert UUID(turn.message_id).version == 4


async def test_a_page_has_typed_events(peer: StartPeer) -> None:
    value = {
        "events": [{"seq": 2, "msg": {"type": "task_started"}}],
        "open": [{"item": "i1", "type": "agent_message_delta", "text": "Hel"}],
        "seq": 3,
        "state": "running",
    }
    async with asyncio.timeout(90), peer({"conversationRead": typed(value)}) as client:
        page = await client.conversation(ID).read(after=1, wait_seconds=2.5)

        assert page == EventPage(
            events=(ReadEvent(Seq(2), TaskStarted()),),
            open=(OpenText(item=ItemId("i1"), type="agent_message_delta", text="Hel"),),
            seq=Seq(3),
            state="running",
        )
        arguments = {"conversation_id": ID, "after": 1, "wait_seconds": 2.5}
        assert (await received(client))[0]["params"]["arguments"] == arguments


async def test_conversations_are_listed_by_page(peer: StartPeer) -> None:
    value = {"conversations": [{"conversation_id": ID, "title": "One"}], "next_cursor": "c"}
    async with asyncio.timeout(90), peer({"conversationsList": typed(value)}) as client:
        assert await client.list(limit=1) == ConversationsListResult(
            conversations=(ConversationSummary(conversation_id=ConversationId(ID), title="One"),), next_cursor="c"
        )


def codex_event(event: dict[str, Any], *, method: str | None = None) -> dict[str, Any]:
    return {
        "method": method or event["type"],
        "params": {"_meta": {"requestId": 2}, "id": "2", "msg": event},
    }


async def test_a_codex_call_hears_each_event_once_and_then_the_result(peer: StartPeer) -> None:
    configured = {
        "type": "session_configured",
        "session_id": ID,
        "model": "m",
        "history_log_id": 0,
        "history_entry_count": 0,
    }
    said = {"type": "agent_message", "message": "Hi"}
    script = {
        "codex": [
            codex_event(configured, method="codex/event"),
            codex_event(configured),
            codex_event(said, method="codex/event"),
            codex_event(said),
            {"id": "$id", "result": {"content": [{"type": "text", "text": "Hi"}]}},
        ]
    }
    heard: list[object] = []
    async with asyncio.timeout(90), peer(script) as client:
        running = client.codex("greet me", on_event=heard.append, include_plan_tool=True, progress_token="p")
        result = await running

        assert running.request_id == 2
        assert result == CallToolResult(content=(TextContent(text="Hi"),))
        assert heard == [
            SessionConfigured(session_id=ConversationId(ID), model="m", history_log_id=0, history_entry_count=0),
            AgentMessage(message="Hi"),
        ]
        assert (await received(client))[0]["params"] == {
            "name": "codex",
            "arguments": {"prompt": "greet me", "include-plan-tool": True},
            "_meta": {"progressToken": "p"},
        }


@pytest.mark.parametrize("answered", [False, True])
async def test_awaiting_a_cancelled_call_reports_it_whether_or_not_the_server_answers(
    peer: StartPeer, answered: bool
) -> None:
    interrupted = {"error": " Turn interrupted", "content": [], "isError": True}
    script = {"notifications/cancelled": [{"id": 2, "result": interrupted}] if answered else []}
    async with asyncio.timeout(90), peer(script) as client:
        running = client.codex_reply(ID, "go on")
        await running.cancel()

        with pytest.raises(CallCancelled):
            await running
        assert (await received(client))[1] == {
            "method": "notifications/cancelled",
            "params": {"requestId": running.request_id},
        }


async def test_cancelling_a_call_that_has_its_result_changes_nothing(peer: StartPeer) -> None:
    done = {"content": [{"type": "text", "text": "Done"}]}
    async with asyncio.timeout(90), peer({"codex-reply": [{"id": "$id", "result": done}]}) as client:
        running = client.codex_reply(ID, "go on")
        first = await running
        await running.cancel()

        assert await running == first == CallToolResult(content=(TextContent(text="Done"),))
        assert [one["method"] for one in await received(client)] == ["tools/call"]


async def test_a_call_that_has_timed_out_can_be_awaited_again(peer: StartPeer) -> None:
    done = {"content": [{"type": "text", "text": "Done"}]}
    script = {"go": [{"id": 2, "result": done}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script) as client:
        running = client.codex_reply(ID, "go on", timeout_seconds=0.01)
        with pytest.raises(CallTimedOut):
            await running
        await client.request("go")

        assert await running == CallToolResult(content=(TextContent(text="Done"),))


async def test_a_call_that_has_timed_out_can_be_cancelled(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({}) as client:
        running = client.codex_reply(ID, "go on", timeout_seconds=0.01)
        with pytest.raises(CallTimedOut):
            await running
        await running.cancel()

        with pytest.raises(CallCancelled):
            await running
        assert (await received(client))[1:] == [
            {"method": "notifications/cancelled", "params": {"requestId": running.request_id}}
        ]


async def test_a_call_whose_wait_was_cancelled_can_be_awaited_again(peer: StartPeer) -> None:
    done = {"content": [{"type": "text", "text": "Done"}]}
    script = {"go": [{"id": 2, "result": done}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script) as client:
        running = client.codex_reply(ID, "go on")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await running
        await client.request("go")

        assert await running == CallToolResult(content=(TextContent(text="Done"),))


async def test_an_ordinary_call_that_has_timed_out_is_forgotten(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({}) as client:
        for call in (client.ping(timeout_seconds=0.01), client.call_tool("x", timeout_seconds=0.01)):
            with pytest.raises(CallTimedOut):
                await call

        assert not client._connection._pending


async def test_all_waits_end_when_the_server_dies(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"die": [{"exit": 3}]}) as client:
        waiting = [asyncio.ensure_future(client.ping()) for _ in range(2)]
        running = client.codex("never answered")
        with pytest.raises(Disconnected) as failure:
            await client.request("die")
        assert failure.value.exit_code == 3
        for one in waiting:
            with pytest.raises(Disconnected):
                await one
        with pytest.raises(Disconnected):
            await running
        with pytest.raises(Disconnected):
            await client.ping()


async def test_a_server_that_closes_its_output_is_gone_too(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"mute": [{"close": "stdout"}]}) as client:
        with pytest.raises(Disconnected):
            await client.request("mute")


async def test_a_server_that_ends_before_it_answers_cannot_be_connected_to(peer: StartPeer) -> None:
    with pytest.raises(Disconnected):
        async with asyncio.timeout(90), peer({"initialize": [{"exit": 1}]}):
            pass


async def test_a_program_that_is_not_there_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        async with connect(ServerProcess(("/nowhere/parley",))):
            pass


async def test_lines_that_are_no_messages_are_skipped(peer: StartPeer) -> None:
    script = {"ping": [{"raw": "nonsense\n\n[1]\n"}, {"id": "nobody", "result": {}}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script) as client:
        await client.ping()


async def test_a_callback_that_fails_costs_its_own_frame_only(peer: StartPeer) -> None:
    def fail(event: object) -> None:
        raise ValueError(event)

    payloads = codex_event({"type": "task_started"}, method="codex/event")
    script = {"codex": [payloads, {"id": "$id", "result": {"content": []}}]}
    async with asyncio.timeout(90), peer(script) as client:
        assert await client.codex("x", on_event=fail) == CallToolResult(content=())


async def test_raw_bytes_go_out_as_they_are(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({}) as client:
        client.send_raw(b'{"method": "by/hand"}\n')

        assert await received(client) == [{"method": "by/hand"}]


@pytest.mark.parametrize(("script", "exit_code"), [({"stubborn": []}, -9), ({}, 0)])
async def test_a_server_that_does_not_exit_in_time_is_killed(script: dict[str, Any], exit_code: int) -> None:
    server = ServerProcess((sys.executable, "-S", str(PEER), json.dumps(script)))
    server.exit_grace_seconds = 0.05 if exit_code else 90
    server.terminate_grace_seconds = 0.05
    async with asyncio.timeout(90), connect(server):
        assert server.pid > 0
    assert server.exit_code == exit_code


async def test_a_call_without_a_result_in_time_raises_and_the_connection_continues(peer: StartPeer) -> None:
    script = {"go": [{"id": 2, "result": {}}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script) as client:
        with pytest.raises(CallTimedOut, match=r"conversationStatus: no result after 0\.01 s") as timed_out:
            await client.conversation(ID).status(timeout_seconds=0.01)

        assert isinstance(timed_out.value, TimeoutError)
        await client.request("go")  # the late result is ignored


async def test_the_timeout_of_the_connection_holds_for_calls_without_one(peer: StartPeer) -> None:
    script = {"go": [{"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script, timeout_seconds=60) as client:
        await client.request("go")
        with pytest.raises(CallTimedOut):
            await client.ping(timeout_seconds=0.01)


async def test_a_codex_call_and_an_approval_have_timeouts_of_their_own(peer: StartPeer) -> None:
    approval = {
        "approval_id": "a1",
        "conversation_id": ID,
        "kind": "exec",
        "message": "Allow?",
        "call_id": "c1",
        "asked_at": "2026-01-01T00:00:00Z",
    }
    async with asyncio.timeout(90), peer({"approvalsList": typed({"approvals": [approval]})}) as client:
        for call in (client.codex("go", timeout_seconds=0.01), client.codex_reply(ID, "go", timeout_seconds=0.01)):
            with pytest.raises(CallTimedOut):
                await call
        (listed,) = await client.approvals()
        for decide in (listed.approve, listed.approve_for_session, listed.deny, listed.abort):
            with pytest.raises(CallTimedOut, match=r"approvalAnswer: no result after 0\.01 s"):
                await decide(timeout_seconds=0.01)


async def test_a_failed_tool_has_its_code(peer: StartPeer) -> None:
    value = {"status": "error", "message": "A turn is running", "code": "turn_is_running"}
    async with asyncio.timeout(90), peer({"conversationDelete": typed(value, failed=True)}) as client:
        with pytest.raises(ToolFailed) as failure:
            await client.conversation(ID).delete()

    assert failure.value.code == "turn_is_running"
