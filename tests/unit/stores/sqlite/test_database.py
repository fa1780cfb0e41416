"""The options of the open database on which durability and sharing depend."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kit.builders.databases import open_home
from parley.errors import BadHome
from parley.stores.sqlite.database import Database
from parley.stores.sqlite.queries import read_snapshot
from parley.stores.sqlite.read_only import check_database
from parley.stores.sqlite.schema import MIGRATIONS


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Database]:
    opened = open_home(str(tmp_path))
    yield opened
    opened.lease_locks.close()
    opened.close()


def setting(db: sqlite3.Connection, name: str) -> object:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return value


def test_a_commit_is_durable_and_nothing_is_folded_in_without_the_lock(opened: Database) -> None:
    names = ("journal_mode", "synchronous", "wal_autocheckpoint", "auto_vacuum", "user_version")
    full, incremental = 2, 2

    assert [setting(opened.writer, name) for name in names] == ["wal", full, 0, incremental, len(MIGRATIONS)]
    assert opened.read(lambda db: [setting(db, name) for name in names]) == [
        "wal",
        full,
        0,
        incremental,
        len(MIGRATIONS),
    ]


@pytest.mark.parametrize("use", [open_home, check_database])
def test_a_sqlite_that_is_too_old_is_named_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[str], object]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.31.1")
    home = tmp_path / "home"

    with pytest.raises(BadHome, match=r"this Python has SQLite 3\.31\.1, and Parley needs 3\.33\.0 or newer"):
        use(str(home))
    assert not home.exists()


def test_a_reader_cannot_write(opened: Database) -> None:
    with pytest.raises(BadHome):
        opened.read(lambda db: db.execute("DELETE FROM entries"))


def test_a_reader_sees_one_moment(opened: Database) -> None:
    def counted_twice(db: sqlite3.Connection) -> list[int]:
        count = "SELECT count(*) FROM removed"
        with read_snapshot(db):
            before = db.execute(count).fetchone()[0]
            opened.writer.execute("INSERT INTO removed VALUES (1, 1)")
            return [before, db.execute(count).fetchone()[0]]

    assert opened.read(counted_twice) == [0, 0]
    assert opened.read(lambda db: db.in_transaction) is False


def test_a_look_at_a_database_changes_nothing_and_says_what_opening_would(tmp_path: Path) -> None:
    def newer(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")

    def foreign(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE x (y)")

    def text(path: Path) -> None:
        path.write_text("?" * 5000)

    makers: dict[str, Callable[[Path], None]] = {
        "newer": newer,
        "foreign": foreign,
        "text": text,
        "directory": Path.mkdir,
    }
    for name, make in makers.items():
        home = tmp_path / f"{name}?#%20"
        home.mkdir()
        make(home / "parley.db")

        with pytest.raises(BadHome) as looked:
            check_database(str(home))
        assert [path.name for path in home.iterdir()] == ["parley.db"]
        with pytest.raises(BadHome) as opened:
            open_home(str(home))
        assert str(looked.value) == str(opened.value)


def files_in(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir()}


def test_a_look_at_a_database_in_use_finds_nothing_wrong(opened: Database, tmp_path: Path) -> None:
    files = sorted(tmp_path.iterdir())
    check_database(str(tmp_path))

    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("left", ["all", "no shared memory"])
def test_a_look_counts_what_is_in_the_log_and_not_yet_in_the_file(
    opened: Database, tmp_path: Path, left: str
) -> None:
    """A checkpoint was interrupted after the first page, which refers to pages that only the log has."""
    database, killed = tmp_path / "parley.db", tmp_path / "killed"
    opened.writer.execute("CREATE TABLE more AS SELECT zeroblob(100000)")
    killed.mkdir()
    for name in ("parley.db-wal", "parley.db-shm")[: 1 if left == "no shared memory" else 2]:
        (killed / name).write_bytes((tmp_path / name).read_bytes())
    rest = database.read_bytes()[4096:]
    opened.writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
    (killed / "parley.db").write_bytes(database.read_bytes()[:4096] + rest)
    before = files_in(killed)

    check_database(str(killed))

    assert files_in(killed) == before
    with closing(sqlite3.connect(killed / "parley.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_look_finds_the_newer_version_that_is_only_in_the_log(opened: Database, tmp_path: Path) -> None:
    opened.writer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")

    with pytest.raises(BadHome, match="a newer version of Parley"):
        check_database(str(tmp_path))
