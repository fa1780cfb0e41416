"""Only the lease holder may write to a conversation, and the holder can be found."""

from __future__ import annotations

import asyncio
import os

import pytest

from kit.builders.entries import FIRST, OTHER, everything_in, said, summary
from parley.errors import LeaseLost, OwnedElsewhere
from parley.ports.store import Query, Store


async def test_a_lease_is_taken_once(store: Store) -> None:
    await store.create(FIRST, [], summary())
    await store.acquire(FIRST, address="here")

    with pytest.raises(OwnedElsewhere) as refused:
        await store.acquire(FIRST, address="there")

    assert (refused.value.pid, refused.value.address) == (os.getpid(), "here")


async def test_of_many_processes_one_acquires_the_lease(store: Store) -> None:
    await store.create(FIRST, [], summary())

    got = await asyncio.gather(*(store.acquire(FIRST, address="") for _ in range(10)), return_exceptions=True)

    assert sorted(type(one).__name__ for one in got) == ["Lease"] + ["OwnedElsewhere"] * 9


async def test_the_owner_is_known_while_there_is_one(store: Store) -> None:
    await store.create(FIRST, [], summary())
    before = (await store.head(FIRST)).owner
    lease = await store.acquire(FIRST, address="here")
    during = (await store.head(FIRST)).owner
    listed = (await store.find(Query())).items[0].owned
    await store.release(lease)
    after = (await store.head(FIRST)).owner

    assert (before, after) == (None, None)
    assert during is not None
    assert (during.pid, during.address, listed) == (os.getpid(), "here", True)
    assert not (await store.find(Query())).items[0].owned


async def test_each_lease_has_a_higher_epoch_and_the_last_position(store: Store) -> None:
    await store.create(FIRST, [], summary())
    first = await store.acquire(FIRST, address="")
    await store.append(first, [said(1, "one"), said(2, "two")], summary())
    await store.release(first)
    second = await store.acquire(FIRST, address="")

    assert (first.last, second.last) == (0, 2)
    assert first.epoch < second.epoch == (await store.head(FIRST)).epoch


async def test_a_lease_that_was_given_back_writes_nothing(store: Store) -> None:
    await store.create(FIRST, [], summary())
    old = await store.acquire(FIRST, address="")
    await store.release(old)
    await store.acquire(FIRST, address="")

    with pytest.raises(LeaseLost):
        await store.append(old, [said(1, "late")], summary())
    with pytest.raises(LeaseLost):
        await store.delete(old)
    await store.release(old)

    assert await everything_in(store) == []
    assert (await store.head(FIRST)).owner is not None


async def test_appends_before_the_release_are_written(store: Store) -> None:
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="")
    written = store.append(lease, [said(1, "one")], summary())
    await store.release(lease)
    again = await store.acquire(FIRST, address="")

    await written
    assert again.last == 1


async def has_it(store: Store) -> bool:
    try:
        await store.acquire(FIRST, address="")
    except OwnedElsewhere:
        return False
    return True


async def test_a_cancelled_wait_for_a_lease_does_not_keep_it(store: Store) -> None:
    await store.create(FIRST, [], summary())
    for ticks in range(6):
        waiting = asyncio.ensure_future(store.acquire(FIRST, address=""))
        for _ in range(ticks):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        if not waiting.cancelled():
            await store.release(waiting.result())

    async with asyncio.timeout(90):
        while not await has_it(store):
            pass


async def test_leases_of_different_conversations_do_not_meet(store: Store) -> None:
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary())
    first = await store.acquire(FIRST, address="")
    other = await store.acquire(OTHER, address="")
    await store.release(first)
    await store.append(other, [said(1, "one")], summary())

    assert await everything_in(store, OTHER) == [said(1, "one")]
