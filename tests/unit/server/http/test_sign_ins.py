"""Sign-ins to the page while the store changes, fails, or is shared with other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from kit.system.waiting import until
from parley.app.tokens import end_code_sign_ins
from parley.errors import StoreFailed
from parley.ports.store import StoredSignIn, StoredToken
from parley.server.context import PAGE_USER, Principal, Role
from parley.server.http.authentication import Authenticator
from parley.server.http.errors import SignInFailed, SignInNotStored
from parley.server.http.sign_ins import IDLE_SECONDS, MAX_SIGN_INS, USE_SECONDS, NewSignIn, SignIns
from parley.server.http.tokens import StoredTokens, token_digest
from parley.stores.memory import MemoryStore
from parley.wire.http import PAGE_SECRET

TOKEN = StoredToken(name="phone", digest=token_digest("phone"), role="driver", created_at=1.0)


class Clock:
    time = 1000.0

    def __call__(self) -> float:
        return self.time


class Browser:
    """A request with the two secrets of a sign-in. Only its headers are read."""

    def __init__(self, new: NewSignIn) -> None:
        self._headers = {"Cookie": [f"other=1; {new.cookie}"], PAGE_SECRET: [new.secret]}

    def header(self, name: str) -> list[str]:
        return self._headers.get(name, [])


class Unavailable(MemoryStore):
    is_broken = False

    def _refuse_if_broken(self) -> None:
        if self.is_broken:
            raise StoreFailed("the disk is gone")

    async def add_sign_in(self, sign_in: StoredSignIn) -> None:
        self._refuse_if_broken()
        await super().add_sign_in(sign_in)

    async def subscribe_sign_in(self, digest: bytes, push: bytes | None) -> bool:
        self._refuse_if_broken()
        return await super().subscribe_sign_in(digest, push)

    async def sign_in(self, digest: bytes) -> StoredSignIn | None:
        self._refuse_if_broken()
        return await super().sign_in(digest)

    async def sign_ins(self) -> list[StoredSignIn]:
        self._refuse_if_broken()
        return await super().sign_ins()

    async def remove_sign_ins(self, digests: Collection[bytes]) -> int:
        self._refuse_if_broken()
        return await super().remove_sign_ins(digests)

    async def note_sign_ins_used(self, used: Mapping[bytes, float]) -> None:
        self._refuse_if_broken()
        await super().note_sign_ins_used(used)


async def found(sign_ins: SignIns, new: NewSignIn) -> Principal | None:
    request: Any = Browser(new)
    return await sign_ins.principal(request)


async def with_code(sign_ins: SignIns) -> NewSignIn:
    return await sign_ins.with_code(await sign_ins.new_code())


async def test_a_store_that_fails_ends_no_sign_in_and_begins_none() -> None:
    store = Unavailable()
    await store.add_token(TOKEN)
    tokens = StoredTokens(store)
    sign_ins = SignIns(Authenticator(tokens), store)
    await tokens.reload()
    signed_in, code = await with_code(sign_ins), await sign_ins.new_code()
    other = SignIns(Authenticator(), store)
    store.is_broken = True

    for attempt in (
        sign_ins.with_code(code),
        sign_ins.with_token("phone"),
        sign_ins.end(signed_in.principal),
        sign_ins.subscribe(signed_in.principal, b"push"),
    ):
        with pytest.raises(SignInNotStored):
            await attempt
    assert await found(sign_ins, signed_in) == signed_in.principal
    assert await found(other, signed_in) is None
    assert sign_ins.subscriptions() == []
    store.is_broken = False
    assert (await sign_ins.with_code(code)).principal.token_holder == PAGE_USER
    assert await found(other, signed_in) == signed_in.principal


async def test_a_reload_that_began_earlier_does_not_restore_a_sign_in_that_has_ended() -> None:
    class SlowReads(MemoryStore):
        """A store whose reads return what was stored when they began."""

        has_read, goes_on, is_slow = asyncio.Event(), asyncio.Event(), False

        async def sign_ins(self) -> list[StoredSignIn]:
            read = await super().sign_ins()
            if self.is_slow:
                self.has_read.set()
                await self.goes_on.wait()
            return read

    store, ended = SlowReads(), list[Principal]()
    sign_ins = SignIns(Authenticator(), store)
    sign_ins.on_ended(ended.append)
    signed_in = await with_code(sign_ins)
    store.is_slow = True
    reload = asyncio.create_task(sign_ins.reload())
    await store.has_read.wait()
    await sign_ins.end(signed_in.principal)
    store.goes_on.set()
    await reload

    assert await found(sign_ins, signed_in) is None
    assert not sign_ins.is_current(signed_in.principal)
    assert ended == [signed_in.principal]


async def test_a_sign_in_that_another_server_ends_ends_here_with_the_next_reload() -> None:
    store, ended = MemoryStore(), list[Principal]()
    one, other = SignIns(Authenticator(), store), SignIns(Authenticator(), store)
    other.on_ended(ended.append)
    signed_in = await with_code(one)
    seen = await found(other, signed_in)
    await one.end(signed_in.principal)
    await other.reload()

    assert (seen, ended) == (signed_in.principal, [signed_in.principal])
    assert await found(other, signed_in) is None


async def test_a_token_that_another_process_has_just_stored_signs_in_and_is_found() -> None:
    store = MemoryStore()
    one, other = (SignIns(Authenticator(StoredTokens(store)), store) for _ in range(2))
    await store.add_token(TOKEN)
    signed_in = await one.with_token("phone")

    assert (signed_in.principal.name, signed_in.principal.role) == ("phone", Role.DRIVER)
    assert await found(other, signed_in) == signed_in.principal


@pytest.mark.parametrize("code", ["", "wrong", "é\udcff", "x" * 4000])
async def test_a_text_that_is_no_code_is_refused(code: str) -> None:
    sign_ins = SignIns(Authenticator(), MemoryStore())
    await sign_ins.new_code()

    with pytest.raises(SignInFailed):
        await sign_ins.with_code(code)


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
async def test_a_revocation_finds_the_code_or_the_sign_in_of_a_browser_that_is_signing_in(is_before: bool) -> None:
    class RevokedMeanwhile(MemoryStore):
        async def add_sign_in(self, sign_in: StoredSignIn) -> None:
            if is_before and not sign_in.is_code:
                await end_code_sign_ins(self)
            await super().add_sign_in(sign_in)
            if not is_before and not sign_in.is_code:
                await end_code_sign_ins(self)

    store = RevokedMeanwhile()
    sign_ins = SignIns(Authenticator(), store)

    with pytest.raises(SignInFailed):
        await with_code(sign_ins)
    assert await store.sign_ins() == []
    assert sign_ins.subscriptions() == []


async def test_a_cookie_is_no_code() -> None:
    sign_ins = SignIns(Authenticator(), MemoryStore())
    signed_in = await with_code(sign_ins)

    with pytest.raises(SignInFailed):
        await sign_ins.with_code(signed_in.cookie.partition("=")[2])
    assert await found(sign_ins, signed_in) == signed_in.principal


async def test_uses_are_stored_and_outdated_rows_are_removed_in_the_background() -> None:
    store, clock = MemoryStore(), Clock()
    sign_ins = SignIns(Authenticator(), store, now=clock)
    used, unused = await with_code(sign_ins), await with_code(sign_ins)
    await sign_ins.new_code()
    keeping = asyncio.create_task(sign_ins.keep_current())
    clock.time += USE_SECONDS
    assert await found(sign_ins, used) is not None
    await until(lambda: clock.time in [one.used_at for one in store._sign_ins.values()])
    clock.time = 1000.0 + IDLE_SECONDS
    sign_ins._wake.set()
    await until(lambda: len(store._sign_ins) == 1)

    assert [await found(sign_ins, one) is not None for one in (used, unused)] == [True, False]
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_there_are_at_most_so_many_sign_ins_in_all() -> None:
    store, clock = MemoryStore(), Clock()
    sign_ins = SignIns(Authenticator(), store, now=clock)
    first = await with_code(sign_ins)
    (row,) = await store.sign_ins()
    for number in range(MAX_SIGN_INS - 1):
        await store.add_sign_in(replace(row, digest=number.to_bytes(32, "big"), used_at=clock.time + 1))
    last = await with_code(sign_ins)

    assert len(await store.sign_ins()) == MAX_SIGN_INS
    assert [await found(sign_ins, one) is not None for one in (first, last)] == [False, True]
