"""The clients that are asked whether a turn may exceed a limit."""

from __future__ import annotations

from typing import Any

import pytest

from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.settlements import YES
from kit.servers.slow_store import SlowStore
from parley.runtime.conversation import Conversation
from parley.wire.mcp import PLAIN_VERSION

LIMIT = "Limit reached: conversation_tokens"


async def at_its_limit(server: LocalServer, **approvals: Any) -> Conversation:
    """Create a conversation that has reached its limit, so that its next turn asks at once."""
    conversation = await server.create({"limits": {"conversation_tokens": 1}, "approvals": approvals})
    client = await server.client()
    await client.say(conversation.id, 0)
    await server.settle_down()
    assert conversation.state.phase.value == "idle"
    client.leave()
    return conversation


def errors(client: LocalClient) -> list[str]:
    return [one["params"]["msg"]["message"] for one in client.messages if one.get("method") == "error"]


@pytest.mark.promises("limits.plain")
async def test_only_newer_clients_are_asked_and_their_approval_counts_for_all(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await at_its_limit(server)
        newer, older = await server.client(), await server.client(version=PLAIN_VERSION)
        await older.stream(conversation.id)
        await newer.stream(conversation.id)
        await older.say(conversation.id, 0)
        asked = await newer.approval_request()
        newer.answer(asked["id"], YES)
        await older.wait_for_message("task_complete")

        types = ("limit_reached", "elicitation/create", "approval_settled", "task_complete")
        assert newer.heard(*types) == [*types]
        assert older.heard(*types, "error") == ["task_complete"]


@pytest.mark.promises("limits.plain")
@pytest.mark.parametrize("approvals", [{}, {"on_timeout": "hold"}, {"on_timeout": "abort"}, {"timeout_seconds": 0}])
async def test_a_turn_with_only_older_clients_ends_at_its_limit_at_once(
    home: str, approvals: dict[str, Any]
) -> None:
    async with LocalServer(home) as server:
        conversation = await at_its_limit(server, **approvals)
        older, deaf = await server.client(version=PLAIN_VERSION), await server.client(capabilities={})
        await older.stream(conversation.id)
        await deaf.stream(conversation.id)
        await older.say(conversation.id, 0)
        await older.wait_for_message("task_complete")

        types = (
            "task_started",
            "limit_reached",
            "elicitation/create",
            "approval_settled",
            "error",
            "task_complete",
        )
        assert older.heard(*types) == ["task_started", "error", "task_complete"]
        assert deaf.heard(*types) == ["task_started", "limit_reached", "approval_settled", "error", "task_complete"]
        assert errors(older) == errors(deaf) == [LIMIT]


@pytest.mark.promises("limits.plain", "approvals.held")
async def test_without_readers_the_approval_is_held_until_an_older_client_comes(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await at_its_limit(server)
        sender, older = await server.client(), await server.client(version=PLAIN_VERSION)
        await sender.say(conversation.id, 0)
        await server.settle_down()
        await server.after(1_000_000)
        assert conversation.state.phase.value == "asking"

        await older.stream(conversation.id)
        await older.wait_for_message("task_complete")

        assert (older.asked, errors(older)) == ([], [LIMIT])


async def test_an_older_client_sees_the_turn_end_when_the_clients_with_the_request_have_left(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await at_its_limit(server)
        newer, older = await server.client(), await server.client(version=PLAIN_VERSION)
        await newer.stream(conversation.id)
        await older.stream(conversation.id)
        await newer.say(conversation.id, 0)
        await newer.approval_request()
        await server.settle_down()
        assert errors(older) == []

        newer.leave()
        await older.wait_for_message("task_complete")

        assert errors(older) == [LIMIT]


async def test_a_limit_times_out_like_any_approval_if_readers_cannot_be_asked(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await at_its_limit(server, timeout_seconds=30)
        deaf, older = await server.client(capabilities={}), await server.client(version=PLAIN_VERSION)
        await deaf.stream(conversation.id)
        await deaf.say(conversation.id, 0)
        await server.settle_down()
        await server.after(29)
        assert errors(deaf) == []
        server.clock.passes(1)
        await deaf.wait_for_message("task_complete")

        assert errors(deaf) == [LIMIT]

        await deaf.say(conversation.id, 0)
        await server.settle_down()
        assert errors(deaf) == [LIMIT]
        await older.stream(conversation.id)
        await deaf.wait_for_message("task_complete", 2)

        assert errors(deaf) == [LIMIT, LIMIT]


@pytest.mark.promises("limits.answers")
async def test_any_client_answers_by_the_tool(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await at_its_limit(server)
        deaf = await server.client(capabilities={})
        await deaf.stream(conversation.id)
        await deaf.say(conversation.id, 0)
        await deaf.wait_for_message("limit_reached")
        listed = await deaf.value_of(deaf.call("approvalsList", conversation_id=conversation.id))
        (approval,) = listed["approvals"]
        deaf.call("approvalAnswer", approval_id=approval["approval_id"], decision="approved")
        await deaf.wait_for_message("task_complete")

        assert errors(deaf) == []


@pytest.mark.parametrize(("decision", "ends"), [("approved", []), ("denied", [LIMIT])])
async def test_the_next_call_resumes_or_ends_the_turn(home: str, decision: str, ends: list[str]) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as server:
        conversation = (await at_its_limit(server)).id
        await (await server.client()).say(conversation, 0)
        await server.settle_down()

    async with LocalServer(home, store=store) as server:
        client = await server.client()
        await client.stream(conversation)
        asked = await client.approval_request()
        client.answer(asked["id"], {"decision": decision})
        await client.wait_for_message("task_complete")

        assert errors(client) == ends
        assert [one["params"]["message"].partition(" (")[0] for one in client.asked] == [
            "conversation_tokens reached"
        ]


@pytest.mark.promises("limits.counted")
async def test_the_time_in_which_an_approval_waited_is_not_counted(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create({"limits": {"turn_seconds": 10}})
        client = await server.client()
        await client.stream(conversation.id)
        await client.say(conversation.id, 2)
        await client.approval_request()
        server.clock.passes(1_000)
        client.answer(0, YES)
        await client.approval_request(2)
        server.clock.passes(1_000)
        client.answer(1, YES)
        await client.wait_for_message("task_complete")

        assert [one["params"]["codex_elicitation"] for one in client.asked] == ["exec-approval", "exec-approval"]
