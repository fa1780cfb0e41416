"""The principals in events and in late answers: who sent a message, decided an approval, or interrupted a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.approving import ApprovingClient, approving_client, open_approval
from kit.clients.http_client import HttpClient
from kit.clients.reading import until_state
from kit.clients.requests import tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.frozen_time import frozen_time
from parley.ports.store import RoleName
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

ASKS = {"approval_policy": "untrusted", "sandbox": "danger-full-access"}
CONFIG = "[approvals]\nmodel_may_answer = true\n"


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home", config=CONFIG) as server:
        yield server


@asynccontextmanager
async def local_client(
    model: ScriptedModel, server: HttpServer, *, version: str = FULL_VERSION
) -> AsyncIterator[ApprovingClient]:
    """Start another server process of the home, with a client on stdio."""
    async with approving_client(model, version=version, home=server.files.path, config=CONFIG) as client:
        yield client


async def client_of(server: HttpServer, name: str, role: RoleName = "admin", **options: Any) -> HttpClient:
    return await server.client(token=await server.create_token(name, role), **options)


async def named(client: HttpClient, conversation: str) -> list[tuple[str, str | None]]:
    """Return the events that name a principal, or may name one, with their principals."""
    read = await client.call("conversationRead", conversation_id=conversation, limit=1000)
    types = ("user_message", "approval_settled", "error", "queue_changed")
    found = [one["msg"] for one in read["events"]]
    return [(one["type"], one.get("principal")) for one in found if one["type"] in types]


async def failure(client: HttpClient, name: str, **arguments: Any) -> Any:
    """Call a tool that fails, and return its structured content."""
    result = (await client.post(tool(1, name, arguments), Accept="application/json")).json["result"]
    assert result["isError"] is True
    return result["structuredContent"]


async def the_approval(client: HttpClient) -> str:
    (listed,) = (await client.call("approvalsList"))["approvals"]
    return str(listed["approval_id"])


@pytest.mark.promises("principals.events", "approvals.settled")
async def test_events_name_the_principal_that_sent_decided_and_interrupted(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    ada, bob, eve = [await client_of(server, name) for name in ("ada", "bob", "eve")]
    conversation = await ada.create(**ASKS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Hello", HOLD)
    await ada.say(conversation, "go")
    await until_state(ada, conversation, "asking")
    await bob.say(conversation, "and hurry")
    await bob.call("approvalAnswer", approval_id=await the_approval(bob), decision="denied", reason="no")
    await parley_model.wait_until_held()
    await eve.call("conversationInterrupt", conversation_id=conversation)
    await until_state(ada, conversation, "idle")
    plain = await client_of(server, "old", version=PLAIN_VERSION)
    shown = (await plain.call("conversationRead", conversation_id=conversation, limit=1000))["events"]

    assert await named(ada, conversation) == [
        ("user_message", "ada"),
        ("user_message", "bob"),
        ("approval_settled", "bob"),
        ("error", "eve"),
    ]
    assert shown[-1]["msg"] == {"type": "error", "message": " Turn interrupted"}
    assert "principal" not in str(shown)


@pytest.mark.promises("principals.events")
async def test_an_approval_that_an_interrupt_drops_names_the_one_that_interrupted(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    ada, bob = await client_of(server, "ada"), await client_of(server, "bob")
    conversation = await ada.create(**ASKS)
    parley_model.says(sh("c1", "touch made"))
    await ada.say(conversation, "go")
    await until_state(ada, conversation, "asking")
    await bob.call("conversationInterrupt", conversation_id=conversation)
    await until_state(ada, conversation, "idle")
    parley_model.says(sh("c1", "touch made"))
    await ada.call("conversationContinue", conversation_id=conversation)
    await until_state(ada, conversation, "asking")
    await bob.call("approvalAnswer", approval_id=await the_approval(bob), decision="abort")
    await until_state(ada, conversation, "idle")

    assert await named(ada, conversation) == [
        ("user_message", "ada"),
        ("approval_settled", "bob"),
        ("error", "bob"),
        ("approval_settled", "bob"),
        ("error", "bob"),
    ]


@pytest.mark.promises("principals.events", "approvals.late")
async def test_requests_through_another_process_name_their_principals(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    ada = await client_of(server, "ada")
    async with local_client(parley_model, server) as local:
        conversation = await local.create(**ASKS)
        parley_model.says(sh("c1", "touch made"))
        parley_model.says("Hello", HOLD)
        await local.open_stream(conversation)
        await local.say(conversation, "go")
        asked = (await local.until_asked())[-1]
        approval = await open_approval(local)
        await ada.say(conversation, "and hurry")
        await ada.call("approvalAnswer", approval_id=approval, decision="denied", reason="not now")
        withdrawn = (await local.until_method("notifications/cancelled"))[-1]["params"]
        await parley_model.wait_until_held()
        late = await failure(ada, "approvalAnswer", approval_id=approval, decision="approved")
        await ada.call("conversationInterrupt", conversation_id=conversation)
        await local.until_method("error")
        shown = await named(ada, conversation)

    assert shown == [
        ("user_message", "local"),
        ("user_message", "ada"),
        ("approval_settled", "ada"),
        ("error", "ada"),
    ]
    assert withdrawn == {"requestId": asked["id"], "reason": late["message"]}
    assert late == {
        "status": "error",
        "code": "approval_settled",
        "message": "Question is settled: denied by ada (tool)",
        "decision": "denied",
        "by": "tool",
        "principal": "ada",
        "reason": "not now",
        "settled_at": late["settled_at"],
    }


@pytest.mark.promises("approvals.late", "approvals.everybody")
async def test_an_older_client_gets_the_decision_alone(server: HttpServer, parley_model: ScriptedModel) -> None:
    ada = await client_of(server, "ada")
    async with local_client(parley_model, server, version=PLAIN_VERSION) as local:
        conversation = await local.create(**ASKS)
        parley_model.says(sh("c1", "touch made"), "Done.")
        await local.open_stream(conversation)
        await local.say(conversation, "go")
        asked = (await local.until_asked())[-1]
        approval = await open_approval(local)
        parley_model.says("Done.")
        await ada.call("approvalAnswer", approval_id=approval, decision="denied")
        withdrawn = (await local.until_method("notifications/cancelled"))[-1]["params"]
        late = (await local.until_answer(local.call("approvalAnswer", approval_id=approval, decision="approved")))[
            -1
        ]["result"]

    assert withdrawn == {"requestId": asked["id"], "reason": "Question is settled: denied"}
    assert late["structuredContent"] == {"status": "error", "message": "Question is settled: denied"}


@pytest.mark.promises("principals.events", "approvals.late")
async def test_a_timeout_names_no_principal(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=f"{CONFIG}timeout_seconds = 1\n") as server:
        ada = await client_of(server, "ada")
        conversation = await ada.create(**ASKS)
        parley_model.says(sh("c1", "touch made"))
        parley_model.says("Done.")
        with frozen_time():
            await ada.say(conversation, "go")
            await until_state(ada, conversation, "asking")
            approval = await the_approval(ada)
        await until_state(ada, conversation, "idle")
        late = await failure(ada, "approvalAnswer", approval_id=approval, decision="approved")

        assert await named(ada, conversation) == [("user_message", "ada"), ("approval_settled", None)]
        assert late["message"] == "Question is settled: timed_out (timeout)"
        assert (late["decision"], late["by"], "principal" in late) == ("timed_out", "timeout", False)


@pytest.mark.promises("principals.queue", "principals.events")
async def test_a_queued_message_has_the_principal_that_edited_it_last(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    ada, bob = await client_of(server, "ada"), await client_of(server, "bob")
    conversation = await ada.create()
    parley_model.says("One", HOLD)
    await ada.say(conversation, "first")
    await parley_model.wait_until_held()
    content = [{"type": "text", "text": "second"}]
    queued = await bob.call(
        "conversationSendMessage", conversation_id=conversation, content=content, delivery="queue"
    )
    before = (await ada.call("queueList", conversation_id=conversation))["messages"]
    await ada.call("queueEdit", conversation_id=conversation, message_id=queued["message_id"], content=content)
    listed = (await ada.call("queueList", conversation_id=conversation))["messages"]
    await ada.call("conversationInterrupt", conversation_id=conversation)
    await until_state(ada, conversation, "idle")
    parley_model.says("Two")
    await ada.call("queueResume", conversation_id=conversation)
    while len(shown := await named(ada, conversation)) < 8:
        await ada.call("conversationRead", conversation_id=conversation, wait_seconds=1)

    assert [one["principal"] for one in (*before, *listed)] == ["bob", "ada"]
    assert shown == [
        ("user_message", "ada"),
        ("queue_changed", "bob"),
        ("queue_changed", "ada"),
        ("queue_changed", None),
        ("error", "ada"),
        ("queue_changed", "ada"),
        ("user_message", "ada"),
        ("queue_changed", None),
    ]


@pytest.mark.promises("principals.copies")
async def test_a_fork_keeps_the_principals(server: HttpServer, parley_model: ScriptedModel) -> None:
    ada, bob = await client_of(server, "ada"), await client_of(server, "bob")
    conversation = await ada.create()
    parley_model.says("Hello")
    await ada.say(conversation, "go")
    await until_state(ada, conversation, "idle")
    forked = (await bob.call("conversationFork", conversation_id=conversation))["conversation_id"]

    assert await named(bob, forked) == [("user_message", "ada")]
