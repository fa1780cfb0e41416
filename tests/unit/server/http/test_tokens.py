"""The tokens of the home: their principals, their expiry, and the notifications of their end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kit.builders.entries import FIRST
from kit.system.waiting import until
from parley.errors import StoreFailed
from parley.ports.store import StoredToken
from parley.server.context import Principal, Role
from parley.server.http.tokens import UNKNOWN_SECONDS, USE_SECONDS, StoredTokens, token_digest
from parley.stores.memory import MemoryStore
from parley.wire.principals import PrincipalRef


def stored(name: str, *, text: str | None = None, expires_at: float | None = None) -> StoredToken:
    return StoredToken(
        name=name,
        digest=token_digest(text or name),
        role="driver",
        conversation_id=FIRST,
        created_at=1.0,
        expires_at=expires_at,
    )


class Clock:
    time = 1000.0

    def __call__(self) -> float:
        return self.time


class Unavailable(MemoryStore):
    is_broken = False
    failed_writes = 0

    async def tokens(self) -> list[StoredToken]:
        if self.is_broken:
            raise StoreFailed("the disk is gone")
        return await super().tokens()

    async def note_tokens_used(self, used: Mapping[bytes, float]) -> None:
        if self.is_broken:
            self.failed_writes += 1
            raise StoreFailed("the disk is gone")
        await super().note_tokens_used(used)


async def test_a_token_has_a_name_a_role_and_a_conversation() -> None:
    store = MemoryStore()
    await store.add_token(stored("phone"))
    tokens = StoredTokens(store)
    before = tokens.find(token_digest("phone"))
    await tokens.reload()
    found = tokens.find(token_digest("phone"))

    assert before is None
    assert found is not None
    assert (found.name, found.role, found.conversation) == ("phone", Role.DRIVER, FIRST)
    assert found.ref == PrincipalRef(name="phone", token_id=token_digest("phone").hex()[:16])
    assert tokens.find(token_digest("other")) is None
    assert len(tokens) == 1


@pytest.mark.promises("roles.tokens")
async def test_a_revoked_token_is_reported_even_if_its_name_is_used_again() -> None:
    store, revoked = MemoryStore(), list[Principal]()
    tokens = StoredTokens(store)
    tokens.on_revoked(revoked.append)
    await store.add_token(stored("phone", text="old"))
    await tokens.reload()
    old = tokens.find(token_digest("old"))
    await store.remove_token("phone")
    await store.add_token(stored("phone", text="new"))
    await tokens.reload()

    assert revoked == [old]
    assert tokens.find(token_digest("old")) is None
    assert tokens.find(token_digest("new")) not in (None, old)


@pytest.mark.promises("roles.tokens")
async def test_a_token_ends_at_its_time_although_nothing_is_read_again() -> None:
    clock, store, revoked = Clock(), MemoryStore(), list[Principal]()
    await store.add_token(stored("phone", expires_at=1060.0))
    tokens = StoredTokens(store, now=clock)
    tokens.on_revoked(revoked.append)
    await tokens.reload()
    before = tokens.find(token_digest("phone"))
    clock.time = 1060.0

    assert before is not None
    assert tokens.find(token_digest("phone")) is None
    running = asyncio.ensure_future(tokens.keep_current())
    await until(lambda: bool(revoked))
    running.cancel()
    assert revoked == [before]


async def test_the_use_of_a_token_is_stored_rarely() -> None:
    clock, store = Clock(), MemoryStore()
    await store.add_token(stored("phone"))
    tokens = StoredTokens(store, now=clock)
    await tokens.reload()
    running = asyncio.ensure_future(tokens.keep_current())
    uses: list[float | None] = []
    for seconds in (0.0, USE_SECONDS - 1, 1.0):
        clock.time += seconds
        tokens.find(token_digest("phone"))
        for _ in range(20):
            await asyncio.sleep(0)
        uses.append((await store.tokens())[0].used_at)
    running.cancel()

    assert uses == [1000.0, 1000.0, 1000.0 + USE_SECONDS]


async def test_a_use_that_could_not_be_stored_is_stored_later() -> None:
    clock, store = Clock(), Unavailable()
    await store.add_token(stored("phone"))
    tokens = StoredTokens(store, now=clock)
    await tokens.reload()
    store.is_broken = True
    running = asyncio.ensure_future(tokens.keep_current())
    tokens.find(token_digest("phone"))
    await until(lambda: store.failed_writes > 0)
    clock.time += 1
    store.is_broken = False
    tokens._wake.set()
    await until(lambda: not tokens._used)
    running.cancel()

    assert (await store.tokens())[0].used_at == 1000.0


@pytest.mark.promises("roles.tokens")
async def test_a_store_that_cannot_be_read_keeps_the_tokens_until_they_expire() -> None:
    clock, store = Clock(), Unavailable()
    await store.add_token(stored("phone", expires_at=1060.0))
    tokens = StoredTokens(store, now=clock)
    await tokens.reload()
    store.is_broken = True
    await tokens.reload()
    found = tokens.find(token_digest("phone"))
    clock.time = 1061.0
    await tokens.reload()

    assert found is not None
    assert len(tokens) == 0


async def test_tokens_are_reloaded_after_an_unexpected_error() -> None:
    store, clock, revoked = Unavailable(), Clock(), list[str]()
    await store.add_token(stored("phone", expires_at=1000.0001))
    tokens = StoredTokens(store, now=clock)

    def fail_once(principal: Principal) -> None:
        revoked.append(principal.name)
        if len(revoked) == 1:
            raise RuntimeError("a bug")

    tokens.on_revoked(fail_once)
    await tokens.reload()
    keeping = asyncio.create_task(tokens.keep_current())
    clock.time += 1
    await until(lambda: revoked == ["phone"])
    await store.add_token(stored("laptop", expires_at=1002.0))
    tokens._wake.set()
    await until(lambda: tokens.find(token_digest("laptop")) is not None)

    keeping.cancel()


class SlowReads(MemoryStore):
    """A store whose first read of the tokens is slow.

    The read returns the tokens that were stored when it began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()

    async def tokens(self) -> list[StoredToken]:
        read = await super().tokens()
        if not self.has_read.is_set():
            self.has_read.set()
            await self.goes_on.wait()
        return read


