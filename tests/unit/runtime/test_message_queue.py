"""Queued messages, and the processes that begin their turns (`parley.runtime.queue_commands`)."""

from __future__ import annotations

import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.events import task_started, user_message
from kit.builders.logs import log_of
from kit.builders.records import message_queued, settings_chosen, turn_ended, turn_started
from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from parley.conversation.log import LogPayload
from parley.conversation.state import Phase
from parley.runtime.conversation import Conversation
from parley.runtime.errors import QueueFull
from parley.runtime.message_queue import MAX_QUEUED
from parley.runtime.queue_commands import BeginQueued
from parley.wire.events import ErrorEvent, EventMsg, UnknownEvent, UserMessage, decode_event
from parley.wire.items import text_of
from parley.wire.principals import LOCAL


async def stored(home: str, *after: LogPayload) -> SlowStore:
    """Return a store with a conversation whose first turn queued messages and ended for the reason `after`."""
    store = SlowStore()
    begun = (turn_started("1"), task_started(), user_message("say One", message_id="first"))
    log = log_of(settings_chosen(cwd=home), *begun, *after)
    await store.create(FIRST, log.entries, summary())
    return store


def events_of(conversation: Conversation) -> list[EventMsg | UnknownEvent]:
    return [decode_event(entry.encoded) for entry in conversation.log.entries if entry.is_event]


@pytest.mark.promises("queue.durable")
async def test_a_resident_server_that_loads_the_conversation_begins_the_next_turn(home: str) -> None:
    queued = message_queued("a", "say Two"), message_queued("b", "say Three")
    store = await stored(home, *queued, turn_ended())
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)
        await life.until_at_rest(conversation)
        said = [text_of(one.content) for one in events_of(conversation) if isinstance(one, UserMessage)]

        assert said == ["say One", "say Two", "say Three"]
        assert await conversation.queued() == []


@pytest.mark.promises("queue.durable")
async def test_a_process_that_only_reads_does_not_begin_turns(home: str) -> None:
    """The process may be a command that ends at once, and would interrupt the turn."""
    store = await stored(home, message_queued("a", "say Two"), turn_ended())
    async with Life(home, store) as life:
        conversation = await life.find(FIRST)
        await life.until_at_rest(conversation)
        await conversation.interrupt_unfinished(principal=LOCAL)
        await conversation.rename("Read")
        await life.until_at_rest(conversation)
        waiting = [one.message_id for one in await conversation.queued()]
        before = [text_of(one.content) for one in events_of(conversation) if isinstance(one, UserMessage)]
        await conversation.resume_queue(principal=LOCAL)
        await life.until_at_rest(conversation)
        after = [text_of(one.content) for one in events_of(conversation) if isinstance(one, UserMessage)]

    assert (waiting, before, after) == (["a"], ["say One"], ["say One", "say Two"])


@pytest.mark.promises("queue.pause")
async def test_a_message_that_cannot_begin_pauses_the_queue(home: str) -> None:
    store = await stored(home, message_queued("a", "say Two", profile="unknown"), turn_ended())
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)
        await life.until_at_rest(conversation)
        shown = [one for one in events_of(conversation) if isinstance(one, ErrorEvent)]

        assert [one.code for one in shown] == ["profile_not_found"]
        assert shown[0].message == "A queued message could not begin its turn: config profile `unknown` not found"
        assert [one.message_id for one in await conversation.queued()] == ["a"]
        assert (conversation.is_queue_paused, conversation.phase) == (True, Phase.IDLE)


@pytest.mark.promises("queue.pause")
async def test_a_turn_that_was_killed_pauses_the_queue(home: str) -> None:
    store = await stored(home, message_queued("a", "say Two"))
    async with Life(home, store) as life:
        conversation = await life.find(FIRST)
        await life.until_at_rest(conversation)
        paused = conversation.is_queue_paused
        await conversation.resume_queue(principal=LOCAL)
        await life.until_at_rest(conversation)

        assert paused
        assert [one.message_id for one in events_of(conversation) if isinstance(one, UserMessage)] == ["first", "a"]


@pytest.mark.promises("queue.limit")
async def test_a_full_queue_takes_no_more_messages(home: str) -> None:
    many = (message_queued(f"m{number}") for number in range(MAX_QUEUED))
    store = await stored(home, *many, turn_ended("failed"))
    async with Life(home, store) as life:
        conversation = await life.find(FIRST)
        with pytest.raises(QueueFull, match="100 messages wait"):
            await conversation.submit(
                user_message("one more").content, queued=True, principal=LOCAL, accepted=lambda accepted: None
            )

        assert conversation.is_queue_paused


def test_a_turn_from_the_queue_waits_for_the_end_of_the_one_before() -> None:
    assert BeginQueued.starts_turn
