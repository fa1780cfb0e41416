"""The sign-ins to the web page (`parley.stores.sqlite.sign_in_queries`, `parley.stores.postgres.tokens`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from parley.ports.store import Store, StoredSignIn, StoredToken
from parley.stores.memory import MemoryStore

CODE = StoredSignIn(digest=b"0" * 32, created_at=1.0, used_at=1.0)
ONE = StoredSignIn(digest=b"1" * 32, secret=b"s" * 32, created_at=1.0, used_at=2.0)
OTHER = StoredSignIn(
    digest=b"2" * 32, secret=bytes(range(32)), token=b"t" * 32, created_at=3.0, used_at=4.5, push=bytes(range(256))
)


async def test_sign_ins_and_codes_are_read_as_they_were_stored(store: Store) -> None:
    assert (await store.sign_ins(), await store.sign_in(ONE.digest)) == ([], None)
    for one in (OTHER, CODE, ONE):
        await store.add_sign_in(one)
    changed = replace(ONE, push=b"subscription")
    await store.subscribe_sign_in(ONE.digest, changed.push)
    await store.note_sign_ins_used({OTHER.digest: 9.0, b"unknown": 1.0})

    assert await store.sign_ins() == [CODE, changed, replace(OTHER, used_at=9.0)]
    assert [await store.sign_in(one.digest) for one in (CODE, ONE)] == [CODE, changed]
    assert (CODE.is_code, ONE.is_code) == (True, False)


async def test_a_subscription_or_a_use_restores_no_removed_sign_in(store: Store) -> None:
    await store.add_sign_in(ONE)
    await store.add_sign_in(OTHER)
    await store.remove_sign_ins([ONE.digest])

    assert await store.subscribe_sign_in(OTHER.digest, None)
    assert not await store.subscribe_sign_in(ONE.digest, b"subscription")
    assert not await store.subscribe_sign_in(ONE.digest, None)
    await store.note_sign_ins_used({ONE.digest: 9.0})
    assert await store.sign_ins() == [replace(OTHER, push=None)]


async def test_a_new_sign_in_replaces_no_other(store: Store) -> None:
    await store.add_sign_in(ONE)
    await store.add_sign_in(replace(OTHER, digest=ONE.digest))

    assert await store.sign_ins() == [ONE]


async def test_only_one_of_several_callers_removes_a_code(store: Store) -> None:
    await store.add_sign_in(CODE)
    await store.add_sign_in(ONE)

    removed = await asyncio.gather(*(store.remove_sign_ins([CODE.digest]) for _ in range(5)))

    assert sorted(removed) == [0, 0, 0, 0, 1]
    assert await store.sign_ins() == [ONE]


async def test_the_sign_ins_of_a_removed_token_are_removed(store: Store) -> None:
    token = StoredToken(name="phone", digest=OTHER.token, role="driver", created_at=1.0)
    await store.add_token(token)
    await store.add_sign_in(ONE)
    await store.add_sign_in(OTHER)
    await store.remove_token("phone")

    assert await store.sign_ins() == [ONE]


async def test_sign_ins_are_shared_by_the_stores_of_a_home(
    new_store: Callable[[Path], Store], tmp_path: Path
) -> None:
    store, other = new_store(tmp_path), new_store(tmp_path)
    await store.add_sign_in(ONE)

    assert await other.sign_ins() == ([] if isinstance(store, MemoryStore) else [ONE])
    await store.close()
    await other.close()
