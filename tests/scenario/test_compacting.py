"""`conversationCompact`: a summary replaces the history on request of a client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit.clients.shared_home import Start
from kit.system.commands import TIMEOUT_SECONDS
from parley.agent.compaction import INSTRUCTIONS, SUMMARY_PREFIX
from parley.client import Conversation, ToolFailed, TurnFailed
from parley.testing import HOLD, ScriptedModel
from parley.wire.events import (
    AgentMessage,
    AgentMessageDelta,
    BackgroundEvent,
    ErrorEvent,
    TaskComplete,
    TaskStarted,
    UserMessage,
)

SUMMARY = f"{SUMMARY_PREFIX}In short."


async def finished(conversation: Conversation, *, after: int = 0) -> list[Any]:
    """Wait until no turn is running, and return the events after a position."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (page := await conversation.read(after=after)).state != "idle":
            await conversation.read(after=page.seq, wait_seconds=1)
    return [event.msg for event in page.events]


async def say(conversation: Conversation, model: ScriptedModel, question: str, answer: str) -> str:
    """Run a turn, and return the id of its message."""
    model.says(answer)
    turn = await conversation.send(question)
    await turn.result()
    return turn.message_id


def sent(model: ScriptedModel) -> list[tuple[str, Any]]:
    """Return the messages of the last request, without the messages that Parley adds at the beginning."""
    messages = [(one["role"], one.get("content")) for one in model.requests[-1].body["messages"]]
    return [(role, text) for role, text in messages if role != "system" and not str(text).startswith("<")]


@pytest.mark.promises("compact.result")
async def test_a_summary_replaces_the_history_and_the_conversation_goes_on(
    start: Start, parley_model: ScriptedModel
) -> None:
    process = await start()
    conversation = await process.create()
    first = await say(conversation, parley_model, "one", "First.")
    before = (await conversation.status()).seq
    parley_model.says("In ", "short.")
    await conversation.compact()
    events = await finished(conversation, after=before)
    asked = parley_model.requests[-1].body["messages"]
    await say(conversation, parley_model, "two", "Second.")
    after = sent(parley_model)
    parley_model.says("Again.")
    await (await conversation.send("instead", parent_message_id=first)).result()

    assert [type(one) for one in events] == [TaskStarted, BackgroundEvent, TaskComplete]
    assert events[1].message.startswith("Context compacted: ")
    assert events[2].last_agent_message is None
    assert [one["content"] for one in asked] == [INSTRUCTIONS, "<record>\nUSER: one\n\nAGENT: First.\n</record>"]
    assert after == [("user", SUMMARY), ("user", "two")]
    # A branch at an earlier message still has the whole history.
    assert sent(parley_model) == [("user", "one"), ("assistant", "First."), ("user", "instead")]


@pytest.mark.promises("compact.failure")
async def test_a_running_turn_and_a_history_without_messages_are_not_compacted(
    start: Start, parley_model: ScriptedModel
) -> None:
    process = await start()
    conversation = await process.create()
    with pytest.raises(ToolFailed, match="Nothing to compact") as empty:
        await conversation.compact()
    parley_model.says(HOLD, "Done.")
    turn = await conversation.send("go")
    await parley_model.wait_until_held()
    with pytest.raises(ToolFailed, match="A turn is running"):
        await conversation.compact()
    parley_model.release()
    await turn.result()
    parley_model.says("In short.")
    await conversation.compact()
    await finished(conversation)
    before = await conversation.read()
    with pytest.raises(ToolFailed, match="Nothing to compact"):
        await conversation.compact()

    assert empty.value.code == "nothing_to_compact"
    assert await conversation.read() == before


