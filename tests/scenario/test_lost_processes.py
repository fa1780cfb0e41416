"""Several processes on one home, one of which is killed or stopped: the other processes continue to work."""

from __future__ import annotations

import asyncio
import os
import signal
from uuid import uuid4

import pytest

from kit.clients.messages import turn_value
from kit.clients.shared_home import (
    ASKS,
    DelayedAnswer,
    Start,
    events_until,
    is_,
    log_of,
    said,
    shared,
    stored_events,
    turn_in,
)
from kit.clients.shell_turns import sh
from parley.client import ToolFailed
from parley.ports.store import CALL_SECONDS
from parley.testing import HOLD, ScriptedModel
from parley.wire.events import (
    AgentMessageDelta,
    ApprovalSettled,
    ErrorEvent,
    TaskComplete,
    TaskStarted,
    UserMessage,
)

pytestmark = pytest.mark.child_process

KILLED = ErrorEvent(message="Turn interrupted: the server that ran it was killed", reason="restarted")
STOPPED = ErrorEvent(message="Turn interrupted: the server was stopped", reason="stopped")


@pytest.mark.promises("keeping.restarted", "keeping.taken-over", "keeping.repeated")
async def test_a_turn_whose_process_is_killed_is_ended_once_and_the_next_message_works(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two, three = await start(), await start(), await start()
    here = await one.create()
    others = [process.client.conversation(here.id) for process in (two, three)]
    message_id = str(uuid4())
    parley_model.says("Half a", HOLD, " sentence")
    async with others[0].stream() as first, others[1].stream() as second:
        await here.send("go")
        await parley_model.wait_until_held()
        replying = two.client.codex_reply(here.id, "and that")
        await events_until(first, lambda event: said([event]) == ["and that"])
        await others[1].send("and this", message_id=message_id)
        await events_until(first, lambda event: said([event]) == ["and this"])
        one.kill()
        result = await replying
        await others[0].send("and this", message_id=message_id)
        await events_until(first, is_(ErrorEvent))
        parley_model.says("Again")
        await others[1].send("once more")
        seen = await turn_in(first), await events_until(second, is_(TaskComplete))
    log = await log_of(others[0])

    assert result.error == KILLED.message
    assert [event for event in log if isinstance(event, ErrorEvent)] == [KILLED]
    assert [event for event in seen[1] if isinstance(event, ErrorEvent)] == [KILLED]
    assert said(log) == ["go", "and that", "and this", "once more"]
    assert log[-1] == TaskComplete(last_agent_message="Again")
    assert seen[0][-1].msg == log[-1]


@pytest.mark.promises("keeping.asking", "keeping.taken-over")
async def test_an_approval_whose_process_is_killed_stays_open_and_the_command_runs_once(
    start: Start, parley_model: ScriptedModel
) -> None:
    asked = DelayedAnswer(), DelayedAnswer()
    one, two, three = await start(), await start(on_approval=asked[0]), await start(on_approval=asked[1])
    here = await one.create(**ASKS)
    others = [process.client.conversation(here.id) for process in (two, three)]
    parley_model.says(sh("c1", "echo ran >>ran"))
    parley_model.says("Done")
    async with others[0].stream() as first, others[1].stream() as second:
        await here.send("go")
        replying = two.client.codex_reply(here.id, "and that")
        for stream in (first, second):
            await events_until(stream, lambda event: said([event]) == ["and that"])
        await asked[0].asked()
        await asked[1].asked()
        one.kill()
        await one.exit_code()
        asked[1].answer("approved")
        seen = await turn_in(first), await turn_in(second)
        result = await replying

    assert stored_events(seen[0]) == stored_events(seen[1])
    assert [of.msg.decision for of in seen[0] if isinstance(of.msg, ApprovalSettled)] == ["approved"]
    assert seen[0][-1].msg == TaskComplete(last_agent_message="Done")
    assert result.structured_content == turn_value(here.id, "Done")
    assert (one.work / "ran").read_text() == "ran\n"
    assert len(parley_model.requests) == 2


@pytest.mark.promises("lifecycle.stopped-turn")
@pytest.mark.parametrize("asks", [True, False])
async def test_a_process_that_stops_in_order_reports_it_or_leaves_its_approval_to_others(
    start: Start, parley_model: ScriptedModel, asks: bool
) -> None:
    asked = DelayedAnswer()
    one, two = await start(), await start(on_approval=asked)
    here = await one.create(**ASKS)
    there = two.client.conversation(here.id)
    parley_model.says(sh("c1", "touch ran") if asks else HOLD)
    async with there.stream() as stream:
        calling = one.client.codex_reply(here.id, "go")
        await (asked.asked() if asks else parley_model.wait_until_held())
        one.terminate()
        result = await calling
        assert await one.exit_code() == 0
        if asks:
            asked.answer("approved")
        events = await stream.turn()

    assert result.error == STOPPED.message
    assert [event for event in events if isinstance(event, ErrorEvent)] == ([] if asks else [STOPPED])
    assert [event.decision for event in events if isinstance(event, ApprovalSettled)] == ["approved"] * asks


@pytest.mark.promises("lifecycle.stopped-turn")
async def test_nothing_changes_for_a_turn_when_a_process_that_follows_it_ends(
    start: Start, parley_model: ScriptedModel
) -> None:
    asked = DelayedAnswer(), DelayedAnswer()
    one, two, three = await start(on_approval=asked[0]), await start(on_approval=asked[1]), await start()
    here = await one.create(**ASKS)
    parley_model.says("Working", HOLD, sh("c1", "touch ran"))
    parley_model.says("Done")
    async with here.stream() as stream:
        await here.send("go")
        await parley_model.wait_until_held()
        await events_until(await two.client.conversation(here.id).stream(), is_(AgentMessageDelta))
        await events_until(await three.client.conversation(here.id).stream(), is_(AgentMessageDelta))
        replying = two.client.codex_reply(here.id, "and that")
        await events_until(stream, lambda event: said([event]) == ["and that"])
        three.kill()
        two.terminate()
        result = await replying
        assert await two.exit_code() == 0
        parley_model.release()
        await asked[0].asked()
        asked[0].answer("approved")
        events = await stream.turn()

    assert result.error == STOPPED.message
    assert events[-1] == TaskComplete(last_agent_message="Done")
    assert [event for event in events if isinstance(event, ErrorEvent)] == []
    assert asked[1].commands == []


@pytest.mark.promises("keeping.silent")
@pytest.mark.waits
async def test_entries_of_a_stopped_process_can_be_read_and_it_continues_later(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, _, here, there = await shared(start)
    parley_model.says("Working", HOLD)
    await here.send("go")
    await parley_model.wait_until_held()
    os.kill(one.pid, signal.SIGSTOP)
    try:
        page = await there.read()
        async with there.stream() as stream:
            os.kill(one.pid, signal.SIGCONT)
            parley_model.release()
            events = await stream.turn()
    finally:
        os.kill(one.pid, signal.SIGCONT)

    assert ([type(event.msg) for event in page.events], page.state) == ([TaskStarted, UserMessage], "running")
    assert events[-1] == TaskComplete(last_agent_message="Working")
    assert [event for event in events if isinstance(event, ErrorEvent)] == []


@pytest.mark.promises("keeping.silent")
@pytest.mark.waits
async def test_a_command_for_a_stopped_owner_fails_after_its_deadline(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, _, here, there = await shared(start)
    parley_model.says("Working", HOLD)
    async with there.stream() as stream:
        await here.send("go")
        await parley_model.wait_until_held()
        await events_until(stream, is_(AgentMessageDelta))
        os.kill(one.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ToolFailed, match=f"process {one.pid} runs a turn of the conversation and does not"):
                await there.send("and that")
        finally:
            os.kill(one.pid, signal.SIGCONT)
        parley_model.release()
        events = await stream.turn()

    assert isinstance(events[-1], TaskComplete)


@pytest.mark.promises("keeping.silent", "delete.result")
@pytest.mark.waits
async def test_a_deletion_does_not_wait_for_a_stopped_owner(start: Start, parley_model: ScriptedModel) -> None:
    one, _, here, there = await shared(start)
    parley_model.says("Working", HOLD)
    await here.send("go")
    await parley_model.wait_until_held()
    os.kill(one.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(CALL_SECONDS):
            with pytest.raises(ToolFailed, match="A turn is running"):
                await there.delete()
    finally:
        os.kill(one.pid, signal.SIGCONT)
    async with there.stream() as stream:
        parley_model.release()
        await events_until(stream, is_(TaskComplete))

    await there.delete()


@pytest.mark.promises("delete.result")
async def test_a_conversation_whose_owner_was_killed_can_be_deleted(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, _, here, there = await shared(start)
    parley_model.says("Working", HOLD)
    await here.send("go")
    await parley_model.wait_until_held()
    one.kill()
    await one.exit_code()
    await there.delete()

    with pytest.raises(ToolFailed, match="does not exist"):
        await there.read()


@pytest.mark.promises("attention.list")
async def test_the_turn_of_a_process_that_was_killed_needs_attention(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    parley_model.says("Half a", HOLD, " sentence")
    await here.send("go")
    await parley_model.wait_until_held()
    assert (await two.client.attention()).conversations == ()
    one.kill()
    while not (items := (await two.client.attention()).conversations):
        pass  # the kernel has not removed the process yet

    (found,) = items
    assert (found.conversation_id, found.state, found.reason) == (here.id, "failed", "restarted")
    assert found.message == KILLED.message
