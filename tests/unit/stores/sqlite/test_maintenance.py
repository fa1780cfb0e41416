"""Copies of a database while other processes write to it."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

from parley.stores.sqlite.maintenance import copy_to


class Faster(Event):
    """An event that is never set, and creates another copy of the same name when it is checked."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def is_set(self) -> bool:
        self._path.write_text("theirs")
        return False


def test_a_copy_does_not_take_the_name_of_one_that_was_faster(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(tmp_path / "parley.db")) as db:
        db.execute("CREATE TABLE t (x)")
        assert not copy_to(db, str(copy), Faster(copy))

    assert copy.read_text() == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["copy", "parley.db"]


def test_two_copies_to_one_name_at_once_are_one_copy_and_one_refusal(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "parley.db")) as db:
        db.execute("CREATE TABLE t (x)")

    def copied() -> bool:
        with closing(sqlite3.connect(tmp_path / "parley.db")) as db:
            return copy_to(db, str(tmp_path / "copy"), Event())

    with ThreadPoolExecutor() as pool:
        results = [task.result() for task in [pool.submit(copied) for _ in range(8)]]

    assert sorted(results) == [False] * 7 + [True]
    assert sorted(os.listdir(tmp_path)) == ["copy", "parley.db"]
