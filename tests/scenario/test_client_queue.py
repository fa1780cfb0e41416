"""The queue and the resources of a conversation, used with the Python client."""

from __future__ import annotations

import asyncio

import pytest

from kit.clients.shared_home import Start
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import RequestFailed, ToolFailed
from parley.testing import HOLD, ScriptedModel
from parley.wire.items import text_of


async def test_queued_messages_are_listed_edited_and_removed(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    parley_model.says("Two.")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        first = await conversation.send("first", delivery="queue")
        await parley_model.wait_until_held()
        second = await conversation.send("second", delivery="queue")
        third = await conversation.send("third", delivery="queue")
        await conversation.edit_queued(second.message_id, "the second")
        await conversation.remove_queued(third.message_id)
        listed = await conversation.queue()
        parley_model.release()
        answer = await second.result()
        with pytest.raises(ToolFailed) as too_late:
            await conversation.remove_queued(second.message_id)

    assert (first.is_queued, second.is_queued) == (False, True)
    assert [(one.message_id, text_of(one.content)) for one in listed.messages] == [
        (second.message_id, "the second")
    ]
    assert listed.paused is False
    assert answer.text == "Two."
    assert too_late.value.code == "not_queued"


async def test_a_paused_queue_continues_when_it_is_resumed(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says(HOLD, "One.")
    parley_model.says("Two.")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await conversation.send("first")
        await parley_model.wait_until_held()
        second = await conversation.send("second", delivery="queue")
        await conversation.interrupt()
        while not (listed := await conversation.queue()).paused:
            await conversation.read(after=(await conversation.status()).seq, wait_seconds=1)
        await conversation.resume_queue()

        assert (await second.result()).text == "Two."
    assert [one.message_id for one in listed.messages] == [second.message_id]


async def test_the_text_of_a_resource_is_the_transcript(start: Start, parley_model: ScriptedModel) -> None:
    process = await start()
    conversation = await process.create()
    parley_model.says("Done.")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await (await conversation.send("work")).result()
        transcript = await process.client.read_resource(f"parley://conversations/{conversation.id}")
        with pytest.raises(RequestFailed):
            await process.client.read_resource("parley://nothing")

    assert "> work" in transcript
    assert "> Done." in transcript
