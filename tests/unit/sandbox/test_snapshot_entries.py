"""Reading and restoring the entries of a snapshot through descriptors. `test_snapshot.py` tests which entries are
protected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.common.guarded_files import DirFds
from parley.sandbox.snapshot_entries import (
    ABSENT,
    Entry,
    File,
    Link,
    create,
    is_same,
    move_aside,
    names_in,
    read_entry,
)


def looked_at(path: Path, *, at_most: int = 100) -> Entry:
    with DirFds() as folders:
        return read_entry(folders, str(path), at_most=at_most)


def test_a_file_that_is_created_again_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o750)
    before = looked_at(path)
    path.write_bytes(b"planted")
    path.chmod(0o777)

    assert not is_same(before, looked_at(path))
    assert create(str(path), before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"#!/bin/sh\n", 0o750)
    assert is_same(before, looked_at(path))


def test_a_link_is_read_and_created_without_following_it(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to("missing")
    before = looked_at(path)
    path.unlink()

    assert (before, looked_at(path)) == (Link("missing"), ABSENT)
    assert create(str(path), before)
    assert path.readlink() == Path("missing")


def test_a_file_that_is_too_large_cannot_be_created_again(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"12345")
    entry = looked_at(path, at_most=4)

    assert isinstance(entry, File)
    assert entry.content is None
    assert not create(str(path), entry)


def test_a_directory_with_too_many_names_has_none(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()

    with DirFds() as folders:
        assert names_in(folders, str(tmp_path), at_most=3) == frozenset("abc")
        assert names_in(folders, str(tmp_path), at_most=2) is None


def test_a_file_in_a_linked_directory_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").touch()
    (tmp_path / "linked").symlink_to("outside")

    with pytest.raises(OSError, match="symbolic link"):
        looked_at(tmp_path / "linked/file")


def test_a_file_that_is_moved_aside_keeps_its_content_under_a_new_name(tmp_path: Path) -> None:
    path = tmp_path / "added"
    path.write_bytes(b"planted")
    new = Path(move_aside(str(path), str(tmp_path)))

    assert os.listdir(tmp_path) == [new.name]
    assert new.name.startswith(".refused-")
    assert new.name.endswith("-added")
    assert new.read_bytes() == b"planted"
