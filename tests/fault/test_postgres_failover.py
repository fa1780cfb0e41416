"""The primary of PostgreSQL is killed and its synchronous standby is promoted: no acknowledged entry is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from kit.builders.entries import FIRST, OTHER, everything_in, said, summary
from kit.servers.database_port import DatabasePort
from kit.servers.postgres import NEEDS_POSTGRES, with_connection
from kit.servers.postgres_pair import PostgresPair, postgres_pair
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.printed import PRINTED
from kit.system.waiting import until
from parley.errors import LeaseLost, OwnedElsewhere, StoreFailed
from parley.ports.store import Lease, StoredSession, StoredToken
from parley.stores.postgres.store import PostgresStore
from parley.wire.ids import ConversationId

pytestmark = [NEEDS_POSTGRES, pytest.mark.waits]

PRODUCERS = 8
BEFORE, AFTER = 20, 5
"""The minimum numbers of events that each producer appends before and after the failover."""
SHORT_LEASE = 2.0
LATE = {"recovery_min_apply_delay": "1h"}
"""Settings of a standby that stores all data and applies none of it until it is promoted."""


class Producer:
    """Appends events to one conversation, and counts the acknowledgements."""

    def __init__(self, store: PostgresStore, number: int) -> None:
        self._store = store
        self.id = ConversationId(f"00000000-0000-4000-8000-{number:012}")
        self.acknowledged = 0
        self.lost = 0
        """The number of leases that the producer has lost."""
        self.last_at = 0.0
        """The time of the last acknowledgement."""

    async def run(self) -> None:
        await self._store.create(self.id, [], summary())
        while True:
            lease = await self._acquired()
            seq = int(lease.last)
            assert seq >= self.acknowledged
            try:
                while True:
                    seq += 1
                    await self._store.append(lease, [said(seq, f"{self.id} {seq}")], summary(state="running"))
                    self.acknowledged, self.last_at = seq, time.monotonic()
            except LeaseLost:
                self.lost += 1

    async def _acquired(self) -> Lease:
        while True:
            try:
                return await self._store.acquire(self.id, address="")
            except OwnedElsewhere:
                await asyncio.sleep(0.05)

    async def check(self, store: PostgresStore) -> None:
        """Check that the log has each acknowledged event once, in order, and at most one more."""
        log = await everything_in(store, self.id)
        assert log == [said(seq, f"{self.id} {seq}") for seq in range(1, len(log) + 1)]
        assert self.acknowledged <= len(log) <= self.acknowledged + 1
        assert (await store.head(self.id)).last == len(log)


@asynccontextmanager
async def producing(store: PostgresStore, numbers: range = range(PRODUCERS)) -> AsyncIterator[list[Producer]]:
    """Run producers. Their errors are raised at the end of the block."""
    producers = [Producer(store, number) for number in numbers]
    tasks = [asyncio.ensure_future(one.run()) for one in producers]
    try:
        yield producers
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise error if isinstance(error, BaseException) else AssertionError("a producer has ended")


async def until_acknowledged(producers: list[Producer], more: int) -> None:
    """Wait until each producer has got `more` further acknowledgements."""
    wanted = {one.id: one.acknowledged + more for one in producers}
    await until(
        lambda: all(one.acknowledged >= wanted[one.id] for one in producers),
        lambda: f"acknowledged: {[one.acknowledged for one in producers]}",
    )


async def fail_over(pair: PostgresPair, producers: list[Producer]) -> float:
    """Kill the primary during appends, and promote the standby.

    Return the time in seconds between the last acknowledgement before the failover and the moment at which every
    producer has got a new acknowledgement.
    """
    await until_acknowledged(producers, BEFORE)
    await pair.kill_primary()
    last = max(one.last_at for one in producers)
    await pair.promote()
    await until_acknowledged(producers, 1)
    seconds = time.monotonic() - last
    await until_acknowledged(producers, AFTER)
    return seconds


async def test_a_failover_loses_and_repeats_nothing_and_the_store_continues(
    record_property: Callable[[str, object], None],
) -> None:
    async with postgres_pair(**LATE) as pair:
        store = PostgresStore(pair.url)
        async with producing(store) as producers:
            seconds = await fail_over(pair, producers)
            assert [one.lost for one in producers] == [0] * PRODUCERS
        await store.close()
        fresh = PostgresStore(pair.url)
        for one in producers:
            await one.check(fresh)
        await fresh.close()
    record_property(PRINTED, f"failover of PostgreSQL: {seconds:.2f} s without an acknowledgement")


@pytest.mark.long
async def test_many_failovers_lose_and_repeat_nothing(record_property: Callable[[str, object], None]) -> None:
    taken: list[float] = []
    async with postgres_pair() as pair:
        for number in range(6):
            if number:
                await pair.add_standby(**(LATE if number % 2 else {}))
            store = PostgresStore(pair.url)
            async with producing(store, range(32 * number, 32 * number + 32)) as producers:
                if number % 3 == 2:
                    await pause_replay(pair)
                taken.append(await fail_over(pair, producers))
            await store.close()  # an append of a producer may still be in progress
            fresh = PostgresStore(pair.url)
            for one in producers:
                await one.check(fresh)
            await fresh.close()
    record_property(
        PRINTED, f"failovers of PostgreSQL, seconds without an acknowledgement: {[round(one, 2) for one in taken]}"
    )


async def pause_replay(pair: PostgresPair) -> None:
    assert pair.standby is not None
    await with_connection(pair.standby.url, lambda db: db.execute("SELECT pg_wal_replay_pause()"))


@pytest.mark.long
async def test_a_write_that_only_the_primary_has_is_not_acknowledged_after_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with postgres_pair() as pair, DatabasePort(pair.primary.url) as port:
        store = PostgresStore(port.url, lease_seconds=3600)
        await store.create(FIRST, [], summary())
        lease = await store.acquire(FIRST, address="")
        monkeypatch.setattr("parley.stores.postgres.writer.CALL_SECONDS", 0.3)
        await store.append(lease, [said(1, "one")], summary())
        assert pair.standby is not None
        pair.standby.signal_all(signal.SIGSTOP)
        append = store.append(lease, [said(2, "two")], summary())
        connections = port.accepted
        await until(lambda: port.accepted >= connections + 2)  # the store has tried to reconnect twice
        await with_connection(pair.primary.url, lambda db: db.execute(CANCEL))
        await until(lambda: append.done() or port.accepted >= connections + 5)

        assert not append.done()
        pair.standby.signal_all(signal.SIGCONT)
        await append
        await pair.kill_primary()
        await pair.promote()
        fresh = PostgresStore(pair.url)
        assert await everything_in(fresh) == [said(1, "one"), said(2, "two")]
        await fresh.close()
        monkeypatch.setattr("parley.stores.postgres.database.CALL_SECONDS", 0.1)
        await store.close()


Write = Callable[[PostgresStore, Lease], Awaitable[object]]

TOKEN = StoredToken(name="phone", digest=b"p" * 32, role="observer", created_at=2.0)
SESSION = StoredSession(digest=b"s" * 32, principal="ada", data=b"{}", used_at=3.0)
WRITES: dict[str, Write] = {
    "create": lambda store, lease: store.create(OTHER, [said(1, "new")], summary()),
    "archive": lambda store, lease: store.archive(FIRST, archived=True),
    "token": lambda store, lease: store.add_token(TOKEN),
    "append": lambda store, lease: store.append(lease, [said(1, "new")], summary()),
}
SEEN = """
    SELECT (SELECT count(*) FROM parley.conversations WHERE archived OR last > 0)
        + (SELECT count(*) FROM parley.tokens)
