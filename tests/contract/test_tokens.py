"""The bearer tokens of a home (`parley.stores.sqlite.token_queries`, `parley.stores.postgres.tokens`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from kit.builders.entries import FIRST
from parley.ports.store import Store, StoredToken
from parley.stores.memory import MemoryStore

READER = StoredToken(name="reader", digest=b"r" * 32, role="observer", created_at=1.0)
PHONE = StoredToken(
    name="phone",
    digest=b"p" * 32,
    role="approver",
    conversation_id=FIRST,
    created_at=2.0,
    expires_at=9.0,
    used_at=3.0,
)


async def test_tokens_are_listed_by_name_until_they_are_removed(store: Store) -> None:
    assert await store.tokens() == []
    assert [await store.add_token(one) for one in (READER, PHONE)] == [True, True]
    both = await store.tokens()

    assert both == [PHONE, READER]
    assert [await store.remove_token(name) for name in ("reader", "reader", "nobody")] == [True, False, False]
    assert await store.tokens() == [PHONE]


async def test_a_name_is_used_once(store: Store) -> None:
    other = replace(READER, digest=b"o" * 32, role="admin")
    await store.add_token(READER)
    taken = await store.add_token(other)
    first = await store.tokens()
    await store.remove_token("reader")

    assert (taken, first) == (False, [READER])
    assert await store.add_token(other) is True
    assert await store.tokens() == [other]


async def test_the_last_use_is_stored_with_tokens_that_exist(store: Store) -> None:
    await store.add_token(READER)
    await store.note_tokens_used({READER.digest: 7.0, PHONE.digest: 8.0})

    assert await store.tokens() == [replace(READER, used_at=7.0)]


async def test_tokens_survive_the_store(new_store: Callable[[Path], Store], tmp_path: Path) -> None:
    store = new_store(tmp_path)
    await store.add_token(PHONE)
    is_kept = not isinstance(store, MemoryStore)
    await store.close()
    again = new_store(tmp_path)

    assert await again.tokens() == ([PHONE] if is_kept else [])
    await again.close()
