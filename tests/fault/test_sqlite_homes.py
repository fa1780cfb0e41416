"""Homes that cannot hold conversations, and full disks: a clear error, and no damage."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kit.builders.entries import FIRST, OTHER, answers, everything_in, said, summary
from kit.servers.store_process import StoreProcess
from kit.system.mounts import MOUNTS, UNSHARED
from parley.client import ToolFailed
from parley.errors import BadHome, HomeLost, StoreFailed
from parley.stores.sqlite.read_only import check_database
from parley.stores.sqlite.schema import MIGRATIONS
from parley.stores.sqlite.store import SqliteStore
from parley.testing import ParleyProcess, ScriptedModel

BIG = 400_000
"""The size of a message in bytes, which exceeds the free space of a nearly full disk."""


async def refusal(home: Path) -> str:
    store = SqliteStore(str(home))
    with pytest.raises(BadHome) as refused:
        await store.create(FIRST, [], summary())
    with pytest.raises(BadHome):
        await store.head(FIRST)
    await store.close()
    assert str(refused.value) == f"{home}: {refused.value.detail}"
    return refused.value.detail


async def made(home: Path) -> None:
    store = SqliteStore(str(home))
    await store.create(FIRST, answers(1, 200), summary())
    await store.close()


async def test_a_home_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    await made(tmp_path)
    db = sqlite3.connect(tmp_path / "parley.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = (tmp_path / "parley.db").read_bytes()

    said = await refusal(tmp_path)

    known = len(MIGRATIONS)
    assert (
        said
        == f"the conversations here were written by a newer version of Parley (format 99; this one knows {known})"
    )
    assert (tmp_path / "parley.db").read_bytes() == before


async def test_a_server_writes_nothing_more_once_a_newer_version_has_changed_the_format(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with ParleyProcess(parley_model, home=home) as parley:
        conversation = await parley.create()
        with closing(sqlite3.connect(home / "parley.db")) as db:
            db.execute("PRAGMA user_version = 99")
        with pytest.raises(ToolFailed, match="were written by a newer version of Parley"):
            await conversation.send("more")
        with pytest.raises(ToolFailed, match="were written by a newer version of Parley"):
            await parley.create()
    with closing(sqlite3.connect(home / "parley.db")) as db:
        written = db.execute("SELECT count(*), max(last) FROM conversations").fetchone()

    assert written == (1, 1)


def test_a_deleted_conversation_is_gone_though_its_space_cannot_be_reclaimed(tmp_path: Path) -> None:
    with StoreProcess(tmp_path) as process:
        process.ask("create", FIRST)
        process.ask("acquire", FIRST)
        process.ask("append", FIRST, 1000, 2000)
        process.ask("limit_files", (tmp_path / "parley.db-wal").stat().st_size + 64 * 1024)
        deleted = process.ask("delete", FIRST)
        owner = process.ask("owner", FIRST)
        process.ask("limit_files", None)
        process.ask("create", OTHER)
        process.ask("acquire", OTHER)
        process.ask("delete", OTHER)
    with closing(sqlite3.connect(tmp_path / "parley.db")) as db:
        left = db.execute("SELECT count(*) FROM entries").fetchone()

    assert (deleted, owner) == (None, {"error": "UnknownConversation"})
    assert left == (0,)


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "parley.db").write_bytes(b"Dear diary, " * 1000)

    said = await refusal(tmp_path)

    assert said.startswith("the database is damaged (file is not a database); nothing in it was changed. ")
    assert (tmp_path / "parley.db").read_bytes() == b"Dear diary, " * 1000


async def test_a_database_of_another_program_is_not_changed(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "parley.db")
    db.execute("CREATE TABLE diary (day)")
    db.close()
    before = (tmp_path / "parley.db").read_bytes()

    said = await refusal(tmp_path)

    assert said == "parley.db is not a database of Parley"
    assert (tmp_path / "parley.db").read_bytes() == before


async def test_a_damaged_database_is_reported_as_damaged(tmp_path: Path) -> None:
    await made(tmp_path)
    with (tmp_path / "parley.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (file.seek(0, os.SEEK_END) - 4096))
        file.seek(4096)
        file.write(b"\xff" * 20000)
    store = SqliteStore(str(tmp_path))

    with pytest.raises(BadHome) as refused:
        await everything_in(store)
    await store.close()

    assert refused.value.detail.startswith("the database is damaged (")


@pytest.mark.parametrize("has_locks", [True, False])
async def test_an_empty_database_is_damage(tmp_path: Path, has_locks: bool) -> None:
    if has_locks:
        await made(tmp_path)
    (tmp_path / "parley.db").write_bytes(b"")

    said = await refusal(tmp_path)
    with pytest.raises(BadHome) as looked:
        check_database(str(tmp_path))
    (tmp_path / "parley.db").unlink()
    await made(tmp_path)

    assert said == looked.value.detail
    assert said == (
        "the database is damaged: parley.db is empty; "
        "restore it from a backup, or remove it to start with an empty home"
    )


async def test_a_database_that_is_a_link_is_refused(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    await made(elsewhere)
    home.mkdir()
    (home / "parley.db").symlink_to(elsewhere / "parley.db")

    said = await refusal(home)
    with pytest.raises(BadHome) as looked:
        check_database(str(home))

    assert said == looked.value.detail
    assert said == (
        f"parley.db is a symbolic link to {elsewhere}/parley.db, and SQLite would keep its log there; move the "
        "database into the home, or set PARLEY_HOME to the directory of the database"
    )


async def test_a_log_without_its_database_is_damage(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "one"))
    await store.create(FIRST, answers(1, 200), summary())
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "parley.db-wal").write_bytes((tmp_path / "one" / "parley.db-wal").read_bytes())
    await store.close()
    log = (tmp_path / "two" / "parley.db-wal").read_bytes()

    said = await refusal(tmp_path / "two")

    assert said.startswith("the database is damaged: parley.db is missing, but its log parley.db-wal exists; ")
    assert (tmp_path / "two" / "parley.db-wal").read_bytes() == log


async def test_a_directory_in_place_of_the_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parley.db").mkdir()

    assert await refusal(tmp_path) == "conversations cannot be stored here: unable to open database file"


async def test_a_home_that_cannot_be_created_is_reported_and_can_be_created_later(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    store = SqliteStore(str(tmp_path / "home"))
    with pytest.raises(BadHome):
        await store.create(FIRST, [], summary())
    (tmp_path / "home").unlink()
    await store.create(FIRST, [said(1, "one")], summary())

    assert await everything_in(store) == [said(1, "one")]
    await store.close()


@pytest.mark.promises("keeping.removed")
@pytest.mark.parametrize("how", ["removed", "replaced", "removed with its home"])
async def test_nothing_is_written_into_a_database_that_is_not_in_its_place_any_more(
    tmp_path: Path, how: str
) -> None:
    home = tmp_path / "home"
    store = SqliteStore(str(home))
    await store.create(FIRST, [], summary())
    lease = await store.acquire(FIRST, address="")
    moved = home if how == "removed with its home" else home / "parley.db"
    moved.rename(tmp_path / "aside")
    if how == "replaced":
        moved.write_bytes(b"")
    with pytest.raises(HomeLost) as lost:
        await store.append(lease, [said(1, "one")], summary())
    if how == "replaced":
        moved.unlink()
    (tmp_path / "aside").rename(moved)
    with pytest.raises(HomeLost):  # other processes may have written to another database in the meantime
        await store.append(lease, [said(1, "one")], summary())
    await store.close()
    again = SqliteStore(str(home))
    found = await everything_in(again)
    await again.close()

    assert found == []
    assert lost.value.files[0] == "parley.db"
    assert str(lost.value).startswith(f"{home}: parley.db")


@MOUNTS
async def test_a_read_only_home_is_refused(tmp_path: Path) -> None:
    await made(tmp_path)
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    with StoreProcess(tmp_path, inside=(*UNSHARED, mount, str(tmp_path))) as child:
        answer = child.ask("acquire", FIRST)

    assert answer == {
        "error": "BadHome",
        "detail": "conversations cannot be stored here: Read-only file system (os error 30)",
    }


@MOUNTS
def test_a_full_disk_fails_what_is_written_and_nothing_else(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=4m none "$0" && exec "$@"'
    with StoreProcess(tmp_path, inside=(*UNSHARED, mount, str(tmp_path))) as child:
        child.ask("create", FIRST)
        child.ask("acquire", FIRST)
        child.ask("append", FIRST, 3)
        child.ask("fill_the_disk")
        full = [child.ask("append", FIRST, 1, BIG) for _ in range(3)]
        child.ask("make_room")
        after = [child.ask("append", FIRST, 1, BIG), child.ask("append", FIRST, 2)]
        child.ask("release", FIRST)
        last = child.ask("acquire", FIRST)[1]

    assert full == [{"error": "StoreFailed"}] * 3
    assert (after, last) == ([4, 6], 6)


async def test_a_file_that_may_not_grow_fails_what_is_written_and_nothing_else(tmp_path: Path) -> None:
    with StoreProcess(tmp_path) as child:
        child.ask("create", FIRST)
        child.ask("acquire", FIRST)
        child.ask("append", FIRST, 3)
        child.ask("limit_files", (tmp_path / "parley.db-wal").stat().st_size + 10_000)
        limited = [child.ask("append", FIRST, 1, BIG) for _ in range(3)]
        owner = child.ask("owner", FIRST)
        child.ask("limit_files", None)
        after = [child.ask("append", FIRST, 1, BIG), child.ask("append", FIRST, 2)]
        child.ask("close")
    store = SqliteStore(str(tmp_path))
    found = await everything_in(store)
    await store.close()

    assert limited == [{"error": "StoreFailed"}] * 3
    assert (owner, after) == (child.pid, [4, 6])
    assert [entry.seq for entry in found] == [1, 2, 3, 4, 5, 6]


async def test_appends_after_a_failed_one_fail_as_well(tmp_path: Path) -> None:
    """The later append was submitted before the first one failed. A log must not have gaps."""
    store = SqliteStore(str(tmp_path))
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary())
    lease, other = await store.acquire(FIRST, address=""), await store.acquire(OTHER, address="")
    impossible = said(1, "one")
    written = [
        store.append(lease, [impossible, impossible], summary()),  # SQLite refuses the second
        store.append(lease, [said(3, "three")], summary()),
        store.append(other, [said(1, "of another")], summary()),
    ]

    failed = await asyncio.gather(*written, return_exceptions=True)

    assert [type(one) for one in failed] == [StoreFailed, StoreFailed, type(None)]
    assert (await everything_in(store), await everything_in(store, OTHER)) == ([], [said(1, "of another")])
    await store.close()
