"""Polling for entries of other processes that sent no notification."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kit.servers.lives import Life
from kit.servers.orphaned_turns import pass_time
from kit.servers.remote_owner import Owner
from kit.servers.slow_store import SlowStore
from parley.conversation.state import Phase
from parley.ports.store import Head
from parley.runtime.conversation import Conversation
from parley.wire.ids import ConversationId, Seq

MANY = 300


class CountingStore(SlowStore):
    """A store that counts queries for new entries."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[int] = []
        """The number of conversations in each request."""
        self.heads = 0

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        self.asked_for.append(len(ends))
        return await super().changed_since(ends)

    async def head(self, conversation_id: ConversationId) -> Head:
        self.heads += 1
        return await super().head(conversation_id)


async def watch(conversation: Conversation) -> asyncio.Task[None]:
    """Wait for the next entry, like a client that reads."""
    task = asyncio.create_task(conversation.wait_beyond(conversation.log.durable))
    await asyncio.sleep(0)
    return task


async def test_one_query_a_second_covers_all_watched_conversations(home: str) -> None:
    store = CountingStore()
    async with Life(home, store, peers=Owner("")) as life:
        tasks = [await watch(await life.create()) for _ in range(MANY)]
        await pass_time(life, 10)

        assert store.asked_for == [MANY] * 10
        assert store.heads == 0
    await asyncio.gather(*tasks)


async def test_entries_of_another_process_are_read_within_a_second_without_a_notification(home: str) -> None:
    store = CountingStore()
    async with Life(home, store, peers=Owner("")) as life, Life(home, store) as other:
        conversation, idle = await life.create(), await life.create()
        waiting, idling = await watch(conversation), await watch(idle)
        await pass_time(life, 2)  # no process has written for some time
        there = await other.find(conversation.id)
        await other.send(there, "say Hello")
        await other.until(there, Phase.IDLE)
        await pass_time(life, 1)

        await asyncio.wait_for(waiting, 60)
        assert not idling.done()
    await idling


async def test_a_newly_watched_conversation_is_polled_with_the_others(home: str) -> None:
    store = CountingStore()
    async with Life(home, store, peers=Owner("")) as life:
        first = await watch(await life.create())
        await pass_time(life, 2)
        second = await watch(await life.create())
        await pass_time(life, 1)

        assert store.asked_for == [1, 1, 2]
    await asyncio.gather(first, second)


async def test_polling_stops_when_no_conversation_is_watched(home: str) -> None:
    store = CountingStore()
    async with Life(home, store, peers=Owner("")) as life:
        waiting = await watch(await life.create())
        await pass_time(life, 2)
        waiting.cancel()
        await pass_time(life, 10)
        asked = len(store.asked_for)
        await pass_time(life, 10)

        assert len(store.asked_for) == asked


class FaultyStore(CountingStore):
    """A store whose first query for new entries fails with a bug."""

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        news = await super().changed_since(ends)
        if len(self.asked_for) == 1:
            raise RuntimeError("a bug")
        return news


async def test_polling_begins_again_after_an_unexpected_error(home: str) -> None:
    store = FaultyStore()
    async with Life(home, store, peers=Owner("")) as life:
        waiting = await watch(await life.create())
        await pass_time(life, 1)
        assert store.asked_for == [1]
        await pass_time(life, 10)
        await pass_time(life, 2)

        assert len(store.asked_for) > 1
    await waiting


async def test_a_change_is_announced_once_by_its_own_process_and_once_to_others(home: str) -> None:
    store = SlowStore()
    async with Life(home, store, peers=Owner("")) as life, Life(home, store, peers=Owner("")) as other:
        conversation = await life.create()
        notified: dict[str, list[ConversationId]] = {"own": [], "other": []}
        await life.conversations.watch("own", lambda one, changes_list, read_by: notified["own"].append(one))
        await other.conversations.watch("other", lambda one, changes_list, read_by: notified["other"].append(one))
        await pass_time(life, 3)
        await conversation.rename("New")
        await pass_time(life, 3)
        await pass_time(other, 3)

        assert notified == {"own": [conversation.id], "other": [conversation.id]}