async def test_a_slow_reload_does_not_make_a_removed_token_valid_again() -> None:
    store = SlowReads()
    await store.add_token(stored("phone"))
    tokens = StoredTokens(store)
    slow = asyncio.ensure_future(tokens.reload())
    await store.has_read.wait()
    await store.remove_token("phone")
    await store.add_token(stored("laptop"))
    later = asyncio.ensure_future(tokens.reload())
    await asyncio.sleep(0)
    store.goes_on.set()
    await asyncio.gather(slow, later)

    assert tokens.find(token_digest("phone")) is None
    assert tokens.find(token_digest("laptop")) is not None


async def test_a_token_that_another_process_has_stored_is_found() -> None:
    store = MemoryStore()
    tokens = StoredTokens(store, now=Clock())
    await tokens.reload()
    await store.add_token(stored("phone"))
    before = tokens.find(token_digest("phone"))
    found = await asyncio.gather(*(tokens.look_up(token_digest("phone")) for _ in range(3)))

    assert before is None
    assert [one and one.name for one in found] == ["phone"] * 3


async def test_wrong_tokens_load_the_tokens_at_most_once_a_second() -> None:
    class Counting(MemoryStore):
        reads = 0

        async def tokens(self) -> list[StoredToken]:
            self.reads += 1
            return await super().tokens()

    store, clock = Counting(), Clock()
    tokens = StoredTokens(store, now=clock)
    found = [await tokens.look_up(token_digest(f"wrong {number}")) for number in range(50)]
    clock.time += UNKNOWN_SECONDS
    found.append(await tokens.look_up(token_digest("wrong")))

    assert found == [None] * 51
    assert store.reads == 2
