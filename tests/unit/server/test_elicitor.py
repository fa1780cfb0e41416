"""Several clients and one approval: the clients that are asked, the time, and the requests."""

from __future__ import annotations

from typing import Any

import pytest

from kit.builders.approvals import approval_id
from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.settlements import NO, SETTLED, YES, settlements, taken_back
from kit.servers.slow_store import SlowStore
from parley.runtime.conversation import Conversation

SAY_ONE = {"type": "text", "text": "1"}


@pytest.mark.promises("approvals.everybody")
async def test_all_streaming_clients_are_asked_and_the_first_answer_counts(home: str) -> None:
    async with LocalServer(home) as server:
        clients = [await server.client() for _ in range(3)]
        conversation = await server.asking(*clients)

        clients[1].answer(1, {"decision": "denied", "reason": "not today"})
        clients[0].answer(0, YES)
        for client in clients:
            await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "denied: not today")]
        assert [client.taken_back for client in clients] == [
            [taken_back(0, "denied", by="client")],
            [],
            [taken_back(2, "denied", by="client")],
        ]
        assert [len(client.asked) for client in clients] == [1, 1, 1]
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]


async def test_the_approval_stands_directly_after_its_event_and_the_settlement_before_the_withdrawal(
    home: str,
) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.client()
        await server.asking(client, other)

        other.answer(1, YES)
        await client.wait_for_message("task_complete")

        types = ("exec_approval_request", "elicitation/create", "approval_settled", "notifications/cancelled")
        assert client.heard(*types, "task_complete") == [*types, "task_complete"]


@pytest.mark.promises("approvals.event-first")
async def test_a_joining_client_is_asked_after_its_snapshot_and_others_are_not_asked_again(home: str) -> None:
    async with LocalServer(home) as server:
        first, second = await server.client(), await server.client()
        conversation = await server.asking(first)

        await second.stream(conversation.id)
        await second.approval_request()

        types = ("exec_approval_request", "notifications/initial_state", "elicitation/create")
        assert second.heard(*types) == ["notifications/initial_state", "elicitation/create"]
        assert len(first.asked) == 1
        second.answer(1, YES)
        await first.wait_for_message("task_complete")
        assert server.decisions == [(1, "approved")]


@pytest.mark.promises("approvals.held")
async def test_without_a_stream_an_approval_waits_for_the_next_client(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client()
        await client.say(conversation.id, 1)
        await server.settle_down()
        await server.after(1_000_000)
        assert (client.asked, conversation.state.phase.value) == ([], "asking")

        await client.stream(conversation.id)
        await client.approval_request()
        client.answer(0, YES)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "approved")]


async def paused(server: LocalServer) -> tuple[LocalClient, Conversation]:
    """Create a client that was asked and has paused its stream."""
    conversation = await server.create()
    client = await server.client()
    stream = await client.stream(conversation.id)
    await client.say(conversation.id, 1)
    await client.approval_request()
    client.cancel(stream)
    return client, conversation


