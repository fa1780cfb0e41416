"""Messages that are sent again, and messages that cannot be accepted."""

from __future__ import annotations

import asyncio

import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import types
from kit.servers.slow_store import SlowStore
from parley.conversation.state import Phase
from parley.errors import StoreFailed
from parley.runtime.errors import MessageIdTaken


async def test_a_message_that_is_sent_again_to_the_next_process_runs_nothing(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create()
        await first.send(left, "say Hello", message_id="a")
        await first.until(left, Phase.IDLE)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        before = found.log.last
        again = await second.send(found, "say Hello", message_id="a")

        assert (again.message_id, again.turn) == ("a", None)
        assert (found.log.last, second.requests) == (before, [])
        with pytest.raises(MessageIdTaken):
            await second.send(found, "say other words", message_id="a")


async def test_a_message_that_is_sent_again_has_its_own_place_also_where_others_speak_of_it(home: str) -> None:
    async with Life(home, SlowStore()) as life:
        conversation = await life.create()
        sent = {"a": "say Hello", "say Hello": "say And?"}
        for message_id, words in sent.items():
            await life.send(conversation, words, message_id=message_id)
            await life.until(conversation, Phase.IDLE)

        again = [await life.send(conversation, words, message_id=message_id) for message_id, words in sent.items()]

        assert [one.first for one in again] == [
            entry.seq for entry in conversation.log.entries if entry.type == "user_message"
        ]


async def test_a_message_that_could_not_be_written_was_not_sent(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await life.create()
        store.slow = True
        failing = asyncio.create_task(life.send(conversation, "say Hello", message_id="a"))
        await store.until_waiting()
        await store.fail()
        with pytest.raises(StoreFailed):
            await failing
        assert (conversation.state.phase, life.requests) == (Phase.IDLE, [])

        store.slow = False
        taken = await life.send(conversation, "say Hello", message_id="a")
        await life.until(conversation, Phase.IDLE)
        assert taken.turn is not None
        assert types(conversation, "user_message", "turn_ended") == ["user_message", "turn_ended"]
