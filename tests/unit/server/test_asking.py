"""Several clients and one approval: which clients are asked, when, and by which request."""

from __future__ import annotations

from typing import Any

import pytest

from kit.builders.questions import approval_id
from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.settlements import NO, SETTLED, YES, settlements, taken_back
from kit.servers.slow_store import SlowStore
from parley.runtime.conversation import Conversation

SAY_ONE = {"type": "text", "text": "1"}


@pytest.mark.promises("approvals.everybody")
async def test_all_streaming_clients_are_asked_and_the_first_answer_counts(home: str) -> None:
    async with LocalServer(home) as room:
        guests = [await room.guest() for _ in range(3)]
        conversation = await room.asking(*guests)

        guests[1].answer(1, {"decision": "denied", "reason": "not today"})
        guests[0].answer(0, YES)
        for guest in guests:
            await guest.hears("task_complete")

        assert room.told == [(1, "denied: not today")]
        assert [guest.taken_back for guest in guests] == [[taken_back(0, "denied")], [], [taken_back(2, "denied")]]
        assert [len(guest.asked) for guest in guests] == [1, 1, 1]
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]


async def test_the_question_stands_directly_after_its_event_and_the_settlement_before_the_withdrawal(
    home: str,
) -> None:
    async with LocalServer(home) as room:
        guest, other = await room.guest(), await room.guest()
        await room.asking(guest, other)

        other.answer(1, YES)
        await guest.hears("task_complete")

        told = ("exec_approval_request", "elicitation/create", "approval_settled", "notifications/cancelled")
        assert guest.heard(*told, "task_complete") == [*told, "task_complete"]


@pytest.mark.promises("approvals.event-first")
async def test_a_joining_client_is_asked_after_its_snapshot_and_others_are_not_asked_again(home: str) -> None:
    async with LocalServer(home) as room:
        first, second = await room.guest(), await room.guest()
        conversation = await room.asking(first)

        await second.stream(conversation.id)
        await second.question()

        told = ("exec_approval_request", "notifications/initial_state", "elicitation/create")
        assert second.heard(*told) == ["notifications/initial_state", "elicitation/create"]
        assert len(first.asked) == 1
        second.answer(1, YES)
        await first.hears("task_complete")
        assert room.told == [(1, "approved")]


