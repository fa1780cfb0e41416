"""The conversations that are evicted from memory, and the data that stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import leave_asking, leave_running, pass_time, settle
from kit.servers.remote_owner import FollowedTurn
from kit.servers.slow_store import SlowStore
from parley.conversation.state import Phase


async def test_unused_conversations_are_evicted_and_loaded_again(home: str) -> None:
    store = SlowStore()
    async with Life(home, store, idle_seconds=60) as life:
        conversation = await life.create()
        await life.send(conversation, "say Hello")
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)
        await pass_time(life, 59)
        assert list(life.conversations) == [conversation]
        assert life.gave_back == 0

        conversation_id, entries = conversation.id, conversation.log.entries
        del conversation
        await pass_time(life, 61)
        assert list(life.conversations) == []
        assert life.gave_back == 1
        back = await life.find(conversation_id)
        assert back.log.entries == entries
        await life.send(back, "say And?")
        await life.until(back, Phase.IDLE)
        assert len(life.requests[-1].history) == 3


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ASKING])
async def test_conversations_with_an_unfinished_turn_stay_in_memory(home: str, phase: Phase) -> None:
    async with Life(home, SlowStore(), idle_seconds=60) as life:
        conversation = await (leave_running if phase is Phase.RUNNING else leave_asking)(life)
        await pass_time(life, 1_000)

        assert list(life.conversations) == [conversation]


async def test_of_too_many_those_leave_first_that_were_used_least_lately(home: str) -> None:
    async with Life(home, SlowStore(), idle_conversations=2) as life:
        made = [(await life.create()).id for _ in range(4)]
        await life.find(made[0])
        await pass_time(life, 31)

        assert {one.id for one in life.conversations} == {made[3], made[0]}


async def test_a_conversation_in_use_is_the_same_object_after_eviction(home: str) -> None:
    async with Life(home, SlowStore(), idle_conversations=0) as life:
        conversation = await life.create()
        await pass_time(life, 31)

        assert await life.find(conversation.id) is conversation
        assert life.conversations.loaded(conversation.id) is conversation


@pytest.mark.promises("approvals.session-hours")
async def test_an_approval_for_the_session_holds_in_every_process_for_some_hours(home: str) -> None:
    store = SlowStore()
    async with Life(home, store, idle_seconds=60) as first:
        left = await leave_asking(first)
        await settle(left, "approved_for_session")
        await first.until(left, Phase.IDLE)
        await first.until_at_rest(left)
        left_id = left.id
        del left
        await pass_time(first, 61)
        assert list(first.conversations) == []
        back = await first.find(left_id)
        await first.send(back, "run a")
        await first.until(back, Phase.IDLE)
        assert first.ran == ["a", "a"]
        now = first.clock.now()
    async with Life(home, store) as second:
        second.clock.passes(now)
        found = await second.find(left_id)
        await second.send(found, "run a")
        await second.until(found, Phase.IDLE)
        assert second.ran == ["a"]

        second.clock.passes(12 * 3600)
        await second.send(found, "run a")
        await second.until(found, Phase.ASKING)
        assert second.ran == ["a"]


@pytest.mark.promises("approvals.session-hours")
async def test_a_fork_does_not_inherit_it(home: str) -> None:
    async with Life(home, SlowStore()) as life:
        conversation = await leave_asking(life)
        await settle(conversation, "approved_for_session")
        await life.until(conversation, Phase.IDLE)
        fork = await life.find(await life.conversations.fork(conversation.id, at=None))
        await life.send(fork, "run a")
        await life.until(fork, Phase.ASKING)

        assert life.ran == ["a"]


async def test_session_grants_are_deleted_with_their_conversation(home: str) -> None:
    async with Life(home, SlowStore()) as life:
        conversation = await leave_asking(life)
        await settle(conversation, "approved_for_session")
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)
        allowed = weakref.ref(conversation.grants)
        await life.conversations.delete(conversation.id)
        del conversation

        assert allowed() is None


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_a_conversation_that_leaves_memory_is_freed_by_reference_counting(home: str) -> None:
    async with Life(home, SlowStore(), idle_seconds=60) as life:
        conversation = await leave_asking(life)
        await settle(conversation, "approved")
        await life.until(conversation, Phase.IDLE)
        await conversation.rename("Foxes")
        await life.until_at_rest(conversation)
        parts = [weakref.ref(part) for part in (conversation, conversation._mailbox, conversation._log)]
        del conversation
        await pass_time(life, 61)

        assert [part() for part in parts] == [None, None, None]


@pytest.mark.usefixtures("no_collector")
async def test_so_is_one_whose_turn_another_process_ran(home: str) -> None:
    async with FollowedTurn(home, does="run a") as two:
        await settle(two.there, "approved")
        await two.first.until(two.there, Phase.IDLE)
        two.owner.on_lost()
        await two.second.until(two.here, Phase.IDLE)
        await two.second.until_at_rest(two.here)
        gone = weakref.ref(two.here)
        del two.here
        await pass_time(two.second, 1_000)

        assert gone() is None
