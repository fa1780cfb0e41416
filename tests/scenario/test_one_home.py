"""Several processes on one home: each client can use every conversation, no matter which process runs it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from kit.clients.messages import turn_value
from kit.clients.shared_home import (
    ASKS,
    DelayedAnswer,
    ReceivedEvent,
    Start,
    events_until,
    is_,
    log_of,
    owner_of,
    said,
    shared,
    stored_events,
    turn_in,
)
from kit.clients.shell_turns import sh
from kit.system.frozen_time import frozen_time
from parley.client import Event, ToolFailed
from parley.testing import HOLD, Pieces, ScriptedModel
from parley.wire.events import (
    AgentMessage,
    AgentMessageDelta,
    ApprovalSettled,
    ErrorEvent,
    ExecCommandBegin,
    ExecCommandEnd,
    ExecCommandOutputDelta,
    TaskComplete,
    TaskStarted,
    UserMessage,
)

pytestmark = pytest.mark.child_process

INTERRUPTED = ErrorEvent(message=" Turn interrupted", reason="interrupted", principal="local")

# --- reading -------------------------------------------------------------------------------------


@pytest.mark.promises("keeping.shared")
async def test_clients_of_two_processes_see_the_same_events_positions_and_offsets(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two, three = await start(), await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    parley_model.says(
        Pieces("What shall I do? ", 3), HOLD, Pieces("I run it.", 2), sh("c1", "echo out; echo err >&2")
    )
    parley_model.says("Done")
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await parley_model.wait_until_held()
        await events_until(second, is_(AgentMessageDelta))
        async with three.client.conversation(here.id).stream() as late, there.stream() as again:
            parley_model.release()
            seen = [await turn_in(stream) for stream in (first, late, again)]
    pages = [await process.client.conversation(here.id).read() for process in (one, two, three)]

    assert seen == [seen[0]] * 3
    assert pages == [pages[0]] * 3
    assert [type(of.msg) for of in seen[0] if not isinstance(of.msg, ExecCommandOutputDelta)] == [
        TaskStarted,
        UserMessage,
        AgentMessageDelta,
        AgentMessage,
        ExecCommandBegin,
        ExecCommandEnd,
        AgentMessageDelta,
        AgentMessage,
        TaskComplete,
    ]


@pytest.mark.promises("keeping.shared", "keeping.loaded")
async def test_a_client_that_only_reads_is_woken_by_what_another_process_does(
    start: Start, parley_model: ScriptedModel
) -> None:
    _, _, here, there = await shared(start)
    begun = (await there.read()).seq
    waiting = asyncio.create_task(there.read(after=begun, wait_seconds=30))
    parley_model.says("Hello, ", HOLD, "world")
    await here.send("greet me")
    await parley_model.wait_until_held()
    page = await waiting
    async with there.stream() as stream:
        await events_until(stream, is_(AgentMessageDelta))
        text = (await there.read()).open[0].text
        known = (await here.read()).seq
        same = await there.read(after=known)
        parley_model.release()
        await stream.turn()

    assert [type(event.msg) for event in page.events] == [TaskStarted, UserMessage]
    assert (text, same.seq, same.state) == ("Hello, ", known, "running")


# --- commands ------------------------------------------------------------------------------------


@pytest.mark.promises("keeping.shared")
async def test_a_message_from_another_process_joins_the_turn_and_a_rename_is_known_to_all(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two, here, there = await shared(start)
    parley_model.says("First", HOLD)
    parley_model.says("Second")
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await parley_model.wait_until_held()
        await there.send("and that")
        await two.client.call_tool("conversationRename", {"conversation_id": here.id, "title": "Our work"})
        owners = await owner_of(here), await owner_of(there)
        titles = (await here.status()).title, (await there.status()).title
        parley_model.release()
        seen = await turn_in(first), await turn_in(second)

    assert seen[0] == seen[1]
    assert owners == (one.pid, one.pid)
    assert titles == ("Our work", "Our work")
    assert said([of.msg for of in seen[0]]) == ["go", "and that"]
    assert [one["content"] for one in parley_model.requests[1].body["messages"][-2:]] == ["First", "and that"]


@pytest.mark.promises("keeping.shared")
async def test_commands_of_a_client_of_another_process_are_executed_in_order(
    start: Start, parley_model: ScriptedModel
) -> None:
    _, _, here, there = await shared(start)
    parley_model.says("First", HOLD)
    parley_model.says("Second")
    numbers = [str(number) for number in range(10)]
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await parley_model.wait_until_held()
        await events_until(second, is_(AgentMessageDelta))
        await asyncio.gather(*map(there.send, numbers))
        await asyncio.gather(there.interrupt(), there.send("last"))
        seen = await events_until(first, is_(ErrorEvent)), await events_until(first, is_(TaskComplete))

    assert [said(events) for events in seen] == [["go", *numbers], ["last"]]


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_a_turn_is_interrupted_from_another_process(
    start: Start, parley_model: ScriptedModel, how: str
) -> None:
    _, two, here, there = await shared(start)
    parley_model.says("First", HOLD)
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await parley_model.wait_until_held()
        if how == "interrupt":
            await there.send("and that")
            await there.interrupt()
        else:
            joined = asyncio.Event()
            call = two.client.codex_reply(there.id, "and that", on_event=lambda event: joined.set())
            await joined.wait()
            await call.cancel()
        seen = await turn_in(first), await turn_in(second)
        await two.client.ping()

    assert seen[0] == seen[1]
    assert seen[0][-1].msg == INTERRUPTED
    assert [frame for frame in two.frames if b" Turn interrupted" in frame and b'"result"' in frame] == []


async def test_a_reply_in_another_process_joins_the_turn_and_both_calls_are_answered(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    parley_model.says("First", HOLD)
    parley_model.says("Second")
    calling = one.client.codex_reply(here.id, "go")
    await parley_model.wait_until_held()
    events: list[Event] = []
    replying = two.client.codex_reply(here.id, "and that", on_event=events.append)
    async with here.stream() as stream:
        await events_until(stream, lambda event: said([event]) == ["and that"])
        parley_model.release()
        results = await calling, await replying

    assert [result.content for result in results] == [results[0].content] * 2
    assert results[0].structured_content == turn_value(here.id, "Second")
    assert said(events) == ["and that"]
    assert events[-1] == TaskComplete(last_agent_message="Second")


@pytest.mark.promises("keeping.repeated")
async def test_the_same_message_through_two_processes_is_one(start: Start, parley_model: ScriptedModel) -> None:
    _, _, here, there = await shared(start)
    first, second = str(uuid4()), str(uuid4())
    parley_model.says("First", HOLD)
    await here.send("go", message_id=first)
    await parley_model.wait_until_held()
    for conversation in (there, here, there):
        await conversation.send("go", message_id=first)
        await conversation.send("and that", message_id=second)
    with pytest.raises(ToolFailed, match="Message id was used for another message"):
        await there.send("something else", message_id=second)
    async with there.stream() as stream:
        parley_model.release()
        await events_until(stream, is_(TaskComplete))
    for conversation in (there, here):
        await conversation.send("go", message_id=first)

    assert said(await log_of(here)) == ["go", "and that"]
    assert len(parley_model.requests) == 2


@pytest.mark.promises("keeping.shared")
async def test_a_message_to_an_idle_conversation_is_run_by_the_process_that_got_it(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two, here, there = await shared(start)
    owners: list[int | None] = []
    seen: list[list[ReceivedEvent]] = []
    async with here.stream() as first, there.stream() as second:
        for conversation in (here, there, here, there):
            parley_model.says("Working", HOLD)
            await conversation.send("go")
            await parley_model.wait_until_held()
            owners.append(await owner_of(here))
            parley_model.release()
            seen += [await turn_in(first), await turn_in(second)]

    assert owners == [one.pid, two.pid, one.pid, two.pid]
    assert list(map(stored_events, seen[0::2])) == list(map(stored_events, seen[1::2]))


async def test_deleting_in_one_process_ends_the_streams_and_reads_of_the_others(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two, here, there = await shared(start)
    delete: Any = {"conversation_id": here.id}
    parley_model.says("Working", HOLD)
    async with here.stream() as stream:
        await here.send("go")
        await parley_model.wait_until_held()
        refused = await two.client.call_tool("conversationDelete", delete)
        parley_model.release()
        await stream.turn()
        waiting = asyncio.create_task(here.read(after=(await here.read()).seq, wait_seconds=30))
        await there.status()
        deleted = await two.client.call_tool("conversationDelete", delete)
        async for event in stream:
            raise AssertionError(event)
        with pytest.raises(ToolFailed, match="Conversation does not exist"):
            await waiting

    running = {"status": "error", "message": "A turn is running", "code": "turn_is_running"}
    assert refused.structured_content == running
    assert deleted.structured_content == {"status": "ok"}
    assert stream.disconnected == "Conversation deleted"
    for conversation in (here, there):
        with pytest.raises(ToolFailed, match="Session does not exist"):
            await conversation.send("go")
    assert (await one.client.list()).conversations == ()


# --- approvals -----------------------------------------------------------------------------------


@pytest.mark.promises("keeping.shared")
async def test_clients_of_both_processes_are_asked_and_the_first_answer_counts(
    start: Start, parley_model: ScriptedModel
) -> None:
    asked = DelayedAnswer(), DelayedAnswer()
    one, two = await start(on_approval=asked[0]), await start(on_approval=asked[1])
    here = await one.create(**ASKS)
    there = two.client.conversation(here.id)
    parley_model.says(sh("c1", "echo ran >>ran"))
    parley_model.says("Done")
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await asked[0].asked()
        await asked[1].asked()
        (open_approval_id,) = await two.client.approvals()
        asked[1].answer("approved")
        seen = await turn_in(first), await turn_in(second)
        await asked[0].taken_back.wait()

    settled = [of.msg for of in seen[1] if isinstance(of.msg, ApprovalSettled)]
    assert [(one.approval_id, one.decision, one.by) for one in settled] == [
        (open_approval_id.approval_id, "approved", "client")
    ]
    assert seen[0] == seen[1]
    assert (one.work / "ran").read_text() == "ran\n"
    assert not asked[1].taken_back.is_set()


async def test_an_answer_by_tool_in_another_process_settles_it_once(
    start: Start, parley_model: ScriptedModel
) -> None:
    asked = DelayedAnswer()
    one, two = await start(on_approval=asked), await start()
    here = await one.create(**ASKS)
    parley_model.says(sh("c1", "echo ran >>ran"))
    async with here.stream() as stream:
        await here.send("go")
        await asked.asked()
        (approval,) = await two.client.approvals(here.id)
        assert approval.approval_id is not None
        await two.client.answer(approval.approval_id, "denied", reason="not now")
        await asked.taken_back.wait()
        for client in (two.client, one.client):
            with pytest.raises(ToolFailed, match="Question is settled: denied"):
                await client.answer(approval.approval_id, "approved")
        await stream.turn()

    assert parley_model.requests[-1].body["messages"][-1]["content"] == "exec command rejected by user: not now"
    assert not (one.work / "ran").exists()


async def test_an_approval_waits_only_if_a_client_of_another_process_can_be_asked(
    start: Start, parley_model: ScriptedModel
) -> None:
    asked = DelayedAnswer()
    config = "[approvals]\ntimeout_seconds = 1\n"
    one, two = await start(config=config), await start(config=config, on_approval=asked)
    held, dropped = await one.create(**ASKS), await one.create(**ASKS)
    async with held.stream() as first, two.client.conversation(held.id).stream(), dropped.stream() as second:
        parley_model.says(sh("c1", "touch ran"))
        with frozen_time():
            await held.send("go")
            await asked.asked()
        parley_model.says(sh("c2", "touch ran"))
        await dropped.send("go")
        nobody = (await events_until(second, is_(ApprovalSettled)))[-1]
        state = (await held.status()).state
        asked.answer("approved")
        settled = (await events_until(first, is_(ApprovalSettled)))[-1]

    assert isinstance(nobody, ApprovalSettled)
    assert isinstance(settled, ApprovalSettled)
    assert (nobody.decision, nobody.by, state) == ("timed_out", "timeout", "asking")
    assert (settled.decision, settled.by) == ("approved", "client")
