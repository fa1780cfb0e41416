"""The queue: messages that begin a turn when the turns before them have ended."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from kit.clients.shared_home import Start, shared
from kit.clients.wire_client import speaking
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import Conversation
from parley.runtime.message_queue import MAX_QUEUED
from parley.testing import HOLD, ParleyProcess, ScriptedModel
from parley.wire.events import ErrorEvent, QueueChanged, TaskComplete, UserMessage
from parley.wire.items import text_of
from parley.wire.mcp import PLAIN_VERSION


async def use(process: ParleyProcess, tool: str, conversation: Conversation, **arguments: Any) -> Any:
    """Call a tool, and return the value of its result."""
    given = {"conversation_id": conversation.id, **arguments}
    result = await process.client.call_tool(tool, given)
    return msgspec.to_builtins(result.structured_content)


def said(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


async def queue(process: ParleyProcess, conversation: Conversation, text: str, **more: Any) -> Any:
    sent = await use(process, "conversationSendMessage", conversation, content=said(text), delivery="queue", **more)
    assert sent["status"] == "ok", sent
    return sent


async def texts(process: ParleyProcess, conversation: Conversation) -> list[str]:
    """Return the texts of the queued messages."""
    return [one["content"][0]["text"] for one in (await use(process, "queueList", conversation))["messages"]]


async def until_completed(conversation: Conversation, completed: int) -> list[object]:
    """Wait until this many turns are complete and no turn is running. Return all events."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        page = await conversation.read(limit=10_000)
        while page.state != "idle" or sum(isinstance(one.msg, TaskComplete) for one in page.events) < completed:
            await conversation.read(after=page.seq, wait_seconds=1)
            page = await conversation.read(limit=10_000)
    return [one.msg for one in page.events]


def messages_in(events: list[object]) -> list[str]:
    return [text_of(one.content) for one in events if isinstance(one, UserMessage)]


