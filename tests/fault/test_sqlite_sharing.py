"""Several processes on one home, which exclude each other only where it is necessary."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest

from kit.builders.entries import FIRST, OTHER, everything_in, said, summary
from kit.servers.lock_holders import held_by_flock
from kit.servers.store_process import StoreProcess
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.errors import LeaseLost, OwnedElsewhere, StoreFailed, WriteLockHeld
from parley.ports.store import CALL_SECONDS, TURN_SECONDS
from parley.stores.sqlite import lock_holders, read_only
from parley.stores.sqlite.lock_holders import UNKNOWN, holder_in
from parley.stores.sqlite.locks import write_lock_holder
from parley.stores.sqlite.store import SqliteStore

WAIT_SECONDS = 60
ENOUGH = 20
"""The number of writes that shows that a process does not starve."""


async def test_two_processes_exclude_each_other_from_a_conversation_and_from_no_other(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary())
    with StoreProcess(tmp_path) as child:
        child.ask("acquire", FIRST)
        with pytest.raises(OwnedElsewhere) as refused:
            await store.acquire(FIRST, address="")
        other = await store.acquire(OTHER, address="here")
        refused_there = child.ask("acquire", OTHER)
        child.ask("append", FIRST, 3)
        child.ask("release", FIRST)
        first = await store.acquire(FIRST, address="")
        await store.release(other)
        taken_there = child.ask("acquire", OTHER)
    await store.close()

    assert (refused.value.pid, refused.value.address) == (child.pid, f"of {child.pid}")
    assert refused_there == {"error": "OwnedElsewhere", "pid": os.getpid(), "address": "here"}
    assert first.last == 3
    assert taken_there[0] > other.epoch


async def test_two_stores_of_one_process_exclude_each_other_as_well(tmp_path: Path) -> None:
    one, two = SqliteStore(str(tmp_path)), SqliteStore(str(tmp_path))
    await one.create(FIRST, [], summary())
    lease = await one.acquire(FIRST, address="")
    with pytest.raises(OwnedElsewhere):
        await two.acquire(FIRST, address="")
    await one.append(lease, [said(1, "one")], summary())
    await one.close()
    after = await two.acquire(FIRST, address="")
    await two.close()

    assert after.last == 1


@pytest.mark.parametrize("found_by", ["a check", "an append"])
async def test_a_holder_is_notified_once_that_it_has_lost_its_lease(tmp_path: Path, found_by: str) -> None:
    """A lock can be lost if its file is replaced or the file system drops it."""
    notified: list[str] = []
    lost = asyncio.Event()

    def on_lost() -> None:
        notified.append("lost")
        lost.set()

    old, new = SqliteStore(str(tmp_path)), SqliteStore(str(tmp_path))
    await old.create(FIRST, [], summary())
    lease = await old.acquire(FIRST, address="", on_lost=on_lost)
    await old.check()
    assert notified == []
    (tmp_path / "owners.lock").unlink()
    successor = await new.acquire(FIRST, address="")
    if found_by == "a check":
        await old.check()
    with pytest.raises(LeaseLost):
        await old.append(lease, [said(1, "late")], summary())
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await lost.wait()
    await old.check()
    await old.release(lease)
    await new.append(successor, [said(1, "one")], summary())
    await old.close()

    assert (notified, await everything_in(new)) == (["lost"], [said(1, "one")])
    await new.close()


async def test_no_holder_is_notified_of_a_lease_that_it_released_itself(tmp_path: Path) -> None:
    notified: list[str] = []
    store = SqliteStore(str(tmp_path))
    for name in (FIRST, OTHER):
        await store.create(name, [], summary())
    await store.release(await store.acquire(FIRST, address="", on_lost=lambda: notified.append("released")))
    lease = await store.acquire(OTHER, address="", on_lost=lambda: notified.append("deleted"))
    await asyncio.gather(store.delete(lease), store.check())
    await store.acquire(FIRST, address="", on_lost=lambda: notified.append("closed"))
    await store.check()
    await store.close()

    assert notified == []


async def test_no_holder_is_notified_of_its_own_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notified: list[str] = []
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="", on_lost=lambda: notified.append("deleted"))
    deleting = asyncio.create_task(store.delete(lease))
    await asyncio.sleep(0)
    (deletion,) = store._deletions

    async def read_just_after(query: object) -> dict[int, int]:
        """Return the current epochs of the database directly after the deletion."""
        while not deletion.done():  # noqa: ASYNC110 - an awaiting task runs a step too late
            await asyncio.sleep(0)
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(store, "_read", read_just_after)
        await store._verify_leases()
    await deleting
    await store.close()

    assert notified == []


async def test_the_epoch_stops_a_former_owner(tmp_path: Path) -> None:
    """A lock can be lost if its file is replaced or the file system drops it."""
    former = SqliteStore(str(tmp_path))
    await former.create(FIRST, [], summary())
    old = await former.acquire(FIRST, address="")
    (tmp_path / "owners.lock").unlink()
    successor = SqliteStore(str(tmp_path))
    new = await successor.acquire(FIRST, address="")

    with pytest.raises(LeaseLost):
        await former.append(old, [said(1, "of the former")], summary("of the former"))
    with pytest.raises(LeaseLost):
        await former.delete(old)
    await successor.append(new, [said(1, "of the successor")], summary(state="running"))
    with pytest.raises(LeaseLost):
        await former.append(old, [said(2, "of the former")], summary("of the former"))
    await former.close()

    assert await everything_in(successor) == [said(1, "of the successor")]
    assert (await successor.head(FIRST)).summary == summary(state="running")
    assert (await successor.head(FIRST)).owner is not None
    await successor.close()


async def test_a_stopped_process_keeps_others_from_writing_not_from_reading(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [said(1, "one")], summary())
    lease = await store.acquire(FIRST, address="")
    with StoreProcess(tmp_path) as child:
        child.ask("hold_the_write_lock")
        os.kill(child.pid, signal.SIGSTOP)
        written = store.append(lease, [said(2, "two")], summary())
        read = await everything_in(store)
        was_written = written.done()
        child.kill()
        async with asyncio.timeout(WAIT_SECONDS):
            await written
    await store.close()

    assert (read, was_written) == ([said(1, "one")], False)


@pytest.mark.long
async def test_closing_does_not_wait_forever_for_a_stopped_process(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="")
    with StoreProcess(tmp_path) as child:
        child.ask("hold_the_write_lock")
        os.kill(child.pid, signal.SIGSTOP)
        written = [store.append(lease, [said(seq, "text")], summary()) for seq in (1, 2)]
        await store.close()
        failed = await asyncio.gather(*written, return_exceptions=True)
    again = SqliteStore(str(tmp_path))
    found = await everything_in(again)
    await again.close()

    assert [type(error) for error in failed] == [StoreFailed, StoreFailed]
    assert found == []


async def test_no_writer_starves_while_another_writes_without_pause(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary())
    lease = await store.acquire(OTHER, address="")
    ours = 0
    with StoreProcess(tmp_path) as child:
        child.ask("acquire", FIRST)
        child.tell("append_for_ever", FIRST)
        theirs = threading.Thread(target=lambda: [child.on_notification() for _ in range(ENOUGH)])
        theirs.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while ours < ENOUGH or theirs.is_alive():
                ours += 1
                await store.append(lease, [said(ours, "text")], summary())
        is_alive = child.is_alive()
    await store.close()

    assert is_alive


async def test_a_write_that_waits_too_long_fails_and_is_never_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary())
    lease, other = await store.acquire(FIRST, address=""), await store.acquire(OTHER, address="")
    loop = asyncio.get_running_loop()
    now, passed = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: now() + passed)
    with held_by_flock(tmp_path) as held:
        call = store.append(lease, [said(1, "of a call")], summary(), until=loop.time() + CALL_SECONDS)
        turns = store.append(other, [said(1, "of a turn")], summary())
        await until(lambda: bool(store._writer.waiting_seconds))
        passed = CALL_SECONDS
        with pytest.raises(WriteLockHeld) as refused:
            await call
        is_pending = not turns.done()
        passed += TURN_SECONDS
        with pytest.raises(WriteLockHeld):
            await turns
        held.release()
    await store.append(other, [said(1, "later")], summary())
    found = [await everything_in(store, name) for name in (FIRST, OTHER)]
    await store.close()

    assert (is_pending, found) == (True, [[], [said(1, "later")]])
    assert refused.value.holder.startswith(f"process {held.holder} (flock, running since ")


def test_a_holder_in_another_pid_namespace_is_not_called_process_0(tmp_path: Path) -> None:
    file = tmp_path / "write.lock"
    file.touch()
    inode = file.stat().st_ino

    assert holder_in(f"1: FLOCK  ADVISORY  WRITE 0 08:01:{inode} 0 EOF\n", {inode}) == UNKNOWN
    assert holder_in(f"1: -> FLOCK  ADVISORY  WRITE {os.getpid()} 08:01:{inode} 0 EOF\n", {inode}) is None
    assert holder_in(f"1: POSIX  ADVISORY  READ {os.getpid()} 08:01:{inode} 124 124\n", {inode}) is None
    held = holder_in(f"1: POSIX  ADVISORY  WRITE {os.getppid()} 08:01:{inode} 120 120\n", {inode})
    assert held is not None
    assert held.startswith(f"process {os.getppid()} (")


def test_a_process_that_waits_for_the_write_lock_does_not_name_itself(tmp_path: Path) -> None:
    with (tmp_path / "gate.lock").open("wb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)

        assert write_lock_holder(str(tmp_path)) is None


def test_a_lock_that_one_read_of_the_table_of_locks_lacks_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, lacking = lock_holders._read, ["", ""]
    monkeypatch.setattr(
        lock_holders, "_read", lambda path: lacking.pop() if path == "/proc/locks" and lacking else read(path)
    )
    (tmp_path / "write.lock").touch()
    with held_by_flock(tmp_path) as held:
        named = write_lock_holder(str(tmp_path))

    assert named is not None
    assert (named.startswith(f"process {held.holder} (flock, "), lacking) == (True, [])


async def test_a_read_waits_for_the_home_to_be_opened_if_the_lock_was_just_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreProcess(tmp_path) as child:
        child.ask("create", FIRST)
        child.kill()
    (tmp_path / "parley.db-shm").unlink()  # so that the log has to be recovered
    store = SqliteStore(str(tmp_path))
    with held_by_flock(tmp_path) as held:

        def released(home: str) -> str | None:
            if not released_before:
                held.release()
                released_before.append(home)
            return None

        released_before: list[str] = []
        monkeypatch.setattr(read_only, "write_lock_holder", released)
        found = await store.head(FIRST)
    await store.close()

    assert (found.summary, released_before) == (summary(), [str(tmp_path)])
