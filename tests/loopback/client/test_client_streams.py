"""Watching conversations: snapshots, live events, several streams, and their ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from parley.client import (
    CallTimedOut,
    Client,
    ClientError,
    Disconnected,
    Event,
    ServerRefused,
    StreamEnded,
    StreamEvent,
    ToolFailed,
    TurnFailed,
    connect,
)
from parley.wire.events import AgentMessage, AgentMessageDelta, ErrorEvent, TaskComplete, TaskStarted, UnknownEvent
from parley.wire.ids import ConversationId, ItemId, Seq
from parley.wire.jsonrpc import RequestId
from parley.wire.notifications import EventMeta

StartPeer = Callable[..., AbstractAsyncContextManager[Client]]

A = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"

STARTED = {"type": "task_started"}
COMPLETE = {"type": "task_complete", "last_agent_message": None}
STREAMING = {"id": "$id", "result": {"content": [], "isError": False, "structuredContent": {}}}
DONE = {"id": "$id", "result": {}}


def delta(text: str) -> dict[str, Any]:
    return {"type": "agent_message_delta", "delta": text}


def message(text: str) -> dict[str, Any]:
    return {"type": "agent_message", "message": text}


def initial_state(conversation: str, *events: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {
        "method": "notifications/initial_state",
        "params": {
            "_meta": {"conversationId": conversation, "seq": len(events), **meta},
            "initial_state": {
                "events": [{"_meta": {"seq": seq}, "msg": event} for seq, event in enumerate(events, 1)]
            },
        },
    }


def live(event: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"method": event["type"], "params": {"_meta": {"conversationId": A, **meta}, "msg": event}}


def disconnected(conversation: str, reason: str, **more: str) -> dict[str, Any]:
    params = {"_meta": {"conversationId": conversation}, "reason": reason, **more}
    return {"method": "notifications/stream_disconnected", "params": params}


async def test_a_late_reader_gets_the_snapshot_and_then_what_is_live(peer: StartPeer) -> None:
    script = {
        "conversationStream": [STREAMING, initial_state(A, STARTED, delta("Hello, "))],
        "go": [live(delta("world")), live(message("Hello, world")), live(COMPLETE), DONE],
    }
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        assert stream.snapshot == [TaskStarted(), AgentMessageDelta(delta="Hello, ")]
        await client.request("go")

        assert await stream.turn() == [
            TaskStarted(),
            AgentMessageDelta(delta="Hello, "),
            AgentMessageDelta(delta="world"),
            AgentMessage(message="Hello, world"),
            TaskComplete(last_agent_message=None),
        ]


async def test_the_text_of_a_turn_is_what_the_agent_said(peer: StartPeer) -> None:
    said = [live(STARTED), live(message("First")), live(message("Second")), live(COMPLETE)]
    script = {"conversationStream": [STREAMING, initial_state(A), *said, *said]}
    async with asyncio.timeout(90), peer(script) as client:
        stream = await client.conversation(A).stream()

        assert await stream.text() == "First\nSecond"
        assert await stream.text() == "First\nSecond"
        await stream.close()


@pytest.mark.parametrize(
    "end",
    [
        [{"type": "error", "message": "Missing environment variable: `KEY`."}, COMPLETE],
        [{"type": "error", "message": " Turn interrupted"}],
    ],
)
async def test_the_text_of_a_turn_that_failed_is_an_error(peer: StartPeer, end: list[dict[str, Any]]) -> None:
    said = [live(event) for event in (STARTED, message("First"), *end)]
    script = {"conversationStream": [*streams_of(A), *said]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        with pytest.raises(TurnFailed) as failed:
            await stream.text()

    assert (failed.value.message, failed.value.text) == (end[0]["message"], "First")


async def test_a_tool_server_that_cannot_be_started_does_not_fail_the_turn(peer: StartPeer) -> None:
    said = [STARTED, {"type": "error", "message": "docs: cannot be started"}, message("Done"), COMPLETE]
    script = {"conversationStream": [*streams_of(A), *map(live, said)]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        assert await stream.text() == "Done"


async def test_an_interrupt_ends_a_turn_and_a_failure_waits_for_its_completion(peer: StartPeer) -> None:
    events = [
        live({"type": "error", "message": "stream disconnected"}),
        live(COMPLETE),
        live({"type": "error", "message": " Turn interrupted"}),
    ]
    script = {"conversationStream": [STREAMING, initial_state(A), *events]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        assert await stream.turn() == [
            ErrorEvent(message="stream disconnected"),
            TaskComplete(last_agent_message=None),
        ]
        assert await stream.turn() == [ErrorEvent(message=" Turn interrupted")]


async def test_details_tell_where_an_event_stands_and_the_position_follows_what_was_read(peer: StartPeer) -> None:
    script = {
        "conversationStream": [
            STREAMING,
            initial_state(A, STARTED, seq=4),
            live(delta("Hi"), conversationId=A, item="i1", offset=0),
            live(message("Hi"), conversationId=A, seq=5),
            live(COMPLETE, conversationId=A, seq=7),
        ]
    }
    conversation = ConversationId(A)
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream(after=0) as stream:
        assert stream.seq == 0
        details = stream.detailed()

        first = await anext(details)
        assert stream.seq == 1
        assert [first, *[await anext(details) for _ in range(2)]] == [
            StreamEvent(TaskStarted(), EventMeta(seq=Seq(1)), live=False),
            StreamEvent(
                AgentMessageDelta(delta="Hi"),
                EventMeta(conversation_id=conversation, item=ItemId("i1"), offset=0),
                live=True,
            ),
            StreamEvent(AgentMessage(message="Hi"), EventMeta(conversation_id=conversation, seq=Seq(5)), live=True),
        ]
        assert stream.seq == 5
        (_, _, request) = json.loads(await client.request("test/received"))
        assert request["params"]["arguments"] == {"conversation_id": A, "after": 0, "event_meta": True}


def streams_of(*conversations: str) -> list[dict[str, Any]]:
    """Return steps that begin all streams.

    The client ignores snapshots of conversations that it does not stream.
    """
    return [STREAMING, *(initial_state(conversation) for conversation in conversations)]


async def test_events_of_two_conversations_are_not_mixed(peer: StartPeer) -> None:
    script = {
        "conversationStream": streams_of(A, B),
        "go": [
            live(message("for b"), conversationId=B),
            live(message("for a"), conversationId=A),
            {"method": "agent_message", "params": {"msg": message("without a conversation")}},
            live(COMPLETE, conversationId=A),
            live(COMPLETE, conversationId=B),
            DONE,
        ],
    }
    async with (
        asyncio.timeout(90),
        peer(script) as client,
        client.conversation(A).stream() as first,
        client.conversation(B).stream() as second,
    ):
        await client.request("go")

        assert (await first.text(), await second.text()) == ("for a", "for b")


async def test_events_of_a_codex_call_are_no_stream_s(peer: StartPeer) -> None:
    of_call = {"method": "agent_message", "params": {"_meta": {"requestId": 9}, "id": "9", "msg": message("no")}}
    script = {"conversationStream": [*streams_of(A), of_call, live(message("yes")), live(COMPLETE)]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        assert await stream.text() == "yes"


async def test_an_event_of_a_newer_server_is_kept_as_it_came(peer: StartPeer) -> None:
    script = {"conversationStream": [*streams_of(A), live({"type": "novelty", "x": 1})]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        event = await anext(stream)

        assert isinstance(event, UnknownEvent)
        assert (event.type, json.loads(event.encoded)) == ("novelty", {"type": "novelty", "x": 1})


async def test_closing_a_stream_cancels_its_request_and_ends_the_iteration(peer: StartPeer) -> None:
    script = {"conversationStream": [*streams_of(A), live(STARTED)], "go": [live(message("unseen")), DONE]}
    async with asyncio.timeout(90), peer(script) as client:
        async with client.conversation(A).stream() as stream:
            assert await anext(stream) == TaskStarted()
        await client.request("go")

        assert [event async for event in stream] == []
        _, _, request, cancelled, _ = json.loads(await client.request("test/received"))
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"] == {"requestId": request["id"]}
        with pytest.raises(StreamEnded):
            await stream.turn()


async def test_two_streams_of_a_conversation_share_one_on_the_wire(peer: StartPeer) -> None:
    taken_over = disconnected(A, "New stream() took over")
    script = {
        "conversationStream": [STREAMING, taken_over, initial_state(A, STARTED)],
        "go": [live(message("Hi"), seq=3), live(COMPLETE, seq=4), DONE],
    }
    async with asyncio.timeout(90), peer(script) as client:
        conversation = client.conversation(A)
        async with conversation.stream() as first, conversation.stream() as second:
            await client.request("go")
            turn = [TaskStarted(), AgentMessage(message="Hi"), TaskComplete(last_agent_message=None)]
            assert await first.turn() == turn
            assert await second.turn() == turn
            assert (first.disconnected, first.closed) == (None, False)

        messages = json.loads(await client.request("test/received"))
        assert [one["params"]["requestId"] for one in messages if one["method"] == "notifications/cancelled"] == [3]


@pytest.mark.parametrize(("taken_over_at", "rest"), [(4, "o, "), (7, "")])
async def test_a_reader_gets_of_a_snapshot_only_what_it_has_not_had(
    peer: StartPeer, taken_over_at: int, rest: str
) -> None:
    text = "Hello, world"

    def piece(start: int, end: int) -> dict[str, Any]:
        return live(delta(text[start:end]), item="i1", offset=start)

    snapshot = initial_state(A, STARTED)
    open_text = {"_meta": {"item": "i1", "offset": 0}, "msg": delta("Hello, ")}
    with_text = initial_state(A, STARTED)
    with_text["params"]["initial_state"]["events"].append(open_text)
    script = {
        "conversationStream": [{"once": [STREAMING, snapshot]}, {"then": [STREAMING, with_text]}],
        "go": [piece(7, 12), live(message(text), seq=2), live(COMPLETE, seq=3), DONE],
        "begin": [piece(0, taken_over_at), DONE],
    }
    async with asyncio.timeout(90), peer(script) as client:
        conversation = client.conversation(A)
        async with conversation.stream() as first:
            await client.request("begin")
            async with conversation.stream() as second:
                await client.request("go")
                shown = [await first.turn(), await second.turn()]

    def deltas(events: list[Event]) -> list[str]:
        return [event.delta for event in events if isinstance(event, AgentMessageDelta)]

    assert deltas(shown[0]) == [part for part in (text[:taken_over_at], rest, "world") if part]
    assert deltas(shown[1]) == ["Hello, ", "world"]


async def test_a_stream_that_another_request_takes_over_ends(peer: StartPeer) -> None:
    taken_over = [STREAMING, disconnected(A, "New stream() took over"), initial_state(A)]
    script = {"conversationStream": taken_over}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        await client.call_tool("conversationStream", {"conversation_id": A})

        assert [event async for event in stream] == []
        assert stream.disconnected == "New stream() took over"


async def test_a_stream_that_the_server_ends_says_why(peer: StartPeer) -> None:
    end = disconnected(A, "Conversation deleted", code="deleted")
    script = {"conversationStream": [*streams_of(A), live(STARTED), end]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        with pytest.raises(StreamEnded, match="Conversation deleted") as ended:
            await stream.turn()
        assert (ended.value.reason, ended.value.code) == ("Conversation deleted", "deleted")
        assert (stream.disconnected, stream.disconnected_code) == ("Conversation deleted", "deleted")


async def test_a_stream_that_ends_before_it_begins_cannot_be_opened(peer: StartPeer) -> None:
    script = {"conversationStream": [STREAMING, disconnected(A, "Server is shutting down")]}
    async with asyncio.timeout(90), peer(script) as client:
        with pytest.raises(StreamEnded, match="Server is shutting down"):
            await client.conversation(A).stream()


async def test_a_conversation_that_is_not_there_cannot_be_streamed(peer: StartPeer) -> None:
    script = {"conversationStream": [{"id": "$id", "result": {"content": [], "isError": True}}]}
    async with asyncio.timeout(90), peer(script) as client:
        with pytest.raises(ToolFailed):
            await client.conversation(A).stream()


async def test_giving_up_on_opening_cancels_the_request(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"conversationStream": [STREAMING]}) as client:
        opening = asyncio.ensure_future(client.conversation(A).stream().__aenter__())
        await asyncio.sleep(0)  # the request is written
        await client.request("test/received")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

        assert json.loads(await client.request("test/received"))[-1]["method"] == "notifications/cancelled"


async def test_received_events_can_be_read_after_the_server_has_ended(peer: StartPeer) -> None:
    script = {"conversationStream": [*streams_of(A), live(STARTED), {"exit": 0}]}
    async with asyncio.timeout(90), peer(script) as client, client.conversation(A).stream() as stream:
        assert await anext(stream) == TaskStarted()
        with pytest.raises(Disconnected):
            await anext(stream)


async def test_a_stream_without_a_snapshot_in_time_is_closed(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"conversationStream": [STREAMING]}) as client:
        with pytest.raises(CallTimedOut):
            await client.conversation(A).stream(timeout_seconds=0.01)

        assert json.loads(await client.request("test/received"))[-1]["method"] == "notifications/cancelled"


class SeparateRequests:
    """A transport that answers `initialize` and the first request for a stream of A. Each later request for a
    stream fails with the next item of `failures`, and succeeds if there is no such item.
    """

    def __init__(
        self, *failures: ClientError | None, instead_of_first_snapshot: dict[str, Any] | None = None
    ) -> None:
        self._failures = [*failures]
        self._instead_of_first_snapshot = instead_of_first_snapshot
        self.opened: list[int] = []
        """The positions after which streams were requested."""

    async def start(
        self,
        *,
        on_message: Callable[[bytes], None],
        on_end: Callable[[int | None], None],
        on_failed: Callable[[RequestId, ClientError | None], None] = lambda request_id, error: None,
    ) -> None:
        self._on_message, self.lose, self._on_failed = on_message, on_end, on_failed

    async def restart(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def deliver_first(self, request_id: RequestId) -> None:
        pass

    def send(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._answer, json.loads(data))

    def _answer(self, request: Any) -> None:
        if request["method"] == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "serverInfo": {"name": "x", "version": "1"},
            }
            self.receives({"id": request["id"], "result": result})
        elif request["method"] == "tools/call":
            self.opened.append(request["params"]["arguments"]["after"])
            if len(self.opened) > 1 and self._failures:
                self._on_failed(request["id"], self._failures.pop(0))
            else:
                self.receives({**STREAMING, "id": request["id"]})
                snapshot = initial_state(A, *[message("one"), message("two")][: len(self.opened)])
                self.receives((len(self.opened) == 1 and self._instead_of_first_snapshot) or snapshot)

    def receives(self, one: dict[str, Any]) -> None:
        self._on_message(json.dumps({"jsonrpc": "2.0", **one}).encode())


@pytest.mark.parametrize("status", [429, 503])
async def test_a_stream_that_the_server_refuses_after_a_reconnection_ends_with_the_error(status: int) -> None:
    transport = SeparateRequests(ServerRefused("http://server/mcp", status, "No"))
    async with asyncio.timeout(90), connect(transport) as client, client.conversation(A).stream() as stream:
        assert await anext(stream) == AgentMessage(message="one")
        transport.lose(None)

        with pytest.raises(ServerRefused, match=f"responded with {status} No"):
            await anext(stream)
        assert transport.opened == [0, 1]


async def test_a_stream_is_requested_again_if_its_request_is_lost_after_a_reconnection() -> None:
    transport = SeparateRequests(None)
    async with asyncio.timeout(90), connect(transport) as client, client.conversation(A).stream() as stream:
        assert await anext(stream) == AgentMessage(message="one")
        transport.lose(None)

        assert await anext(stream) == AgentMessage(message="two")
        assert transport.opened == [0, 1, 1]


async def test_a_stream_that_the_server_does_not_know_is_requested_again() -> None:
    transport = SeparateRequests()
    async with asyncio.timeout(90), connect(transport) as client, client.conversation(A).stream() as stream:
        assert await anext(stream) == AgentMessage(message="one")
        transport.receives(disconnected(A, "Stream is not open; open it again", code="not_open"))

        assert await anext(stream) == AgentMessage(message="two")
        assert transport.opened == [0, 1]


async def test_a_stream_that_the_server_does_not_know_before_its_snapshot_is_requested_again() -> None:
    not_open = disconnected(A, "Stream is not open; open it again", code="not_open")
    transport = SeparateRequests(instead_of_first_snapshot=not_open)
    async with asyncio.timeout(90), connect(transport) as client, client.conversation(A).stream() as stream:
        assert [await anext(stream) for _ in range(2)] == [AgentMessage(message="one"), AgentMessage(message="two")]
        assert transport.opened == [0, 0]
