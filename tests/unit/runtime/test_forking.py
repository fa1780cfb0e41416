"""A fork has all entries of its source and the current title, and blocks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.logs import log_of
from kit.builders.records import renamed, settings_chosen
from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from parley.conversation.state import Phase
from parley.errors import ShuttingDown
from parley.ports.store import Draft, Query
from parley.wire.ids import MessageId

ENTRIES = 20_000


class CallsWhileWriting(SlowStore):
    """A store that calls a function while the first page of a draft is written."""

    def __init__(self, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._happens = happens

    async def draft(self) -> Draft:
        await self._happens()
        return await super().draft()


@pytest.mark.promises("fork.result")
@pytest.mark.parametrize("at", [None, "a", "b"])
async def test_a_title_that_was_given_after_the_last_turn_is_that_of_the_fork(home: str, at: str | None) -> None:
    async with Life(home, SlowStore()) as life:
        source = await life.create()
        for message_id in ("a", "b"):
            await life.send(source, "say Hello", message_id=message_id)
            await life.until(source, Phase.IDLE)
        await source.rename("Foxes")
        forked = await life.conversations.fork(source.id, at=None if at is None else MessageId(at))
        found = await life.find(forked)
        listed = {one.conversation_id: one.summary.title for one in (await life.conversations.page(Query())).items}

    assert (found.state.title, listed[forked]) == ("Foxes", "Foxes")
    assert list(found.state.messages) == (["a"] if at == "a" else ["a", "b"])


async def test_others_are_served_while_a_long_conversation_is_forked(home: str) -> None:
    store = SlowStore()
    titles = (renamed(f"{number}") for number in range(ENTRIES))
    await store.create(FIRST, log_of(settings_chosen(), *titles).entries, summary())
    async with Life(home, store) as life:
        await life.find(FIRST)
        forking = asyncio.create_task(life.conversations.fork(FIRST, at=None))
        served = 0
        while not forking.done():
            await asyncio.sleep(0)
            served += 1
        forked = await life.find(forking.result())

    assert (forked.log.last, forked.state.title) == (ENTRIES + 1, f"{ENTRIES - 1}")
    assert served > 10


async def test_a_server_that_ends_gives_up_a_fork_and_keeps_nothing_of_it(home: str) -> None:
    store = CallsWhileWriting(lambda: life.conversations.stop())
    titles = (renamed(f"{number}") for number in range(ENTRIES))
    await store.create(FIRST, log_of(settings_chosen(), *titles).entries, summary())
    async with Life(home, store) as life:
        with pytest.raises(ShuttingDown):
            await life.conversations.fork(FIRST, at=None)

        assert [one.conversation_id for one in (await store.find(Query())).items] == [FIRST]
