"""Approvals while no reading client can be asked: how long they wait, and how they are settled."""

from __future__ import annotations

from typing import Any

import pytest

from kit.builders.questions import approval_id
from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.settlements import SETTLED, settlements

PATIENT = {"approvals": {"timeout_seconds": 30}}
REFUSED = [(1, "denied: nobody could be asked")]
"""What the model is told when the time is over."""


async def unheard(room: LocalServer, **approvals: Any) -> tuple[LocalClient, Any]:
    """Create a client that cannot be asked and streams a conversation that waits for an approval."""
    conversation = await room.create({"approvals": {**PATIENT["approvals"], **approvals}})
    guest = await room.guest(capabilities={})
    await guest.stream(conversation.id)
    await guest.say(conversation.id, 1)
    await guest.hears("exec_approval_request")
    await room.settle_down()
    return guest, conversation


@pytest.mark.promises("approvals.nobody")
async def test_after_a_while_nobody_could_be_asked_and_the_model_is_told_so(home: str) -> None:
    async with LocalServer(home) as room:
        guest, conversation = await unheard(room)
        await room.after(29)
        assert room.told == []

        room.clock.passes(1)
        await guest.hears("task_complete")

        assert room.told == REFUSED
        assert guest.event("approval_settled") == {
            "type": "approval_settled",
            "approval_id": approval_id(1),
            "call_id": "call1",
            "decision": "timed_out",
            "by": "timeout",
            "reason": "nobody could be asked",
        }
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]


async def test_after_a_while_the_turn_may_end_instead(home: str) -> None:
    async with LocalServer(home) as room:
        guest, _ = await unheard(room, on_timeout="abort")
        room.clock.passes(30)
        await guest.hears("error")

        assert room.told == []
        settled = guest.event("approval_settled")
        assert (settled["decision"], settled["by"]) == ("abort", "timeout")


@pytest.mark.parametrize("approvals", [{"on_timeout": "hold"}, {"timeout_seconds": 0}])
async def test_a_question_may_be_held_however_long_it_takes(home: str, approvals: dict[str, Any]) -> None:
    async with LocalServer(home) as room:
        guest, conversation = await unheard(room, **approvals)
        await room.after(1_000_000)

        assert conversation.state.phase.value == "asking"
        assert len((await guest.value_of(guest.call("approvalsList")))["approvals"]) == 1


async def test_time_does_not_run_while_somebody_can_be_asked_and_begins_anew_when_that_one_is_gone(
    home: str,
) -> None:
    async with LocalServer(home) as room:
        guest, conversation = await unheard(room)
        room.clock.passes(20)
        able = await room.guest()
        stream = await able.stream(conversation.id)
        await able.question()
        able.cancel(stream)  # it may still answer
        await room.settle_down()
        await room.after(1_000)
        assert room.told == []

        able.leave()
        await room.settle_down()
        await room.after(29)
        assert room.told == []
        room.clock.passes(1)
        await guest.hears("task_complete")

        assert room.told == REFUSED


async def test_a_caller_that_left_is_not_waited_for(home: str) -> None:
    async with LocalServer(home) as room:
        caller, guest = await room.guest(), await room.guest(capabilities={})
        caller.call("codex", prompt="1", cwd="/project", config=PATIENT)
        await caller.question()
        (conversation,) = room.conversations
        await guest.stream(conversation.id)
        caller.leave()
        await room.settle_down()
        room.clock.passes(30)
        await guest.hears("task_complete")

        assert room.told == REFUSED


@pytest.mark.promises("approvals.nobody")
async def test_time_does_not_run_while_nobody_reads(home: str) -> None:
    async with LocalServer(home) as room:
        guest, conversation = await unheard(room)
        guest.leave()
        await room.after(1_000_000)

        assert (room.told, conversation.state.phase.value) == ([], "asking")


async def test_a_polling_client_counts_as_a_reader(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create({"approvals": {"timeout_seconds": 90}})
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        for _ in range(3):
            page = await guest.value_of(guest.call("conversationRead", conversation_id=conversation.id))
            assert page["state"] == "asking"
            await room.settle_down()
            await room.after(30)

        assert room.told == REFUSED


@pytest.mark.promises("approvals.nobody")
async def test_an_approval_of_a_rarely_polling_client_times_out(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create({"approvals": {"timeout_seconds": 90}})
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        for _ in range(2):
            page = await guest.value_of(guest.call("conversationRead", conversation_id=conversation.id))
            assert page["state"] == "asking"
            for seconds in (30, 30, 1_000):
                await room.settle_down()
                room.clock.passes(seconds)
            await room.settle_down()

        assert room.told == REFUSED


@pytest.mark.promises("approvals.nobody")
async def test_a_stream_that_is_opened_again_does_not_begin_the_time_anew(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create(PATIENT)
        guest = await room.guest(capabilities={})
        await guest.say(conversation.id, 1)
        for _ in range(3):
            stream = await guest.stream(conversation.id)
            await room.settle_down()
            assert room.told == []
            room.clock.passes(10)
            guest.cancel(stream)
            await room.settle_down()
            room.clock.passes(1_000)

        assert room.told == REFUSED


@pytest.mark.promises("approvals.nobody")
async def test_an_approval_waits_for_a_client_that_cannot_take_its_snapshot_yet(home: str) -> None:
    async with LocalServer(home) as room:
        guest, conversation = await unheard(room)
        slow, fickle = await room.guest(), await room.guest()
        for one in (slow, fickle):
            one.door.writable = False
        slow.call("conversationStream", conversation_id=conversation.id)
        await room.settle_down()
        await room.after(1_000)
        assert room.told == []

        slow.leave()
        stream = fickle.call("conversationStream", conversation_id=conversation.id)
        await room.settle_down()
        room.clock.passes(1_000)
        fickle.cancel(stream)
        await room.settle_down()
        assert room.told == []
        room.clock.passes(30)
        await guest.hears("task_complete")

        assert room.told == REFUSED


async def test_a_client_that_polled_once_is_not_waited_for(home: str) -> None:
    async with LocalServer(home) as room:
        conversation = await room.create({"approvals": {"timeout_seconds": 90}})
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        await guest.value_of(guest.call("conversationRead", conversation_id=conversation.id))
        await room.settle_down()
        for _ in range(10):
            await room.after(30)

        assert (room.told, conversation.state.phase.value) == ([], "asking")