@pytest.mark.promises("send.queue", "queue.order", "queue.list", "queue.events", "queue.edit", "queue.remove")
async def test_queued_messages_begin_their_turns_in_order(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    parley_model.says("Two.")
    parley_model.says("Three.")
    assert (await queue(process, conversation, "first"))["queued"] is False
    await parley_model.wait_until_held()
    ids = [(await queue(process, conversation, text))["message_id"] for text in ("second", "third", "never")]
    await use(process, "queueRemove", conversation, message_id=ids[2])
    await use(process, "queueEdit", conversation, message_id=ids[1], content=said("last"))
    listed = await use(process, "queueList", conversation)
    parley_model.release()
    events = await until_completed(conversation, 3)
    late = await use(process, "queueEdit", conversation, message_id=ids[0], content=said("too late"))

    assert [(one["message_id"], one["content"]) for one in listed["messages"]] == [
        (ids[0], said("second")),
        (ids[1], said("last")),
    ]
    assert listed["paused"] is False
    assert messages_in(events) == ["first", "second", "last"]
    changes = [one.messages for one in events if isinstance(one, QueueChanged)]
    assert changes == [(ids[0],), tuple(ids[:2]), tuple(ids), tuple(ids[:2]), tuple(ids[:2]), (ids[1],), ()]
    assert (late["status"], late["code"]) == ("error", "not_queued")


@pytest.mark.promises("queue.pause", "queue.resume", "queue.events")
async def test_an_interrupt_pauses_the_queue(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "never said")
    parley_model.says("Done.")
    await queue(process, conversation, "first")
    await parley_model.wait_until_held()
    waits = (await queue(process, conversation, "second"))["message_id"]
    await conversation.interrupt()
    before = await until_completed(conversation, 0)
    listed = await use(process, "queueList", conversation)
    await use(process, "queueResume", conversation)
    after = await until_completed(conversation, 1)

    assert listed["paused"] is True
    assert before[-2] == QueueChanged(messages=(waits,), paused=True)
    assert isinstance(before[-1], ErrorEvent)
    assert messages_in(after) == ["first", "second"]


@pytest.mark.promises("queue.pause")
async def test_the_next_message_starts_a_paused_queue(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "never said")
    await queue(process, conversation, "first")
    await parley_model.wait_until_held()
    await queue(process, conversation, "third")
    await conversation.interrupt()
    await until_completed(conversation, 0)
    parley_model.says("Second.")
    parley_model.says("Third.")
    await conversation.send("second")
    events = await until_completed(conversation, 2)
    changes = [one for one in events if isinstance(one, QueueChanged)]

    assert messages_in(events) == ["first", "second", "third"]
    assert [(len(one.messages), one.paused) for one in changes] == [(1, False), (1, True), (1, False), (0, False)]


@pytest.mark.promises("queue.pause")
async def test_a_failed_turn_pauses_the_queue(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    parley_model.fails(400)
    await queue(process, conversation, "first")
    await parley_model.wait_until_held()
    await queue(process, conversation, "fails")
    await queue(process, conversation, "waits")
    parley_model.release()
    await until_completed(conversation, 2)

    assert await use(process, "queueList", conversation) == {
        "messages": [
            {
                "message_id": one["message_id"],
                "content": said("waits"),
                "queued_at": one["queued_at"],
                "principal": "local",
            }
            for one in (await use(process, "queueList", conversation))["messages"]
        ],
        "paused": True,
    }


@pytest.mark.promises("queue.once")
async def test_a_message_is_queued_once(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    await queue(process, conversation, "first")
    await parley_model.wait_until_held()
    once, other = {"message_id": str(uuid4())}, {"message_id": str(uuid4())}
    await queue(process, conversation, "again", **once)
    again = await queue(process, conversation, "again", **once)
    taken = await use(
        process, "conversationSendMessage", conversation, content=said("else"), delivery="queue", **once
    )
    await queue(process, conversation, "removed", **other)
    await use(process, "queueRemove", conversation, **other)
    removed = await queue(process, conversation, "removed", **other)

    assert (again["queued"], taken["code"], removed["queued"]) == (True, "message_id_taken", False)
    assert await texts(process, conversation) == ["again"]


@pytest.mark.promises("queue.limit", "send.queue")
async def test_the_queue_has_a_limit_and_no_branches(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    await queue(process, conversation, "first")
    await parley_model.wait_until_held()
    for number in range(MAX_QUEUED):
        await queue(process, conversation, str(number))
    more = {"content": said("one more"), "delivery": "queue"}
    full = await use(process, "conversationSendMessage", conversation, **more)
    branch = await use(process, "conversationSendMessage", conversation, **more, parent_message_id=conversation.id)

    assert (full["code"], branch["code"]) == ("queue_full", "bad_arguments")
    assert len(await texts(process, conversation)) == MAX_QUEUED


@pytest.mark.promises("queue.settings")
async def test_a_queued_message_keeps_its_settings(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    parley_model.says("Two.")
    await queue(process, conversation, "first")
    await parley_model.wait_until_held()
    await queue(process, conversation, "second", model="other-model")
    parley_model.release()
    await until_completed(conversation, 2)

    assert parley_model.requests[-1].body["model"] == "other-model"
    assert parley_model.requests[0].body["model"] != "other-model"


@pytest.mark.promises("queue.durable", "queue.copies")
async def test_another_process_lists_and_changes_the_queue(start: Start, parley_model: ScriptedModel) -> None:
    one, two, here, there = await shared(start)
    parley_model.says(HOLD, "One.")
    parley_model.says("Two.")
    await queue(one, here, "first")
    await parley_model.wait_until_held()
    sent = await queue(two, there, "second")
    gone = await queue(one, here, "gone")
    await use(two, "queueRemove", there, message_id=gone["message_id"])
    await use(two, "queueEdit", there, message_id=sent["message_id"], content=said("edited"))
    await use(two, "queueResume", there)
    seen = await texts(one, here), await texts(two, there)
    parley_model.release()
    events = await until_completed(there, 2)
    copy = two.client.conversation((await use(two, "conversationFork", there))["conversation_id"])

    assert (sent["queued"], seen) == (True, (["edited"], ["edited"]))
    assert messages_in(events) == ["first", "edited"]
    assert not any(change.messages for change in await until_completed(copy, 2) if isinstance(change, QueueChanged))


@pytest.mark.child_process
@pytest.mark.promises("queue.durable", "queue.pause")
async def test_the_queue_survives_the_process_that_was_killed(start: Start, parley_model: ScriptedModel) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    parley_model.says(HOLD, "never said")
    await queue(one, here, "first")
    await parley_model.wait_until_held()
    await queue(one, here, "second")
    one.kill()
    listed = await use(two, "queueList", there)
    parley_model.says("Done.")
    await use(two, "queueResume", there)
    events = await until_completed(there, 1)

    assert listed["paused"] is True
    assert messages_in(events) == ["first", "second"]


@pytest.mark.promises("versions.plain")
async def test_an_older_client_sees_nothing_of_the_queue(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=PLAIN_VERSION) as client:
        tools = (await client.result_of(client.request("tools/list", {})))["tools"]

    send = next(one for one in tools if one["name"] == "conversationSendMessage")
    assert "delivery" not in send["inputSchema"]["properties"]
    assert not any(one["name"].startswith("queue") for one in tools)
