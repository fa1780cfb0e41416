"""Turns whose end cannot be stored: the disk is full, or the server shuts down."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import leave_asking, open_approval_id, pass_time, settle, types
from kit.servers.slow_store import SlowStore
from kit.system.commands import PATIENCE_SECONDS
from parley.conversation.state import Phase
from parley.errors import ShuttingDown, StoreFailed

ENDS = ("turn_started", "user_message", "turn_ended")


async def test_a_message_after_a_turn_whose_end_is_not_stored_begins_the_next(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life, asyncio.timeout(PATIENCE_SECONDS):
        conversation = await life.create()
        store.slow = True
        first = asyncio.create_task(life.send(conversation, "say One"))
        await store.until_waiting()
        await store.write()
        await first
        for _ in range(2):  # what the model said, and how the turn ends
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
