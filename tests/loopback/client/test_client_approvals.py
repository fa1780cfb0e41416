"""Approvals that the server asks a client for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from parley.client import AlreadyDecided, Approval, Client

StartPeer = Callable[..., AbstractAsyncContextManager[Client]]

APPROVAL = {
    "message": "Allow Codex to run `ls`?",
    "requestedSchema": {"type": "object", "properties": {}},
    "codex_elicitation": "exec-approval",
    "codex_mcp_tool_call_id": "1",
    "codex_event_id": "1",
    "codex_call_id": "call1",
    "codex_command": ["ls"],
    "codex_cwd": "/project",
}

ASKED = [{"id": 7, "method": "elicitation/create", "params": APPROVAL}, {"id": "$id", "result": {}}]


async def answer_to_approval(client: Client) -> Any:
    """Wait for the client's answer to the peer's request 7, and return the answer."""
    return (await answers_to_approval(client, 1))[0]


async def answers_to_approval(client: Client, number: int) -> list[Any]:
    """Wait for this many answers to the peer's requests with the id 7, and return the answers."""
    found: list[Any] = []
    while len(found) < number:
        messages: list[Any] = json.loads(await client.request("test/received"))
        found = [
            {key: value for key, value in message.items() if key not in ("jsonrpc", "id")}
            for message in messages
            if message.get("id") == 7 and "method" not in message
        ]
    return found


@pytest.mark.parametrize(
    ("decide", "answer"),
    [
        (Approval.approve, {"decision": "approved"}),
        (Approval.approve_for_session, {"decision": "approved_for_session"}),
        (Approval.deny, {"decision": "denied"}),
        (lambda approval: approval.deny("not now"), {"decision": "denied", "reason": "not now"}),
        (Approval.abort, {"decision": "abort"}),
    ],
)
async def test_an_approval_is_decided_by_its_methods(
    peer: StartPeer, decide: Callable[[Approval], Awaitable[None]], answer: dict[str, str]
) -> None:
    asked: list[Approval] = []

    async def on_approval(approval: Approval) -> None:
        asked.append(approval)
        await decide(approval)

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_approval=on_approval) as client:
        await client.ping()

        assert await answer_to_approval(client) == {"result": answer}
        (approval,) = asked
        assert (approval.kind, approval.command, approval.cwd) == ("exec", ("ls",), "/project")
        assert (approval.message, approval.call_id) == ("Allow Codex to run `ls`?", "call1")
        assert (approval.changes, approval.reason, approval.approval_id) == (None, None, None)
        with pytest.raises(AlreadyDecided):
            await approval.approve()


async def test_an_approval_that_is_requested_again_gets_the_same_answer(peer: StartPeer) -> None:
    asked: list[Approval] = []

    async def on_approval(approval: Approval) -> None:
        asked.append(approval)
        await approval.deny("not now")

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_approval=on_approval) as client:
        await client.ping()
        await answer_to_approval(client)
        await client.ping()

        assert await answers_to_approval(client, 2) == [{"result": {"decision": "denied", "reason": "not now"}}] * 2
        assert len(asked) == 1


async def test_a_patch_has_its_changes_and_its_reason(peer: StartPeer) -> None:
    fields = {key: value for key, value in APPROVAL.items() if key not in ("codex_command", "codex_cwd")}
    patch = {"codex_elicitation": "patch-approval", "codex_changes": {"/a": "delete"}, "codex_reason": "unused"}
    asked: asyncio.Queue[Approval] = asyncio.Queue()
    script = {"ping": [{"id": 7, "method": "elicitation/create", "params": {**fields, **patch}}, ASKED[1]]}
    async with asyncio.timeout(90), peer(script, on_approval=asked.put_nowait) as client:
        await client.ping()
        approval = await asked.get()

        assert (approval.kind, approval.changes, approval.reason) == ("patch", {"/a": "delete"}, "unused")
        await approval.approve()  # the callback has already returned
        assert await answer_to_approval(client) == {"result": {"decision": "approved"}}


async def test_a_callback_that_fails_answers_an_error_and_the_client_continues(peer: StartPeer) -> None:
    def fail(approval: Approval) -> None:
        raise ValueError("no idea")

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_approval=fail) as client:
        await client.ping()

        assert await answer_to_approval(client) == {
            "error": {"code": -32603, "message": "the client could not answer"}
        }
        await client.ping()


async def test_without_a_callback_there_is_no_such_method(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"ping": ASKED}) as client:
        await client.ping()

        assert await answer_to_approval(client) == {
            "error": {"code": -32601, "message": "no method elicitation/create"}
        }


async def test_an_approval_that_cannot_be_read_is_refused(peer: StartPeer) -> None:
    script = {"ping": [{"id": 7, "method": "elicitation/create", "params": {}}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script, on_approval=Approval.approve) as client:
        await client.ping()

        assert (await answer_to_approval(client))["error"]["code"] == -32602


async def test_a_server_may_ping_too(peer: StartPeer) -> None:
    script = {"ping": [{"id": 7, "method": "ping"}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script) as client:
        await client.ping()

        assert await answer_to_approval(client) == {"result": {}}


async def test_an_approval_that_is_settled_elsewhere_needs_no_answer(peer: StartPeer) -> None:
    asked, dropped = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(approval: Approval) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()
        raise AssertionError

    script = {
        "ping": ASKED,
        "settle": [
            {"method": "notifications/cancelled", "params": {"requestId": 7}},
            {"id": "$id", "result": {}},
        ],
    }
    async with asyncio.timeout(90), peer(script, on_approval=wait_for_ever) as client:
        await client.ping()
        await asked.wait()
        await client.request("settle")
        await dropped.wait()

        messages: list[Any] = json.loads(await client.request("test/received"))
        assert [message for message in messages if message.get("id") == 7] == []


async def test_an_approval_that_is_open_at_the_end_does_not_outlive_the_client(peer: StartPeer) -> None:
    asked = asyncio.Event()

    async def wait_for_ever(approval: Approval) -> None:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_approval=wait_for_ever) as client:
        await client.ping()
        await asked.wait()


@pytest.mark.parametrize(
    ("on_approval", "declared"), [(None, {}), (Approval.approve, {"elicitation": {}})], ids=["no", "yes"]
)
async def test_elicitation_is_declared_where_there_is_a_callback(
    peer: StartPeer, on_approval: Callable[[Approval], Awaitable[None]] | None, declared: dict[str, Any]
) -> None:
    async with asyncio.timeout(90), peer({}, on_approval=on_approval) as client:
        handshake, *_ = json.loads(await client.request("test/received"))

    assert handshake["params"]["capabilities"] == declared
