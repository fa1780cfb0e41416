"""The sessions of HTTP clients (`parley.stores.sqlite.session_queries`, `parley.stores.postgres.tokens`)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from parley.ports.store import Store, StoredSession
from parley.stores.memory import MemoryStore

ONE = StoredSession(digest=b"1" * 32, principal=":serve", data=bytes(range(256)), used_at=1.0)
OTHER = StoredSession(digest=b"2" * 32, principal="abc:phone", data=b"", used_at=5.5)


async def found(store: Store) -> list[StoredSession | None]:
    return [await store.session(one.digest) for one in (ONE, OTHER)]


async def test_a_session_is_read_as_it_was_saved_last(store: Store) -> None:
    assert await found(store) == [None, None]
    assert await store.save_session(ONE, replacing=None)
    assert await store.save_session(OTHER, replacing=None)
    first = await found(store)
    changed = replace(ONE, data=b"new", used_at=2.0)
    assert await store.save_session(changed, replacing=ONE.data)

    assert (first, await found(store)) == ([ONE, OTHER], [changed, OTHER])


async def test_a_session_that_another_process_has_changed_is_not_overwritten(store: Store) -> None:
    first, second, third = (
        replace(ONE, data=data, used_at=at) for data, at in ((b"1", 1.0), (b"2", 2.0), (b"3", 3.0))
    )
    assert await store.save_session(first, replacing=None)
    assert await store.save_session(second, replacing=first.data)
    saved = [
        await store.save_session(third, replacing=None),
        await store.save_session(third, replacing=first.data),
        await store.save_session(replace(OTHER, data=b"3"), replacing=b"2"),
    ]
    kept = await found(store)
    repeated = [await store.save_session(second, replacing=data) for data in (None, first.data)]
    await store.remove_sessions([ONE.digest])
    revived = await store.save_session(third, replacing=second.data)

    assert (saved, kept) == ([False] * 3, [second, None])
    assert (repeated, revived, await found(store)) == ([True, True], False, [None, None])


async def test_one_of_many_simultaneous_changes_of_a_session_is_stored(store: Store) -> None:
    assert await store.save_session(ONE, replacing=None)
    changes = [replace(ONE, data=bytes([number])) for number in range(10)]
    saved = await asyncio.gather(*(store.save_session(one, replacing=ONE.data) for one in changes))

    assert saved.count(True) == 1
    assert await store.session(ONE.digest) == changes[saved.index(True)]


async def test_sessions_are_removed_by_digest_and_by_their_last_use(store: Store) -> None:
    assert await store.save_session(ONE, replacing=None)
    assert await store.save_session(OTHER, replacing=None)
    await store.remove_sessions([OTHER.digest, b"unknown"])
    one = await found(store)
    assert await store.save_session(OTHER, replacing=None)
    await store.remove_unused_sessions(since=5.5)

    assert (one, await found(store)) == ([ONE, None], [None, OTHER])


async def test_the_revision_of_a_session_is_the_digest_of_its_state(store: Store) -> None:
    assert await store.save_session(ONE, replacing=None)
    first = await store.session_revisions([ONE.digest, OTHER.digest])
    assert await store.save_session(replace(ONE, data=b"new"), replacing=ONE.data)
    second = await store.session_revisions([ONE.digest])

    assert first == {ONE.digest: hashlib.sha256(ONE.data).digest()}
    assert second == {ONE.digest: hashlib.sha256(b"new").digest()}


async def test_the_last_use_is_noted_for_sessions_that_exist(store: Store) -> None:
    assert await store.save_session(ONE, replacing=None)
    await store.note_sessions_used({ONE.digest: 7.0, OTHER.digest: 8.0})
    await store.note_sessions_used({ONE.digest: 6.0})  # another process has noted a later use

    assert await found(store) == [replace(ONE, used_at=7.0), None]


async def test_sessions_are_shared_by_the_stores_of_a_home(
    new_store: Callable[[Path], Store], tmp_path: Path
) -> None:
    store, other = new_store(tmp_path), new_store(tmp_path)
    assert await store.save_session(ONE, replacing=None)
    expected = [None, None] if isinstance(store, MemoryStore) else [ONE, None]

    assert await found(other) == expected
    await store.close()
    await other.close()
