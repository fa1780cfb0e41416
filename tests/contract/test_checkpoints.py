"""A checkpoint of the projections is stored beside a log, and never changes the log."""

from __future__ import annotations

import pytest

from kit.builders.entries import FIRST, answers, everything_in, summary
from parley.errors import LeaseLost, UnknownConversation
from parley.ports.store import CHECKPOINT_BYTES, CHECKPOINT_ENTRIES, Checkpoint, Lease, Store
from parley.wire.ids import Seq


def checkpoint(seq: int, data: bytes = b"data") -> Checkpoint:
    return Checkpoint(seq=Seq(seq), data=data)


async def begun(store: Store, entries: int) -> Lease:
    await store.create(FIRST, answers(1, min(entries, CHECKPOINT_ENTRIES)), summary())
    lease = await store.acquire(FIRST, address="")
    if entries > CHECKPOINT_ENTRIES:
        await store.append(lease, answers(CHECKPOINT_ENTRIES + 1, entries), summary())
    return lease


async def test_a_checkpoint_is_read_as_it_was_saved(store: Store) -> None:
    lease = await begun(store, 3)
    before = await store.checkpoint(FIRST)
    await store.save_checkpoint(lease, checkpoint(2, bytes(range(256)) * 1024))

    assert (before, await store.checkpoint(FIRST)) == (None, checkpoint(2, bytes(range(256)) * 1024))
    assert await everything_in(store) == answers(1, 3)


async def test_a_checkpoint_replaces_one_that_is_old_enough(store: Store) -> None:
    lease = await begun(store, CHECKPOINT_ENTRIES + 1)
    await store.save_checkpoint(lease, checkpoint(1))
    await store.save_checkpoint(lease, checkpoint(CHECKPOINT_ENTRIES))
    kept = await store.checkpoint(FIRST)
    await store.save_checkpoint(lease, checkpoint(CHECKPOINT_ENTRIES + 1))

    assert (kept, await store.checkpoint(FIRST)) == (checkpoint(1), checkpoint(CHECKPOINT_ENTRIES + 1))


async def test_a_checkpoint_that_is_too_large_or_beyond_the_log_is_refused(store: Store) -> None:
    lease = await begun(store, 3)
    with pytest.raises(ValueError, match="too large"):
        await store.save_checkpoint(lease, checkpoint(3, bytes(CHECKPOINT_BYTES + 1)))
    with pytest.raises(LeaseLost):
        await store.save_checkpoint(lease, checkpoint(4))
    await store.release(lease)
    with pytest.raises(LeaseLost):
        await store.save_checkpoint(lease, checkpoint(3))

    assert await store.checkpoint(FIRST) is None


async def test_a_checkpoint_goes_with_its_conversation(store: Store) -> None:
    lease = await begun(store, 3)
    await store.save_checkpoint(lease, checkpoint(3))
    await store.delete(lease)
    with pytest.raises(UnknownConversation):
        await store.checkpoint(FIRST)
    await store.create(FIRST, answers(1, 3), summary())

    assert await store.checkpoint(FIRST) is None
