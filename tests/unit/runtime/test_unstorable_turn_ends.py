"""Turns whose end cannot be stored: the disk is full, or the server shuts down."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import leave_asking, open_approval_id, pass_time, settle, types
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.errors import ShuttingDown, StoreFailed
from parley.runtime.conversation import Conversation
from parley.wire.ids import MessageId
from parley.wire.items import TextItem
from parley.wire.principals import LOCAL

ENDS = ("turn_started", "user_message", "turn_ended")


async def test_a_message_after_a_turn_whose_end_is_not_stored_begins_the_next(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await life.create()
        store.slow = True
        first = asyncio.create_task(life.send(conversation, "say One"))
        await store.until_waiting()
        await store.write()
        await first
        for _ in range(2):  # the model's message, and the end of the turn
            await store.until_waiting()
            await store.fail()

        refused = asyncio.create_task(life.send(conversation, "say Two"))
        await store.until_waiting()
        await store.fail()
        with pytest.raises(StoreFailed):
            await refused
        store.slow = False
        await life.send(conversation, "say Two")
        await life.until(conversation, Phase.IDLE)
        life.clock.passes(10)
        await asyncio.sleep(0)

        assert types(conversation, *ENDS) == list(ENDS) * 2
        assert len(life.requests) == 2


async def begin_ending(life: Life, store: SlowStore) -> Conversation:
    """Create a conversation, and run its turn until the store is about to write the end."""
    conversation = await life.create()
    store.slow = True
    first = asyncio.create_task(life.send(conversation, "say One"))
    await store.until_waiting()
    await store.write()
    await first
    await store.until_waiting()
    while "turn_ended" not in store.waiting[0]:
        await store.write()
        await store.until_waiting()
    return conversation


async def run_ready_tasks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


Begin = Callable[[Life, Conversation], Awaitable[object]]


async def queue(life: Life, conversation: Conversation) -> None:
    await conversation.submit(
        (TextItem(text="say Two"),), queued=True, principal=LOCAL, accepted=lambda accepted: None
    )


async def edit_first(life: Life, conversation: Conversation) -> None:
    await conversation.submit(
        (TextItem(text="say Two"),),
        parent_id=MessageId(conversation.id),
        principal=LOCAL,
        accepted=lambda accepted: None,
    )


async def send(life: Life, conversation: Conversation) -> None:
    await life.send(conversation, "say Two")


@pytest.mark.parametrize("begin", [send, queue, edit_first])
async def test_a_message_waits_until_the_end_of_the_turn_is_stored(home: str, begin: Begin) -> None:
    store = SlowStore()
    async with Life(home, store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await begin_ending(life, store)
        second = asyncio.ensure_future(begin(life, conversation))
        await run_ready_tasks()
        waiting = store.waiting
        await store.fail()  # the end of the turn
        await store.until_waiting()
        again = store.waiting
        store.slow = False
        await store.write()
        await second
        await life.until(conversation, Phase.IDLE)
        life.clock.passes(10)
        await life.until_at_rest(conversation)

        assert (len(waiting), waiting[0][-1]) == (1, "turn_ended")
        assert (len(again), again[0][-1]) == (1, "turn_ended")
        assert types(conversation, *ENDS) == list(ENDS) * 2
        assert len(life.requests) == 2


@pytest.mark.parametrize("begin", [send, queue, edit_first])
async def test_a_message_whose_turn_cannot_begin_fails_and_the_earlier_turn_ends_once(
    home: str, begin: Begin
) -> None:
    store = SlowStore()
    async with Life(home, store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await begin_ending(life, store)
        second = asyncio.ensure_future(begin(life, conversation))
        await run_ready_tasks()
        while not second.done():
            await store.until_waiting()
            await store.fail()
            await run_ready_tasks()
        with pytest.raises(StoreFailed):
            await second
        before = types(conversation, *ENDS)
        store.slow = False
        life.clock.passes(1)
        await life.until(conversation, Phase.IDLE)
        await send(life, conversation)
        await life.until(conversation, Phase.IDLE)
        life.clock.passes(10)
        await life.until_at_rest(conversation)

        assert before == ["turn_started", "user_message"]
        assert types(conversation, *ENDS) == list(ENDS) * 2


async def test_a_continued_turn_waits_until_the_end_of_the_turn_before_is_stored(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await begin_ending(life, store)
        continued = asyncio.create_task(conversation.continue_turn(principal=LOCAL, began=lambda turn: None))
        await run_ready_tasks()
        await store.fail()  # the end of the turn, which then ends as failed
        await store.until_waiting()
        store.slow = False
        await store.write()
        await continued
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)

        assert types(conversation, *ENDS) == [*ENDS, "turn_started", "turn_ended"]


async def test_an_end_that_a_message_stores_is_stored_again_if_that_fails(home: str) -> None:
    """The turn tries to store its end while the same attempt of a message is pending."""
    store = SlowStore()
    async with Life(home, store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await begin_ending(life, store)
        await store.fail()
        await store.until_waiting()
        await store.fail()
        second = asyncio.create_task(life.send(conversation, "say Two"))
        await store.until_waiting()
        life.clock.passes(1)
        await run_ready_tasks()
        await store.fail()
        with pytest.raises(StoreFailed):
            await second
        store.slow = False
        for _ in range(3):
            life.clock.passes(1)
            await run_ready_tasks()
            while store.waiting:
                await store.write()
        await life.until(conversation, Phase.IDLE)
        await life.send(conversation, "say Two")
        await life.until(conversation, Phase.IDLE)

        assert types(conversation, *ENDS) == list(ENDS) * 2


@pytest.mark.parametrize("what", ["answer", "message", "rename"])
async def test_a_server_that_ends_begins_nothing_with_what_another_has_left(home: str, what: str) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with second:
        left = await leave_asking(first)
        await first.stop()
        found = await second.find(left.id)
        asked = open_approval_id(found)
        await second.conversations.stop()
        doing: Callable[[], Awaitable[object]] = {
            "answer": lambda: settle(found, "approved"),
            "message": lambda: second.send(found, "say Hello"),
            "rename": lambda: found.rename("A title"),
        }[what]
        with pytest.raises(ShuttingDown):
            await doing()

        assert (open_approval_id(found), second.ran, second.requests) == (asked, [], [])


async def test_session_grants_stay_after_eviction_and_secrets_stay_in_memory(home: str) -> None:
    async with Life(home, SlowStore(), idle_seconds=60) as life:
        conversation = await life.create()
        await pass_time(life, 61)  # let go, while we still have it
        assert await life.find(conversation.id) is conversation
        await life.send(conversation, "run a")
        await life.until(conversation, Phase.ASKING)
        await settle(conversation, "approved_for_session")
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)
        conversation_id = conversation.id
        del conversation
        await pass_time(life, 61)
        gc.collect()
        back = await life.find(conversation_id)
        await life.send(back, "run a")
        await life.until(back, Phase.IDLE)

        assert life.ran == ["a", "a"]
