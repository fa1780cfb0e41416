"""Connections to PostgreSQL are cut, blocked and refused, and the database server crashes.

No entry is lost or written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.builders.entries import FIRST, OTHER, answers, everything_in, said, summary
from kit.servers.database_port import DatabasePort, Direction
from kit.servers.postgres import NEEDS_POSTGRES, PASSWORD, Databases, PostgresServer
from kit.system.waiting import until
from parley.errors import LeaseLost, OwnedElsewhere, StoreFailed
from parley.ports.store import Lease, Store
from parley.stores.postgres.store import PostgresStore
from parley.wire.ids import Seq

pytestmark = NEEDS_POSTGRES

SHORT_LEASE: float = 1.0


@pytest.fixture
async def port(databases: Databases) -> AsyncIterator[DatabasePort]:
    async with DatabasePort(databases.url()) as port:
        yield port


async def begun(store: Store) -> Lease:
    await store.create(FIRST, [], summary())
    return await store.acquire(FIRST, address="")


async def acquired(store: Store) -> Lease | None:
    try:
        return await store.acquire(FIRST, address="")
    except OwnedElsewhere:
        return None


cuts = st.tuples(st.just("request"), st.integers(0, 1500)) | st.tuples(st.just("answer"), st.integers(0, 60))


@given(points=st.lists(cuts, min_size=1, max_size=6))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_append_is_stored_once_wherever_its_connection_is_cut(
    databases: Databases, tmp_path: Path, points: list[tuple[Direction, int]]
) -> None:
    asyncio.run(cut_appends(databases.url(), points))


@pytest.mark.long
@given(points=st.lists(cuts, min_size=1, max_size=6))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_append_is_stored_once_at_many_cuts(
    databases: Databases, tmp_path: Path, points: list[tuple[Direction, int]]
) -> None:
    asyncio.run(cut_appends(databases.url(), points))


async def cut_appends(url: str, points: list[tuple[Direction, int]]) -> None:
    """Append to two conversations while connections are cut, and compare the logs with the results."""
    async with DatabasePort(url) as port:
        store, direct = PostgresStore(port.url), PostgresStore(url)
        leases = []
        for one in (FIRST, OTHER):
            await store.create(one, [], summary())
            leases.append(await store.acquire(one, address=""))
        ends = [0, 0]
        for direction, size in points:
            port.cut_after(direction, size, marker=b"agent_message")
            appends = [
                store.append(lease, answers(ends[place] + 1, ends[place] + 1 + place), summary(state="running"))
                for place, lease in enumerate(leases)
            ]
            assert await asyncio.gather(*appends) == [None, None]
            ends = [ends[0] + 1, ends[1] + 2]
        for one, end in zip((FIRST, OTHER), ends, strict=True):
            assert await everything_in(direct, one) == answers(1, end)
            assert (await direct.head(one)).last == end
        for lease in leases:
            await store.delete(lease)
        await store.close()
        await direct.close()


async def test_other_writes_happen_once_when_their_connection_is_cut(
    port: DatabasePort, databases: Databases
) -> None:
    store, direct = PostgresStore(port.url), PostgresStore(databases.url())
    await store.tokens()
    for marker in (FIRST.encode(), b"COMMIT"):
        port.cut_after("answer", 0, marker=marker)
        await store.create(FIRST, answers(1, 3), summary())
        assert await everything_in(direct) == answers(1, 3)
        draft = await store.draft()
        port.cut_after("answer", 0, marker=b"COMMIT")
        await draft.add(answers(1, 5))
        port.cut_after("answer", 0, marker=marker)
        await draft.finish(OTHER, summary())
        assert await everything_in(direct, OTHER) == answers(1, 5)
        for one in (FIRST, OTHER):
            port.cut_after("answer", 0, marker=one.encode())
            lease = await store.acquire(one, address="")
            port.cut_after("answer", 0, marker=b"")
            await store.delete(lease)
    assert port.cuts > 10
    await store.close()
    await direct.close()


async def test_a_call_without_a_database_fails_with_the_cause_and_works_again_later(
    port: DatabasePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(port.url)
    lease = await begun(store)
    with monkeypatch.context() as patch:
        patch.setattr("parley.stores.postgres.database.CALL_SECONDS", 0.3)
        patch.setattr("parley.stores.postgres.writer.CALL_SECONDS", 0.3)
        port.refuses = True
        port.cut()
        for call in (store.head(FIRST), store.create(OTHER, [], summary()), store.acquire(OTHER, address="")):
            with pytest.raises(StoreFailed) as failed:
                await call
            address = urlsplit(port.url)
            assert f"PostgreSQL at 127.0.0.1:{address.port}{address.path} cannot be reached: " in str(failed.value)
            assert PASSWORD not in str(failed.value)
        soon = asyncio.get_running_loop().time() + 0.1
        with pytest.raises(StoreFailed, match="cannot be reached"):
            await store.append(lease, [said(1, "never")], summary(), until=soon)
        with pytest.raises(StoreFailed):
            await store.writable(until=soon)

    port.refuses = False
    await store.append(lease, [said(1, "one")], summary())

    assert await everything_in(store) == [said(1, "one")]
    await store.close()


async def test_an_append_waits_until_the_database_is_back(port: DatabasePort) -> None:
    store = PostgresStore(port.url)
    lease = await begun(store)
    port.hold()
    append = store.append(lease, [said(1, "one")], summary())
    await port.wait_held()
    port.cut()
    port.flow()
    await append

    assert await everything_in(store) == [said(1, "one")]
    await store.close()


@pytest.mark.waits
async def test_a_frozen_holder_gives_its_lease_up_before_another_takes_it_and_is_fenced(
    port: DatabasePort, databases: Databases
) -> None:
    frozen = PostgresStore(port.url, lease_seconds=SHORT_LEASE)
    other = PostgresStore(databases.url(), lease_seconds=SHORT_LEASE)
    await frozen.create(FIRST, [], summary())
    lost: list[str] = []
    lease = await frozen.acquire(FIRST, address="", on_lost=lambda: lost.append("given up"))
    port.hold()
    late = frozen.append(lease, [said(1, "late")], summary())
    taken = await until_acquired(other)
    assert lost == ["given up"]
    with pytest.raises(LeaseLost):
        await late
    port.flow()

    await other.append(taken, [said(taken.last + 1, "of the other")], summary())
    with pytest.raises(LeaseLost):
        await frozen.append(lease, [said(1, "later")], summary())
    with pytest.raises(LeaseLost):
        await frozen.delete(lease)
    assert [entry.body for entry in await everything_in(other)] == [said(1, "of the other").body]
    assert lost == ["given up"]
    await other.close()
    await frozen.acquire(FIRST, address="")  # as a new holder
    keeper = frozen._open.keeper
    assert not keeper.may_steal
    await until(lambda: keeper.may_steal)
    await frozen.close()


async def test_a_holder_whose_connections_end_loses_its_lease_at_once(
    port: DatabasePort, databases: Databases
) -> None:
    dead, other = PostgresStore(port.url, lease_seconds=3600), PostgresStore(databases.url(), lease_seconds=3600)
    lost: list[str] = []
    await dead.create(FIRST, [], summary())
    lease = await dead.acquire(FIRST, address="", on_lost=lambda: lost.append("lost"))
    assert await acquired(other) is None
    port.refuses = True
    port.cut()
    taken = await until_acquired(other)
    assert (await other.head(FIRST)).epoch == taken.epoch > lease.epoch
    port.refuses = False

    await until(lambda: lost == ["lost"])
    with pytest.raises(LeaseLost):
        await dead.append(lease, [said(1, "late")], summary())
    assert await everything_in(other) == []
    await dead.close()
    await other.close()


async def test_a_store_that_has_reconnected_takes_no_leases_from_others_for_two_lease_times(
    port: DatabasePort, databases: Databases
) -> None:
    store, dead = PostgresStore(port.url, lease_seconds=60), PostgresStore(databases.url(), lease_seconds=60)
    await begun(dead)
    await store.create(OTHER, [], summary())
    await store.acquire(OTHER, address="")
    port.cut()
    parts = store._open
    await until(lambda: not parts.keeper.may_steal)
    assert dead._parts is not None
    dead._parts.keeper._unregister()  # as if its process had been killed

    assert await acquired(store) is None
    parts.keeper._steals_after = 0.0
    await until_acquired(store)
    await store.close()
    await dead.close()


async def until_acquired(store: Store) -> Lease:
    while (lease := await acquired(store)) is None:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    return lease


async def test_cancelling_a_caller_does_not_stop_a_write(port: DatabasePort, databases: Databases) -> None:
    store, direct = PostgresStore(port.url), PostgresStore(databases.url())
    await store.tokens()
    port.hold()
    creating = asyncio.ensure_future(store.create(FIRST, answers(1, 2), summary()))
    await port.wait_held()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    port.flow()
    await store.close()

    assert await everything_in(direct) == answers(1, 2)
    await direct.close()


@pytest.mark.long
async def test_what_was_acknowledged_survives_a_crash_of_the_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    import tempfile

    server = PostgresServer(Path(tempfile.mkdtemp()) / "server", fsync=True)
    server.directory.parent.chmod(0o755)
    server.create()
    server.start()
    try:
        store = PostgresStore(server.url, lease_seconds=600)
        lease = await begun(store)
        loop = asyncio.get_running_loop()
        last = 0
        for _ in range(2):
            appends = []
            for _ in range(20):
                last += 1
                appends.append(store.append(lease, [said(last, f"{last}")], summary(state="running")))
                await asyncio.sleep(0)
            await loop.run_in_executor(None, server.crash)
            await loop.run_in_executor(None, server.start)
            await asyncio.gather(*appends)

        assert await everything_in(store) == [said(seq, f"{seq}") for seq in range(1, last + 1)]
        assert (await store.head(FIRST)).last == Seq(last)
        await store.close()
    finally:
        server.remove()
        server.directory.parent.rmdir()
