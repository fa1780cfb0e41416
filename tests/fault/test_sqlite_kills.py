"""A process that is killed while it writes: confirmed writes are stored, and other processes continue."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path

import pytest

from kit.builders.entries import FIRST, everything_in, said, summary
from kit.servers.store_process import StoreProcess
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId


def writes_until_killed(home: Path, commits: int, delay_seconds: float) -> int:
    """Kill a process some time after a number of its commits; return the last position that it reported."""
    with StoreProcess(home) as child:
        child.ask("acquire", FIRST)
        child.tell("append_for_ever", FIRST)
        reached = [child.on_notification() for _ in range(commits)][-1]
        time.sleep(delay_seconds)
        child.kill()
        last: int = (child.received() or [reached])[-1][0]
        return last


async def survives_kills(home: Path, commits: list[int]) -> None:
    chance = random.Random(len(commits))
    store = SqliteStore(str(home))
    await store.create(FIRST, [], summary())
    for number in commits:
        acknowledged = writes_until_killed(home, number, chance.random() * 0.002)

        found = await everything_in(store)
        lease = await store.acquire(FIRST, address="")
        assert [entry.seq for entry in found] == list(range(1, lease.last + 1))
        assert lease.last >= acknowledged
        await store.append(lease, [said(lease.last + 1, "after the crash")], summary())
        await store.release(lease)
    await store.close()
    assert intact(home)


def intact(home: Path) -> bool:
    db = sqlite3.connect(home / "parley.db")
    found = db.execute("PRAGMA integrity_check").fetchall()
    db.close()
    return found == [("ok",)]


async def test_acknowledged_entries_survive_the_end_of_the_process(tmp_path: Path) -> None:
    await survives_kills(tmp_path, [1, 7])


@pytest.mark.long
async def test_acknowledged_entries_survive_a_kill_at_every_commit(tmp_path: Path) -> None:
    await survives_kills(tmp_path, list(range(1, 151)))


@pytest.mark.long
async def test_four_processes_that_are_killed_all_the_time_spoil_nothing(tmp_path: Path) -> None:
    names = [ConversationId(f"conversation-{number}") for number in range(4)]
    store = SqliteStore(str(tmp_path))
    for name in names:
        await store.create(name, [], summary())
    acknowledged = append_with_kills(tmp_path, names, seconds=8)

    for name in names:
        found = await everything_in(store, name)
        assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
        assert len(found) >= acknowledged[name] > 0
    await store.close()
    assert intact(tmp_path)


def append_with_kills(home: Path, names: list[ConversationId], *, seconds: float) -> dict[ConversationId, int]:
    """Run processes that write as fast as possible and are killed and restarted; return the last position of
    each."""
    chance = random.Random(5)
    reached = dict.fromkeys(names, 0)
    children = {name: started(home, name) for name in names}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.4)
        name = chance.choice(names)
        reached[name] = ended(children[name], reached[name])
        children[name] = started(home, name)
    return {name: ended(child, reached[name]) for name, child in children.items()}


def started(home: Path, name: str) -> StoreProcess:
    child = StoreProcess(home)
    child.tell("acquire", name)
    child.tell("append_for_ever", name)
    return child


def ended(child: StoreProcess, before: int) -> int:
    """Wait for the child to end, and return the last position that it reported."""
    with child:
        child.kill()
        received = child.received()
    return received[-1][0] if len(received) > 1 else before


async def test_a_dead_owner_is_found_at_once(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    with StoreProcess(tmp_path) as child:
        epoch, _ = child.ask("acquire", FIRST)
        before = await store.head(FIRST)
        child.kill()
        after = await store.head(FIRST)
        lease = await store.acquire(FIRST, address="")
    await store.close()

    assert before.owner is not None
    assert (before.owner.pid, before.owner.address) == (child.pid, f"of {child.pid}")
    assert after.owner is None
    assert lease.epoch > epoch


async def test_a_power_cut_takes_back_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The synced part of the log is on disk, followed by arbitrary data."""
    home = tmp_path / "home"
    with StoreProcess(home) as child:
        child.ask("create", FIRST)
        child.ask("acquire", FIRST)
        child.tell("append_for_ever", FIRST)
        reached = [child.on_notification() for _ in range(12)]
        child.kill()
        reached += child.received()
    database, wal = (home / "parley.db").read_bytes(), (home / "parley.db-wal").read_bytes()
    chance = random.Random(3)

    for number, (last, size) in enumerate(reached[:12]):
        cut = tmp_path / f"cut-{number}"
        cut.mkdir()
        (cut / "parley.db").write_bytes(database)
        torn = wal[size : size + chance.randrange(1, 6000)] if number % 2 else b""
        (cut / "parley.db-wal").write_bytes(wal[:size] + torn[:-1] + chance.randbytes(chance.randrange(9000)))
        store = SqliteStore(str(cut))
        found = await everything_in(store)
        lease = await store.acquire(FIRST, address="")
        await store.append(lease, [said(lease.last + 1, "after the power cut")], summary())
        await store.close()

        assert [entry.seq for entry in found] == list(range(1, lease.last + 1))
        assert lease.last >= last
        assert intact(cut)


async def test_the_home_is_closed_to_programs_that_are_started(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    ours = [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_in(fd, tmp_path)]
    inheritable = [os.readlink(f"/proc/self/fd/{fd}") for fd in ours if os.get_inheritable(fd)]
    await store.close()

    assert ours
    assert inheritable == []
    assert not [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_in(fd, tmp_path)]


def is_in(fd: int, home: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(home))
    except FileNotFoundError:
        return False