"""
"""Counts the writes of `WRITES` that other processes see."""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'parley'"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'parley'"


async def ask(pair: PostgresPair, sql: str) -> int:
    number: int = await with_connection(pair.primary.url, lambda db: db.fetchval(sql))
    return number


async def until_some(pair: PostgresPair, sql: str, writing: asyncio.Future[object]) -> None:
    """Wait until the result of a query is not zero. Check that the write is not acknowledged before."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await ask(pair, sql):
            assert not writing.done()
            await asyncio.sleep(0.01)


class Stopped(NamedTuple):
    """A store whose standby is stopped."""

    pair: PostgresPair
    store: PostgresStore
    lease: Lease


@asynccontextmanager
async def with_stopped_standby() -> AsyncIterator[Stopped]:
    """Start a store, and stop its standby after the store has acquired a lease."""
    async with postgres_pair() as pair:
        store = PostgresStore(pair.primary.url, lease_seconds=3600)
        await store.create(FIRST, [], summary())
        lease = await store.acquire(FIRST, address="")
        assert pair.standby is not None
        pair.standby.signal_all(signal.SIGSTOP)
        try:
            yield Stopped(pair, store, lease)
        finally:
            pair.standby.signal_all(signal.SIGCONT)
            await store.close()


@pytest.mark.long
@pytest.mark.parametrize("write", ["create", "archive", "token"])
async def test_a_call_that_gives_up_does_not_show_its_write_before_the_standby_has_it(
    write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_stopped_standby() as stopped:
        with monkeypatch.context() as patch:
            patch.setattr("parley.stores.postgres.database.CALL_SECONDS", 0.3)
            with pytest.raises(StoreFailed, match="cannot be reached"):
                await WRITES[write](stopped.store, stopped.lease)

        assert await ask(stopped.pair, SEEN) == 0


@pytest.mark.parametrize(
    "write", ["append", *(pytest.param(one, marks=pytest.mark.long) for one in WRITES if one != "append")]
)
async def test_a_write_whose_wait_for_the_standby_is_cancelled_is_not_acknowledged(
    write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.stores.postgres.database.CALL_SECONDS", TIMEOUT_SECONDS)
    async with with_stopped_standby() as (pair, store, lease):
        writing = asyncio.ensure_future(WRITES[write](store, lease))
        for _ in range(3):
            await until_some(pair, WAITING, writing)
            await ask(pair, CANCEL)
        await until_some(pair, SEEN, writing)
        await until_some(pair, WAITING, writing)

        assert not writing.done()
        assert pair.standby is not None
        pair.standby.signal_all(signal.SIGCONT)
        await writing


@pytest.mark.long
async def test_a_repeated_removal_of_sessions_is_not_acknowledged_before_the_standby_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.stores.postgres.database.CALL_SECONDS", TIMEOUT_SECONDS)
    async with postgres_pair() as pair, DatabasePort(pair.primary.url) as port:
        store = PostgresStore(port.url)
        assert await store.save_session(SESSION, replacing=None)
        assert pair.standby is not None
        pair.standby.signal_all(signal.SIGSTOP)
        removing: asyncio.Future[object] = asyncio.ensure_future(store.remove_sessions([SESSION.digest]))
        await until_some(pair, WAITING, removing)
        port.cut()
        await until_some(pair, BLOCKED, removing)  # the repeated removal waits for the first transaction
        await ask(pair, CANCEL)
        await until_some(pair, "SELECT 1 - count(*) FROM parley.http_sessions", removing)
        await until_some(pair, WAITING, removing)

        assert not removing.done()
        pair.standby.signal_all(signal.SIGCONT)
        await removing
        await store.close()


CANCEL = """
    SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'parley'
"""
"""A query that makes the primary commit the writes that wait for the standby."""


@pytest.mark.long
async def test_after_a_failover_a_holder_keeps_its_lease_and_a_frozen_holder_is_fenced() -> None:
    async with postgres_pair(**LATE) as pair:
        alive = PostgresStore(pair.url, lease_seconds=SHORT_LEASE)
        frozen_port = DatabasePort(pair.primary.url)
        async with frozen_port:
            frozen = PostgresStore(frozen_port.url, lease_seconds=3600)
            for one in (FIRST, OTHER):
                await alive.create(one, [], summary())
            kept = await alive.acquire(FIRST, address="")
            lease = await frozen.acquire(OTHER, address="")
            await set_expiry(pair, SHORT_LEASE * 3)
            frozen_port.hold()
            late = frozen.append(lease, [said(1, "late")], summary())
            await pair.kill_primary()
            await pair.promote()
            await alive.append(kept, [said(1, "one")], summary())
            # The locks of the old primary do not exist on the new primary. The lease rows of both holders have not
            # expired.
            new = PostgresStore(pair.url, lease_seconds=SHORT_LEASE)
            for one in (FIRST, OTHER):
                with pytest.raises(OwnedElsewhere):
                    await new.acquire(one, address="")
            taken = await until_acquired(new, OTHER)
            with pytest.raises(OwnedElsewhere):
                await new.acquire(FIRST, address="")
            await new.append(taken, [said(1, "of the new holder")], summary())
            frozen_port.target(pair.primary.url)
            frozen_port.flow()
            frozen_port.cut()

            with pytest.raises(LeaseLost):
                await late
            with pytest.raises(LeaseLost):
                await frozen.append(lease, [said(2, "later")], summary())
            assert await everything_in(new, OTHER) == [said(1, "of the new holder")]
            await alive.append(kept, [said(2, "two")], summary())
            assert await everything_in(new) == [said(1, "one"), said(2, "two")]
            for store in (alive, frozen, new):
                await store.close()


async def set_expiry(pair: PostgresPair, seconds: float) -> None:
    """Make leases expire after `seconds` if their holder does not renew them."""
    await with_connection(
        pair.primary.url,
        lambda db: db.execute(
            "UPDATE parley.holders SET expires_at ="
            " least(expires_at, clock_timestamp() + make_interval(secs => $1))",
            seconds,
        ),
    )


async def until_acquired(store: PostgresStore, conversation_id: ConversationId) -> Lease:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                return await store.acquire(conversation_id, address="")
            except OwnedElsewhere:
                await asyncio.sleep(0.05)


@pytest.mark.long
async def test_a_host_that_does_not_answer_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The computer of the old primary is off, so connections to it are neither accepted nor refused."""
    # If the store waited for this host, the call would last longer than the test allows.
    monkeypatch.setattr("parley.stores.postgres.database.CONNECT_SECONDS", 10 * TIMEOUT_SECONDS)
    monkeypatch.setattr("parley.stores.postgres.database.CALL_SECONDS", 10 * TIMEOUT_SECONDS)
    async with postgres_pair() as pair, DatabasePort(pair.primary.url) as silent:
        silent.hold()
        hosts = [silent.url.rpartition("@")[2].partition("/")[0], f"127.0.0.1:{pair.primary.port}"]
        store = PostgresStore(pair.url_of(*hosts))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await store.create(FIRST, [], summary())

        assert await everything_in(store) == []
        await store.close()