async def test_a_stream_that_is_paused_and_opened_again_does_not_ask_again(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await paused(server)
        await client.stream(conversation.id)
        await client.stream(conversation.id)

        assert len(client.asked) == 1
        client.answer(0, YES)
        await client.wait_for_message("task_complete")
        assert server.decisions == [(1, "approved")]


async def test_a_client_that_paused_its_stream_may_still_answer(home: str) -> None:
    async with LocalServer(home) as server:
        client, _ = await paused(server)

        client.answer(0, YES)
        await server.settle_down()

        assert server.decisions == [(1, "approved")]


@pytest.mark.promises("approvals.held")
async def test_the_next_streaming_client_is_asked_after_the_asked_clients_left(home: str) -> None:
    async with LocalServer(home) as server:
        first, second = await server.client(), await server.client()
        conversation = await server.asking(first)
        first.leave()
        first.answer(0, YES)
        await server.settle_down()
        assert server.decisions == []

        await second.stream(conversation.id)
        await second.approval_request()
        second.answer(1, NO)
        await second.wait_for_message("task_complete")

        assert server.decisions == [(1, "denied")]
        assert second.taken_back == []


@pytest.mark.promises("approvals.everybody")
async def test_a_call_is_asked_too_and_so_is_a_reply_that_joins_while_the_turn_waits(home: str) -> None:
    async with LocalServer(home) as server:
        caller, joiner = await server.client(), await server.client()
        call = caller.call("codex", prompt="1", cwd="/project")
        await caller.approval_request()
        session = caller.event("session_configured")["session_id"]
        reply = joiner.call("codex-reply", sessionId=session, prompt="0")
        asked = await joiner.approval_request()
        joiner.answer(1, YES)
        await caller.answer_to(call)
        await joiner.answer_to(reply)

        assert asked["params"]["codex_mcp_tool_call_id"] == str(reply)
        assert caller.asked[0]["params"]["codex_mcp_tool_call_id"] == str(call)
        assert caller.taken_back == [taken_back(0, "approved", by="client")]
        assert server.decisions == [(1, "approved")]


async def test_a_client_that_calls_and_streams_one_conversation_is_asked_once(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client()
        stream = await client.stream(conversation.id)
        reply = client.call("codex-reply", sessionId=conversation.id, prompt="1")
        asked = await client.approval_request()
        await server.settle_down()

        assert len(client.asked) == 1
        assert asked["params"]["codex_mcp_tool_call_id"] == str(stream)
        client.answer(0, YES)
        await client.answer_to(reply)


async def test_each_client_gets_the_id_of_its_own_first_request(home: str) -> None:
    async with LocalServer(home) as server:
        creator, watcher = await server.client(), await server.client()
        create = creator.call("conversationCreate", prompt="", model="m", cwd="/project")
        conversation = (await creator.value_of(create))["conversation_id"]
        await watcher.stream((await server.create()).id)
        await creator.stream(conversation)
        stream = await watcher.stream(conversation)
        await creator.say(conversation, 1)

        asked = [await client.approval_request() for client in (creator, watcher)]

        assert [one["params"]["codex_mcp_tool_call_id"] for one in asked] == [str(create), str(stream)]


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": None}])
@pytest.mark.promises("approvals.no-client")
async def test_a_client_without_the_form_capability_is_not_asked(home: str, capabilities: Any) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client(capabilities=capabilities)
        await client.stream(conversation.id)
        await client.say(conversation.id, 1)
        await client.wait_for_message("exec_approval_request")
        await server.settle_down()

        assert client.asked == []


@pytest.mark.parametrize("capability", [{}, {"form": {}}, {"form": {}, "url": {}}])
async def test_a_client_with_the_form_capability_is_asked(home: str, capability: Any) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client(capabilities={"elicitation": capability})
        await client.stream(conversation.id)
        await client.say(conversation.id, 1)

        await client.approval_request()


async def test_a_client_that_initializes_after_its_stream_is_asked_from_then_on(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client(capabilities=None)
        late = server.new_client()
        await late.stream(conversation.id)
        await client.say(conversation.id, 2)
        await late.wait_for_message("exec_approval_request")
        late.introduce()
        await late.answer_to("hello")
        await client.stream(conversation.id)
        await client.approval_request()
        client.answer(0, YES)
        await late.approval_request()
        late.answer(1, YES)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "approved"), (2, "approved")]
        assert late.asked[0]["params"]["codex_call_id"] == "call2"


@pytest.mark.promises("approvals.event-first")
async def test_clients_are_not_asked_before_an_approval_is_durable(home: str) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as server:
        conversation = await server.create()
        client = await server.client()
        await client.say(conversation.id, 0)
        await server.settle_down()
        store.slow = True
        said = client.call("conversationSendMessage", conversation_id=conversation.id, content=[SAY_ONE])
        while ["exec_approval_request", "question_asked"] not in store.waiting:
            await server.settle_down()
            if store.waiting[0] != ["exec_approval_request", "question_asked"]:
                await store.write()
        await client.answer_to(said)
        status = client.call("conversationStatus", conversation_id=conversation.id)
        await client.stream(conversation.id)
        await server.settle_down()
        assert (client.asked, (await client.value_of(status))["questions"]) == ([], [])

        store.slow = False
        await store.write()
        approval = await client.approval_request()
        assert client.heard("exec_approval_request", "elicitation/create") == [
            "exec_approval_request",
            "elicitation/create",
        ]
        client.answer(approval["id"], YES)
        await client.wait_for_message("task_complete")


async def test_a_slow_client_is_asked_only_for_the_open_approval(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        slow, quick = await server.client(), await server.client()
        await slow.stream(conversation.id)
        await quick.stream(conversation.id)
        slow.outbox.writable = False
        await quick.say(conversation.id, 2)
        await quick.approval_request()
        quick.answer(0, YES)
        await quick.approval_request(2)
        assert slow.asked == []

        slow.outbox.read_on()

        types = ("exec_approval_request", "approval_settled", "elicitation/create")
        assert slow.heard(*types) == [
            "exec_approval_request",
            "approval_settled",
            "exec_approval_request",
            "elicitation/create",
        ]
        assert slow.asked[0]["params"]["codex_call_id"] == "call2"
        slow.answer(2, YES)
        await quick.wait_for_message("task_complete")
        assert server.decisions == [(1, "approved"), (2, "approved")]


async def test_a_slow_client_is_asked_after_its_snapshot(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client, slow, disconnecting = await server.client(), await server.client(), await server.client()
        await client.say(conversation.id, 1)
        for one in (slow, disconnecting):
            one.outbox.writable = False
            stream = one.call("conversationStream", conversation_id=conversation.id)
            await one.answer_to(stream)
            if one is disconnecting:
                one.cancel(stream)
            await server.settle_down()
            assert one.asked == []
            one.outbox.read_on()

        assert slow.heard("notifications/initial_state", "elicitation/create") == [
            "notifications/initial_state",
            "elicitation/create",
        ]
        assert disconnecting.heard("notifications/initial_state", "elicitation/create") == []


@pytest.mark.promises("approvals.outlives")
async def test_the_end_of_the_server_leaves_the_approval_open_and_the_next_one_asks_it(home: str) -> None:
    store = SlowStore()
    asked: list[Any] = []
    async with LocalServer(home, store=store) as server:
        created = (await server.create()).id
        client = await server.client()
        await client.say(created, 1)
        await client.stream(created)
        asked.append(await client.approval_request())
    for _ in range(2):
        async with LocalServer(home, store=store) as server:
            client = await server.client()
            await client.stream(created)
            asked.append(await client.approval_request())
            conversation = await server.conversations.find(created)

        assert client.taken_back == []
        assert settlements(server, conversation) == ["question_asked"]

    assert [one["params"]["parley_approval_id"] for one in asked] == [approval_id(1)] * 3


async def test_a_message_that_joins_while_the_turn_waits_is_read_when_it_continues(home: str) -> None:
    async with LocalServer(home) as server:
        client, busy = await server.client(), await server.create()
        conversation = await server.asking(client)
        await client.say(conversation.id, 1)
        await client.say(busy.id, 0)
        status = await client.value_of(client.call("conversationStatus", conversation_id=busy.id))
        assert (status["state"], len(client.asked)) == ("idle", 1)

        client.answer(0, YES)
        await client.approval_request(2)
        client.answer(1, NO)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "approved"), (2, "denied")]
        assert client.number_of("task_started") == 1


async def test_an_answer_that_comes_a_moment_too_late_is_nothing_to_warn_of(
    home: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as server:
        clients = [await server.client() for _ in range(2)]
        await server.asking(*clients)
        store.slow = True
        clients[0].answer(0, YES)
        clients[1].answer(1, NO)
        await server.settle_down()
        store.slow = False
        while store.waiting:
            await store.write()
        for client in clients:
            await client.wait_for_message("task_complete")

    assert server.decisions == [(1, "approved")]
    assert caplog.messages == []
