"""Another program holds the write lock of the home: reads succeed, and the errors of writes name the holder."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kit.clients.shared_home import Start, events_until, is_, log_of, said, shared
from kit.servers.lock_holders import held_by_child, held_by_flock
from kit.servers.store_process import StoreProcess
from parley.client import Conversation, ToolFailed
from parley.ports.store import CALL_SECONDS, TURN_SECONDS
from parley.testing import HOLD, ParleyProcess, ScriptedModel
from parley.wire.events import AgentMessageDelta, ErrorEvent, TaskComplete, UserMessage
from parley.wire.ids import ConversationId

pytestmark = [pytest.mark.child_process, pytest.mark.waits]

MESSAGE = "11111111-0000-4000-8000-000000000000"
LONGER_SECONDS = 60
"""The time in seconds for which a turn waits for the lock.

A call that fails earlier has not waited as long as a turn.
"""


async def turn(conversation: Conversation, text: str) -> None:
    async with conversation.stream() as stream:
        await conversation.send(text)
        await stream.turn()


def lasting(parley: ParleyProcess, conversation: Conversation) -> list[Any]:
    """Return calls that write to the store."""
    return [
        conversation.send("never", message_id=MESSAGE),
        conversation.send("never either"),
        conversation.rename("Never"),
        conversation.archive(),
        conversation.fork(),
        conversation.delete(),
        parley.create(),
    ]


@pytest.mark.promises("keeping.write-lock")
async def test_calls_that_write_fail_with_the_name_of_the_holder_and_are_not_done_later(
    start: Start, parley_model: ScriptedModel
) -> None:
    parley = await start()
    conversation = await parley.create()
    parley_model.says("Hello")
    await turn(conversation, "hi")
    before = await log_of(conversation)
    with held_by_flock(parley.home) as held:
        began = time.monotonic()
        failed = await asyncio.gather(*lasting(parley, conversation), return_exceptions=True)
        took = time.monotonic() - began
        read = await log_of(conversation)
        held.release()
        parley_model.says("Here again")
        await turn(conversation, "are you there?")
    listed = (await parley.client.list()).conversations
    log = await log_of(conversation)

    named = f"conversations cannot be read or stored: process {held.holder} (flock, running since "
    assert [(type(one), str(one).partition(": ")[2].startswith(named)) for one in failed] == [
        (ToolFailed, True)
    ] * len(failed)
    assert CALL_SECONDS <= took < LONGER_SECONDS
    assert read == before
    assert [(one.conversation_id, one.title) for one in listed] == [(conversation.id, "hi")]
    assert said(log) == ["hi", "are you there?"]


@pytest.mark.promises("keeping.write-lock")
@pytest.mark.parametrize("others", ["open", "closed", "killed"])
async def test_a_process_that_starts_meanwhile_reads_lists_and_streams(
    start: Start, parley_model: ScriptedModel, others: str
) -> None:
    one = await start()
    conversation = await one.create()
    parley_model.says("Hello")
    await turn(conversation, "hi")
    before = await log_of(conversation)
    if others == "killed":
        one.kill()
        await one.exit_code()
    elif others == "closed":
        one.close_stdin()
        await one.exit_code()
    with held_by_flock(one.home) as held:
        two = await start()
        there = two.client.conversation(conversation.id)
        began = time.monotonic()
        listed = [each.conversation_id for each in (await two.client.list()).conversations]
        read = await log_of(there)
        status = await there.status()
        async with there.stream() as stream:
            took = time.monotonic() - began
            with pytest.raises(ToolFailed, match=f"process {held.holder} .flock"):
                await there.send("never")
            held.release()
            parley_model.says("Here again")
            await there.send("are you there?")
            await stream.turn()  # the events before the lock was held
            events = await stream.turn()

    assert (listed, read, status.state) == ([conversation.id], before, "idle")
    assert took < LONGER_SECONDS
    assert said(events) == ["are you there?"]
    assert said(await log_of(there)) == ["hi", "are you there?"]


async def test_where_the_log_has_to_be_recovered_first_reading_fails_with_the_name_of_the_holder(
    start: Start, parley_model: ScriptedModel
) -> None:
    one = await start()
    await one.create()
    one.kill()
    await one.exit_code()
    (one.home / "parley.db-shm").unlink()
    with held_by_flock(one.home) as held:
        two = await start()
        with pytest.raises(ToolFailed, match=f"cannot be read before it is recovered, and process {held.holder} "):
            await two.client.list()
        held.release()
        listed = (await two.client.list()).conversations

    assert len(listed) == 1


async def test_a_turn_waits_for_the_lock_longer_than_a_call_and_continues(
    start: Start, parley_model: ScriptedModel
) -> None:
    parley = await start()
    conversation = await parley.create()
    parley_model.says("Half ", HOLD, "a sentence")
    async with conversation.stream() as stream:
        await conversation.send("go")
        await parley_model.wait_until_held()
        await events_until(stream, is_(AgentMessageDelta))
        with held_by_flock(parley.home) as held:
            parley_model.release()
            with pytest.raises(ToolFailed, match="holds the write lock of the home; nothing was changed"):
                await conversation.send("never", message_id=MESSAGE)
            held.release()
            events = await events_until(stream, is_(TaskComplete))

    assert events[-1] == TaskComplete(last_agent_message="Half a sentence")
    assert [event for event in events if isinstance(event, UserMessage)] == []


@pytest.mark.long
@pytest.mark.promises("keeping.write-lock")
async def test_a_turn_that_cannot_write_for_a_minute_fails_with_one_sentence(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with ParleyProcess(parley_model, home=tmp_path / "home") as parley, asyncio.timeout(3 * TURN_SECONDS):
        parley_model.says("Half ", HOLD, "a sentence")
        calling = parley.client.codex("go")
        await parley_model.wait_until_held()
        with held_by_flock(parley.home) as held:
            parley_model.release()
            result = await calling
            held.release()
        listed = (await parley.client.list()).conversations[0]
        conversation = parley.client.conversation(listed.conversation_id)
        async with conversation.stream() as stream:
            events = await stream.turn()

    assert isinstance(result.error, str)
    assert f": process {held.holder} (flock, running since " in result.error
    failed = ErrorEvent(message=result.error, reason="failed", code="write_lock_held")
    assert events[-2:] == [failed, TaskComplete(last_agent_message=None)]


async def test_a_holder_that_inherited_the_lock_is_named(start: Start) -> None:
    parley = await start()
    await parley.create()
    with held_by_child(parley.home) as held, pytest.raises(ToolFailed, match=f"process {held.holder} .sh, running"):
        await parley.create()


@pytest.mark.promises("keeping.write-lock")
async def test_a_server_that_was_stopped_in_the_middle_of_a_write_is_named(start: Start, tmp_path: Path) -> None:
    parley = await start()
    conversation = await parley.create()
    with StoreProcess(tmp_path / "home") as child:
        child.ask("create", "22222222-2222-4222-8222-222222222222")
        child.tell("stop_in_a_write", "22222222-2222-4222-8222-222222222222")
        _, status = await asyncio.to_thread(os.waitpid, child.pid, os.WUNTRACED)
        read = await log_of(conversation)
        with pytest.raises(ToolFailed, match=f"process {child.pid} .python"):
            await conversation.rename("Never")
        two = await start()
        seen = await two.client.conversation(conversation.id).status()
        os.kill(child.pid, signal.SIGCONT)
        child.on_notification()
        await conversation.rename("Foxes")
        listed = [one.conversation_id for one in (await parley.client.list()).conversations]

    assert os.WIFSTOPPED(status)
    assert (read, seen.title) == ([], "")
    assert sorted(listed) == sorted([ConversationId("22222222-2222-4222-8222-222222222222"), conversation.id])


async def test_two_processes_that_need_one_conversation_get_the_name_of_the_lock_holder(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, _, here, there = await shared(start)
    parley_model.says("Hello")
    await turn(here, "hi")
    await log_of(there)
    with held_by_flock(one.home) as held:
        sending = [one.send("never") for one in (here, there, here, there)]
        failed = await asyncio.gather(*sending, return_exceptions=True)

    assert [f"process {held.holder} (flock" in str(error) for error in failed] == [True] * 4
    assert said(await log_of(there)) == ["hi"]


@pytest.mark.promises("keeping.write-lock")
def test_the_limits_are_those_of_the_documentation() -> None:
    assert (CALL_SECONDS, TURN_SECONDS) == (5.0, 60.0)