@pytest.mark.promises("compact.unchanged")
@pytest.mark.parametrize("how", ["refused", "empty", "interrupted"])
async def test_without_a_summary_the_turn_fails_and_the_history_is_unchanged(
    start: Start, parley_model: ScriptedModel, how: str
) -> None:
    process = await start()
    conversation = await process.create()
    await say(conversation, parley_model, "one", "First.")
    before = (await conversation.status()).seq
    if how == "refused":
        parley_model.fails(400, body="no")
    elif how == "empty":
        parley_model.says("")
    else:
        parley_model.says("In ", HOLD, "short.")
    await conversation.compact()
    if how == "interrupted":
        await parley_model.wait_until_held()
        await conversation.interrupt()
    events = await finished(conversation, after=before)
    with pytest.raises(ToolFailed, match="Nothing to continue"):  # the last message was answered
        await conversation.continue_turn()
    await say(conversation, parley_model, "two", "Second.")

    (error,) = [one for one in events if isinstance(one, ErrorEvent)]
    codes = {"refused": "unexpected_status", "empty": "no_summary"}
    assert (error.code or None, error.reason) == ((codes[how], "failed") if how in codes else (None, "interrupted"))
    assert sent(parley_model) == [("user", "one"), ("assistant", "First."), ("user", "two")]


@pytest.mark.promises("compact.result")
async def test_a_failed_turn_can_be_continued_after_a_compaction(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    await say(conversation, parley_model, "one", "First.")
    parley_model.fails(400, body="no")
    with pytest.raises(TurnFailed):
        await (await conversation.send("two")).result()
    parley_model.says("In short.")
    await conversation.compact()
    await finished(conversation)
    parley_model.says("Second.")
    await conversation.continue_turn()
    events = await finished(conversation)

    assert sent(parley_model) == [("user", SUMMARY)]
    assert events[-1] == TaskComplete(last_agent_message="Second.")


@pytest.mark.promises("compact.joined")
async def test_a_message_that_joins_is_answered_after_the_summary(
    start: Start, parley_model: ScriptedModel
) -> None:
    process = await start()
    conversation = await process.create()
    await say(conversation, parley_model, "one", "First.")
    before = (await conversation.status()).seq
    parley_model.says("In ", HOLD, "short.")
    parley_model.says("Second.")
    await conversation.compact()
    await parley_model.wait_until_held()
    await conversation.send("two")
    parley_model.release()
    events = await finished(conversation, after=before)

    shown = [one for one in events if not isinstance(one, AgentMessageDelta)]
    assert [type(one) for one in shown] == [TaskStarted, UserMessage, BackgroundEvent, AgentMessage, TaskComplete]
    assert sent(parley_model) == [("user", SUMMARY), ("user", "two")]


@pytest.mark.child_process
@pytest.mark.promises("compact.unchanged", "compact.failure")
async def test_a_compaction_whose_process_is_killed_changes_nothing_and_can_be_repeated(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    await say(here, parley_model, "one", "First.")
    parley_model.says("In ", HOLD, "short.")
    await here.compact()
    await parley_model.wait_until_held()
    with pytest.raises(ToolFailed, match="A turn is running"):
        await there.compact()
    one.kill()
    await one.exit_code()
    killed = await finished(there)
    parley_model.says("In short.")
    await there.compact()
    events = await finished(there)
    await say(there, parley_model, "two", "Second.")

    assert isinstance(killed[-1], ErrorEvent)
    assert killed[-1].reason == "restarted"
    assert isinstance(events[-1], TaskComplete)
    assert sent(parley_model) == [("user", SUMMARY), ("user", "two")]


@pytest.mark.promises("compact.limits")
async def test_a_conversation_at_its_limit_is_not_compacted(start: Start, parley_model: ScriptedModel) -> None:
    process = await start(config="[limits]\nconversation_tokens = 10\n\n[approvals]\ntimeout_seconds = 1\n")
    conversation = await process.create()
    await say(conversation, parley_model, "one", "First.")
    requests = len(parley_model.requests)
    await conversation.compact()
    events = await finished(conversation)

    assert [one.code for one in events if isinstance(one, ErrorEvent)] == ["limit_reached"]
    assert len(parley_model.requests) == requests


async def test_a_history_that_is_too_long_for_a_summary_is_shortened(
    start: Start, parley_model: ScriptedModel
) -> None:
    process = await start()
    conversation = await process.create()
    await say(conversation, parley_model, "one", "First. " * 2000)
    parley_model.fails(400, body="context_length_exceeded")
    parley_model.says("In short.")
    await conversation.compact()
    await finished(conversation)
    first, second = (request.body["messages"][-1]["content"] for request in parley_model.requests[-2:])
    await say(conversation, parley_model, "two", "Second.")

    assert "characters left out" in second
    assert len(second) < len(first)
    assert sent(parley_model) == [("user", SUMMARY), ("user", "two")]
