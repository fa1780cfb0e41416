"""`conversationContinue`: a turn without a message, after a turn that was interrupted or failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit.clients.shared_home import Start
from kit.clients.shell_turns import sh
from kit.clients.wire_client import speaking
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import Conversation, ToolFailed, TurnFailed
from parley.testing import HOLD, ScriptedModel
from parley.wire.events import ErrorEvent, TaskComplete, TaskStarted, UserMessage
from parley.wire.mcp import PLAIN_VERSION


async def finished(conversation: Conversation) -> list[object]:
    """Wait until no turn is running, and return the events of the conversation."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (page := await conversation.read()).state != "idle":
            await conversation.read(after=page.seq, wait_seconds=1)
    return [event.msg for event in page.events]


def sent(model: ScriptedModel) -> list[tuple[str, Any]]:
    """Return the messages of the last request, without the messages that Parley adds at the beginning."""
    messages = [(one["role"], one.get("content")) for one in model.requests[-1].body["messages"]]
    return [(role, text) for role, text in messages if role != "system" and not str(text).startswith("<")]


@pytest.mark.promises("continue.result")
async def test_an_interrupted_turn_goes_on_without_a_message(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says("Half of it", HOLD, "never said")
    await conversation.send("go")
    await parley_model.wait_until_held()
    await conversation.interrupt()
    await finished(conversation)
    parley_model.says("All of it.")
    await conversation.continue_turn()
    events = await finished(conversation)

    after = events[[type(one) for one in events].index(ErrorEvent) + 1 :]
    assert sent(parley_model) == [("user", "go")]
    assert isinstance(after[0], TaskStarted)
    assert not any(isinstance(one, UserMessage) for one in after)
    assert after[-1] == TaskComplete(last_agent_message="All of it.")


@pytest.mark.promises("continue.result")
async def test_calls_that_were_cut_short_are_not_repeated(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says("I count. ", sh("c1", "echo run >> runs; sleep 600"))
    await conversation.send("go")
    runs = process.work / "runs"
    await until(lambda: runs.exists() and runs.read_text() != "")
    await conversation.interrupt()
    await finished(conversation)
    parley_model.says("Done.")
    await conversation.continue_turn()
    await finished(conversation)

    roles = [role for role, _ in sent(parley_model)]
    assert roles == ["user", "assistant", "tool"]
    assert runs.read_text() == "run\n"


@pytest.mark.promises("continue.result")
async def test_a_failed_turn_goes_on(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.fails(400)
    with pytest.raises(TurnFailed):
        await (await conversation.send("go")).result()
    parley_model.says("Done.")
    await conversation.continue_turn()
    events = await finished(conversation)

    assert sent(parley_model) == [("user", "go")]
    assert events[-1] == TaskComplete(last_agent_message="Done.")


@pytest.mark.promises("continue.failure")
async def test_a_running_or_complete_turn_is_not_continued(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    with pytest.raises(ToolFailed, match="Nothing to continue"):
        await conversation.continue_turn()
    parley_model.says(HOLD, "Done.")
    turn = await conversation.send("go")
    await parley_model.wait_until_held()
    with pytest.raises(ToolFailed, match="A turn is running"):
        await conversation.continue_turn()
    parley_model.release()
    await turn.result()
    before = await conversation.read()
    with pytest.raises(ToolFailed, match="Nothing to continue"):
        await conversation.continue_turn()

    assert await conversation.read() == before


@pytest.mark.child_process
@pytest.mark.promises("continue.result", "continue.failure")
async def test_another_process_continues_a_turn_whose_process_was_killed(
    start: Start, parley_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    parley_model.says(HOLD, "never said")
    await here.send("go")
    await parley_model.wait_until_held()
    with pytest.raises(ToolFailed, match="A turn is running"):
        await there.continue_turn()
    one.kill()
    await one.exit_code()
    await finished(there)
    parley_model.says("Done.")
    await there.continue_turn()

    assert (await finished(there))[-1] == TaskComplete(last_agent_message="Done.")


async def test_clients_without_our_additions_do_not_know_it(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=PLAIN_VERSION) as client:
        conversation = await client.create()
        request = client.call("conversationContinue", conversation_id=conversation)
        unknown = client.call("conversationContinued", conversation_id=conversation)
        answers = {(one := await client.read())["id"]: one["result"] for _ in range(2)}

    texts = [answers[number]["content"][0]["text"] for number in (request, unknown)]
    assert texts[0].replace("conversationContinue", "conversationContinued") == texts[1]
