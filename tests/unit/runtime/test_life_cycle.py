"""Titles, deletion and interrupts, including cases in which they cannot be stored."""

from __future__ import annotations

import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import last, leave_asking, leave_running, pass_time, types
from kit.servers.slow_store import SlowStore
from parley.conversation.state import Phase
from parley.errors import UnknownConversation
from parley.ports.store import Query
from parley.runtime.errors import TurnIsRunning
from parley.wire.principals import LOCAL


async def test_a_title_that_was_given_is_kept(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create()
        await left.rename("Foxes")
        await first.send(left, "say Hello")
        await first.until(left, Phase.IDLE)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        assert found.state.title == "Foxes"
        await found.rename("Hares")
        [listed] = (await second.conversations.page(Query())).items
        assert (found.state.title, listed.summary.title) == ("Hares", "Hares")


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ASKING])
async def test_a_conversation_with_an_unfinished_turn_cannot_be_deleted(home: str, phase: Phase) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await (leave_running if phase is Phase.RUNNING else leave_asking)(life)
        before = list(conversation.log.entries)
        with pytest.raises(TurnIsRunning):
            await life.conversations.delete(conversation.id)
        assert (conversation.state.phase, conversation.log.entries) == (phase, before)

        conversation.interrupt(principal=LOCAL)
        await life.until(conversation, Phase.IDLE)
        await life.conversations.delete(conversation.id)
        with pytest.raises(UnknownConversation):
            await life.find(conversation.id)
        assert (await life.conversations.page(Query())).items == ()


async def test_an_interrupt_that_cannot_be_written_ends_the_turn_when_there_is_room_again(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await leave_asking(life)
        store.slow = True
        conversation.interrupt(principal=LOCAL)
        for _ in range(3):  # the settlement, both again, the end
            await store.until_waiting()
            await store.fail()
        store.slow = False
        await pass_time(life, 3)
        await life.until(conversation, Phase.IDLE)

        assert last(conversation, "turn_ended")["why"] == "interrupted"
        assert types(conversation, "question_settled", "turn_ended") == ["question_settled", "turn_ended"]