@pytest.mark.promises("approvals.held")
async def test_without_a_stream_an_approval_waits_for_the_next_client(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        await room.settle_down()
        await room.after(1_000_000)
        assert (guest.asked, conversation.state.phase.value) == ([], "asking")

        await guest.stream(conversation.id)
        await guest.question()
        guest.answer(0, YES)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved")]


async def paused(room: LocalServer) -> tuple[LocalClient, Conversation]:
    """Create a client that was asked and has paused its stream."""
    conversation = await room.create()
    guest = await room.guest()
    stream = await guest.stream(conversation.id)
    await guest.say(conversation.id, 1)
    await guest.question()
    guest.cancel(stream)
    return guest, conversation


async def test_a_stream_that_is_paused_and_opened_again_does_not_ask_again(home: str) -> None:
    async with LocalServer(home) as room:
        guest, conversation = await paused(room)
        await guest.stream(conversation.id)
        await guest.stream(conversation.id)

        assert len(guest.asked) == 1
        guest.answer(0, YES)
        await guest.hears("task_complete")
        assert room.told == [(1, "approved")]


async def test_a_client_that_paused_its_stream_may_still_answer(home: str) -> None:
    async with LocalServer(home) as room:
        guest, _ = await paused(room)

        guest.answer(0, YES)
        await room.settle_down()

        assert room.told == [(1, "approved")]


@pytest.mark.promises("approvals.held")
async def test_the_next_streaming_client_is_asked_after_the_asked_clients_left(home: str) -> None:
    async with LocalServer(home) as room:
        first, second = await room.guest(), await room.guest()
        conversation = await room.asking(first)
        first.leave()
        first.answer(0, YES)
        await room.settle_down()
        assert room.told == []

        await second.stream(conversation.id)
        await second.question()
        second.answer(1, NO)
        await second.hears("task_complete")

        assert room.told == [(1, "denied")]
        assert second.taken_back == []


@pytest.mark.promises("approvals.everybody")
async def test_a_call_is_asked_too_and_so_is_a_reply_that_joins_while_the_turn_waits(home: str) -> None:
    async with LocalServer(home) as room:
        caller, joiner = await room.guest(), await room.guest()
        call = caller.call("codex", prompt="1", cwd="/project")
        await caller.question()
        session = caller.event("session_configured")["session_id"]
        reply = joiner.call("codex-reply", sessionId=session, prompt="0")
        asked = await joiner.question()
        joiner.answer(1, YES)
        await caller.answer_to(call)
        await joiner.answer_to(reply)

        assert asked["params"]["codex_mcp_tool_call_id"] == str(reply)
        assert caller.asked[0]["params"]["codex_mcp_tool_call_id"] == str(call)
        assert caller.taken_back == [taken_back(0, "approved")]
        assert room.told == [(1, "approved")]


async def test_a_client_that_calls_and_streams_one_conversation_is_asked_once(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        stream = await guest.stream(conversation.id)
        reply = guest.call("codex-reply", sessionId=conversation.id, prompt="1")
        asked = await guest.question()
        await room.settle_down()

        assert len(guest.asked) == 1
        assert asked["params"]["codex_mcp_tool_call_id"] == str(stream)
        guest.answer(0, YES)
        await guest.answer_to(reply)


async def test_each_client_is_told_the_first_of_its_own_requests(home: str) -> None:
    async with LocalServer(home) as room:
        creator, watcher = await room.guest(), await room.guest()
        create = creator.call("conversationCreate", prompt="", model="m", cwd="/project")
        conversation = (await creator.value_of(create))["conversation_id"]
        await watcher.stream((await room.create()).id)
        await creator.stream(conversation)
        stream = await watcher.stream(conversation)
        await creator.say(conversation, 1)

        asked = [await guest.question() for guest in (creator, watcher)]

        assert [one["params"]["codex_mcp_tool_call_id"] for one in asked] == [str(create), str(stream)]


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": None}])
@pytest.mark.promises("approvals.nobody")
async def test_a_client_without_the_form_capability_is_not_asked(home: str, capabilities: Any) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        guest = await room.guest(capabilities=capabilities)
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.hears("exec_approval_request")
        await room.settle_down()

        assert guest.asked == []


@pytest.mark.parametrize("capability", [{}, {"form": {}}, {"form": {}, "url": {}}])
async def test_a_client_with_the_form_capability_is_asked(home: str, capability: Any) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        guest = await room.guest(capabilities={"elicitation": capability})
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)

        await guest.question()


async def test_a_client_that_initializes_after_its_stream_is_asked_from_then_on(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        guest = await room.guest(capabilities=None)
        late = room.stranger()
        await late.stream(conversation.id)
        await guest.say(conversation.id, 2)
        await late.hears("exec_approval_request")
        late.introduce()
        await late.answer_to("hello")
        await guest.stream(conversation.id)
        await guest.question()
        guest.answer(0, YES)
        await late.question()
        late.answer(1, YES)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved"), (2, "approved")]
        assert late.asked[0]["params"]["codex_call_id"] == "call2"


@pytest.mark.promises("approvals.event-first")
async def test_clients_are_not_asked_before_an_approval_is_durable(home: str) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.say(conversation.id, 0)
        await room.settle_down()
        store.slow = True
        said = guest.call("conversationSendMessage", conversation_id=conversation.id, content=[SAY_ONE])
        while ["exec_approval_request", "question_asked"] not in store.waiting:
            await room.settle_down()
            if store.waiting[0] != ["exec_approval_request", "question_asked"]:
                await store.write()
        await guest.answer_to(said)
        status = guest.call("conversationStatus", conversation_id=conversation.id)
        await guest.stream(conversation.id)
        await room.settle_down()
        assert (guest.asked, (await guest.value_of(status))["questions"]) == ([], [])

        store.slow = False
        await store.write()
        question = await guest.question()
        assert guest.heard("exec_approval_request", "elicitation/create") == [
            "exec_approval_request",
            "elicitation/create",
        ]
        guest.answer(question["id"], YES)
        await guest.hears("task_complete")


async def test_a_slow_client_is_asked_only_for_the_open_approval(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        slow, quick = await room.guest(), await room.guest()
        await slow.stream(conversation.id)
        await quick.stream(conversation.id)
        slow.door.writable = False
        await quick.say(conversation.id, 2)
        await quick.question()
        quick.answer(0, YES)
        await quick.question(2)
        assert slow.asked == []

        slow.door.read_on()

        told = ("exec_approval_request", "approval_settled", "elicitation/create")
        assert slow.heard(*told) == [
            "exec_approval_request",
            "approval_settled",
            "exec_approval_request",
            "elicitation/create",
        ]
        assert slow.asked[0]["params"]["codex_call_id"] == "call2"
        slow.answer(2, YES)
        await quick.hears("task_complete")
        assert room.told == [(1, "approved"), (2, "approved")]


async def test_a_slow_client_is_asked_after_its_snapshot(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create()
        guest, slow, fickle = await room.guest(), await room.guest(), await room.guest()
        await guest.say(conversation.id, 1)
        for one in (slow, fickle):
            one.door.writable = False
            stream = one.call("conversationStream", conversation_id=conversation.id)
            await one.answer_to(stream)
            if one is fickle:
                one.cancel(stream)
            await room.settle_down()
            assert one.asked == []
            one.door.read_on()

        assert slow.heard("notifications/initial_state", "elicitation/create") == [
            "notifications/initial_state",
            "elicitation/create",
        ]
        assert fickle.heard("notifications/initial_state", "elicitation/create") == []


@pytest.mark.promises("approvals.outlives")
async def test_the_end_of_the_server_leaves_the_question_open_and_the_next_one_asks_it(home: str) -> None:
    store = SlowStore()
    asked: list[Any] = []
    async with LocalServer(home, store=store) as room:
        created = (await room.create()).id
        guest = await room.guest()
        await guest.say(created, 1)
        await guest.stream(created)
        asked.append(await guest.question())
    for _ in range(2):
        async with LocalServer(home, store=store) as room:
            guest = await room.guest()
            await guest.stream(created)
            asked.append(await guest.question())
            conversation = await room.conversations.find(created)

        assert guest.taken_back == []
        assert settlements(room, conversation) == ["question_asked"]

    assert [one["params"]["parley_approval_id"] for one in asked] == [approval_id(1)] * 3


async def test_a_message_that_joins_while_the_turn_waits_is_read_when_it_continues(home: str) -> None:
    async with LocalServer(home) as room:
        guest, busy = await room.guest(), await room.create()
        conversation = await room.asking(guest)
        await guest.say(conversation.id, 1)
        await guest.say(busy.id, 0)
        status = await guest.value_of(guest.call("conversationStatus", conversation_id=busy.id))
        assert (status["state"], len(guest.asked)) == ("idle", 1)

        guest.answer(0, YES)
        await guest.question(2)
        guest.answer(1, NO)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved"), (2, "denied")]
        assert guest.number_of("task_started") == 1


async def test_an_answer_that_comes_a_moment_too_late_is_nothing_to_warn_of(
    home: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as room:
        guests = [await room.guest() for _ in range(2)]
        await room.asking(*guests)
        store.slow = True
        guests[0].answer(0, YES)
        guests[1].answer(1, NO)
        await room.settle_down()
        store.slow = False
        while store.waiting:
            await store.write()
        for guest in guests:
            await guest.hears("task_complete")

    assert room.told == [(1, "approved")]
    assert caplog.messages == []
