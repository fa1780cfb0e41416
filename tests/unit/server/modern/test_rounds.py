"""Approvals at 2026-07-28 by principals of different roles."""

from __future__ import annotations

from typing import Any

import pytest

from kit.clients.modern_client import ASKABLE, modern_meta
from kit.servers.local_server import LocalClient, LocalServer
from parley.server.context import Principal, Role
from parley.server.modern.rounds import STATE_SECONDS, RequestStates, RoundState


def guest(server: LocalServer, role: Role) -> LocalClient:
    return server.new_client(principal=Principal(name="guest", role=role))


def stream(client: LocalClient, conversation: str, **more: Any) -> int:
    arguments = {"conversation_id": conversation}
    params = {"name": "conversationStream", "arguments": arguments, "_meta": modern_meta(ASKABLE), **more}
    return client.request("tools/call", params)


@pytest.mark.promises("roles.approvals")
async def test_the_stream_of_a_driver_counts_as_one_that_cannot_be_asked(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create({"approvals": {"timeout_seconds": 30}})
        client, sender = guest(server, Role.DRIVER), await server.client(capabilities={})
        stream(client, conversation.id)
        await client.wait_for_message("notifications/initial_state")
        await sender.say(conversation.id, 1)
        await client.wait_for_message("exec_approval_request")
        await server.settle_down()
        await server.after(30)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "denied: nobody could be asked")]


@pytest.mark.promises("modern.state")
def test_a_state_expires_after_a_day() -> None:
    times = [0.0]
    states = RequestStates(b"k" * 32, now=lambda: times[-1])
    state = RoundState(
        principal="local",
        request=b"",
        expires=states.now() + STATE_SECONDS,
        conversation="c",
        seq=1,
        event_id="e",
        approval="a",
        rounds=1,
        before=0,
    )
    encoded = states.encode(state)
    decoded = []
    for now in (STATE_SECONDS - 1, STATE_SECONDS):
        times.append(now)
        decoded.append(states.decode(encoded))

    assert decoded == [state, None]
    assert STATE_SECONDS == 24 * 60 * 60


@pytest.mark.promises("roles.approvals")
async def test_a_state_does_not_replace_the_role(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        approver, observer = guest(server, Role.APPROVER), guest(server, Role.OBSERVER)
        asked = stream(approver, conversation.id)
        await (await server.client(capabilities={})).say(conversation.id, 1)
        result = (await approver.answer_to(asked))["result"]
        [key] = result["inputRequests"]
        given = {key: {"action": "accept", "content": {"decision": "approved"}}}
        more = {"inputResponses": given, "requestState": result["requestState"]}
        refused = (await observer.answer_to(stream(observer, conversation.id, **more)))["result"]

        assert (refused["isError"], refused["structuredContent"]["code"]) == (True, "role_too_low")
        assert server.decisions == []
