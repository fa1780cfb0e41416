"""The Git directories that a `.git` file names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.common.git_files import git_dirs


def test_a_worktree_names_its_own_directory_and_the_common_one(tmp_path: Path) -> None:
    own = tmp_path / "repository" / ".git" / "worktrees" / "tree"
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    (tmp_path / ".git").write_text(f"gitdir: {own}\r\n")

    assert list(git_dirs(str(tmp_path / ".git"))) == [str(own), f"{own}/../.."]


def test_a_relative_path_begins_at_the_directory_of_the_file(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: meta/own \n")

    assert list(git_dirs(str(tmp_path / ".git"))) == [f"{tmp_path}/meta/own "]


def test_links_are_followed_as_git_follows_them(tmp_path: Path) -> None:
    (tmp_path / "named").write_text("gitdir: meta\n")
    (tmp_path / ".git").symlink_to("named")

    assert list(git_dirs(str(tmp_path / ".git"))) == [f"{tmp_path}/meta"]


@pytest.mark.parametrize(
    "content", [b"", b"gitdir:", b"gitdir: \n", b"gitdir:meta", b"meta\n", b"gitdir: a\0b", b"\xff"]
)
def test_any_other_content_names_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".git").write_bytes(content)

    assert list(git_dirs(str(tmp_path / ".git"))) == []


@pytest.mark.timeout(60)  # opening a pipe would wait for a writer
def test_anything_but_a_regular_file_names_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (f"{tmp_path}/pipe", str(tmp_path), f"{tmp_path}/none", "a\0b"):
        assert list(git_dirs(path)) == []
