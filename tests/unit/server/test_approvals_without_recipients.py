"""Approvals while no reading client can be asked: their timeouts and their settlements."""

from __future__ import annotations

from typing import Any

import pytest

from kit.builders.approvals import approval_id
from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.settlements import SETTLED, settlements

SLOW_TIMING = {"approvals": {"timeout_seconds": 30}}
REFUSED = [(1, "denied: nobody could be asked")]
"""The output that the model gets when the timeout has expired."""


async def unheard(server: LocalServer, **approvals: Any) -> tuple[LocalClient, Any]:
    """Create a client that cannot be asked and streams a conversation that waits for an approval."""
    conversation = await server.create({"approvals": {**SLOW_TIMING["approvals"], **approvals}})
    client = await server.client(capabilities={})
    await client.stream(conversation.id)
    await client.say(conversation.id, 1)
    await client.wait_for_message("exec_approval_request")
    await server.settle_down()
    return client, conversation


@pytest.mark.promises("approvals.no-client")
async def test_an_approval_without_recipients_times_out_and_the_model_reads_why(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await unheard(server)
        await server.after(29)
        assert server.decisions == []

        server.clock.passes(1)
        await client.wait_for_message("task_complete")

        assert server.decisions == REFUSED
        assert client.event("approval_settled") == {
            "type": "approval_settled",
            "approval_id": approval_id(1),
            "call_id": "call1",
            "decision": "timed_out",
            "by": "timeout",
            "reason": "nobody could be asked",
        }
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]


async def test_after_a_while_the_turn_may_end_instead(home: str) -> None:
    async with LocalServer(home) as server:
        client, _ = await unheard(server, on_timeout="abort")
        server.clock.passes(30)
        await client.wait_for_message("error")

        assert server.decisions == []
        settled = client.event("approval_settled")
        assert (settled["decision"], settled["by"]) == ("abort", "timeout")


@pytest.mark.parametrize("approvals", [{"on_timeout": "hold"}, {"timeout_seconds": 0}])
async def test_an_approval_may_be_held_however_long_it_takes(home: str, approvals: dict[str, Any]) -> None:
    async with LocalServer(home) as server:
        client, conversation = await unheard(server, **approvals)
        await server.after(1_000_000)

        assert conversation.state.phase.value == "asking"
        assert len((await client.value_of(client.call("approvalsList")))["approvals"]) == 1


async def test_the_time_for_an_approval_restarts_when_the_last_recipient_leaves(
    home: str,
) -> None:
    async with LocalServer(home) as server:
        client, conversation = await unheard(server)
        server.clock.passes(20)
        able = await server.client()
        stream = await able.stream(conversation.id)
        await able.approval_request()
        able.cancel(stream)  # the client may still answer
        await server.settle_down()
        await server.after(1_000)
        assert server.decisions == []

        able.leave()
        await server.settle_down()
        await server.after(29)
        assert server.decisions == []
        server.clock.passes(1)
        await client.wait_for_message("task_complete")

        assert server.decisions == REFUSED


async def test_a_caller_that_left_is_not_waited_for(home: str) -> None:
    async with LocalServer(home) as server:
        caller, client = await server.client(), await server.client(capabilities={})
        caller.call("codex", prompt="1", cwd="/project", config=SLOW_TIMING)
        await caller.approval_request()
        (conversation,) = server.conversations
        await client.stream(conversation.id)
        caller.leave()
        await server.settle_down()
        server.clock.passes(30)
        await client.wait_for_message("task_complete")

        assert server.decisions == REFUSED


@pytest.mark.promises("approvals.no-client")
async def test_time_does_not_run_without_readers(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await unheard(server)
        client.leave()
        await server.after(1_000_000)

        assert (server.decisions, conversation.state.phase.value) == ([], "asking")


async def test_a_polling_client_counts_as_a_reader(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create({"approvals": {"timeout_seconds": 90}})
        client = await server.client()
        await client.say(conversation.id, 1)
        for _ in range(3):
            page = await client.value_of(client.call("conversationRead", conversation_id=conversation.id))
            assert page["state"] == "asking"
            await server.settle_down()
            await server.after(30)

        assert server.decisions == REFUSED


@pytest.mark.promises("approvals.no-client")
async def test_an_approval_of_a_rarely_polling_client_times_out(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create({"approvals": {"timeout_seconds": 90}})
        client = await server.client()
        await client.say(conversation.id, 1)
        for _ in range(2):
            page = await client.value_of(client.call("conversationRead", conversation_id=conversation.id))
            assert page["state"] == "asking"
            for seconds in (30, 30, 1_000):
                await server.settle_down()
                server.clock.passes(seconds)
            await server.settle_down()

        assert server.decisions == REFUSED


@pytest.mark.promises("approvals.no-client")
async def test_a_stream_that_is_opened_again_does_not_begin_the_time_anew(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create(SLOW_TIMING)
        client = await server.client(capabilities={})
        await client.say(conversation.id, 1)
        for _ in range(3):
            stream = await client.stream(conversation.id)
            await server.settle_down()
            assert server.decisions == []
            server.clock.passes(10)
            client.cancel(stream)
            await server.settle_down()
            server.clock.passes(1_000)

        assert server.decisions == REFUSED


@pytest.mark.promises("approvals.no-client")
async def test_an_approval_waits_for_a_client_that_cannot_take_its_snapshot_yet(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await unheard(server)
        slow, disconnecting = await server.client(), await server.client()
        for one in (slow, disconnecting):
            one.outbox.writable = False
        slow.call("conversationStream", conversation_id=conversation.id)
        await server.settle_down()
        await server.after(1_000)
        assert server.decisions == []

        slow.leave()
        stream = disconnecting.call("conversationStream", conversation_id=conversation.id)
        await server.settle_down()
        server.clock.passes(1_000)
        disconnecting.cancel(stream)
        await server.settle_down()
        assert server.decisions == []
        server.clock.passes(30)
        await client.wait_for_message("task_complete")

        assert server.decisions == REFUSED


async def test_a_client_that_polled_once_is_not_waited_for(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create({"approvals": {"timeout_seconds": 90}})
        client = await server.client()
        await client.say(conversation.id, 1)
        await client.value_of(client.call("conversationRead", conversation_id=conversation.id))
        await server.settle_down()
        for _ in range(10):
            await server.after(30)

        assert (server.decisions, conversation.state.phase.value) == ([], "asking")


async def test_a_polling_client_that_may_answer_counts_however_another_one_polls_after_it(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create({"approvals": {"when_nobody": "deny", "timeout_seconds": 90}})
        client = await server.client()
        await client.say(conversation.id, 1)
        await server.settle_down()
        conversation.approvals.note_poll(can_answer=True)
        conversation.approvals.note_poll(can_answer=False)
        await server.after(3)
        assert server.decisions == []

        await server.after(60)  # neither client polls any more
        conversation.approvals.note_poll(can_answer=False)
        await server.after(3)

        assert server.decisions == REFUSED
