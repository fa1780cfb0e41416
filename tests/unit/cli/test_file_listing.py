"""The files that completion offers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.cli.chat import file_listing
from parley.cli.chat.file_listing import list_files


@pytest.fixture(autouse=True)
def no_rules_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-settings"))


def make(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")


def test_ignored_hidden_and_secret_files_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "project"
    make(root, "app.py", "build/out.bin", "src/main.py", "src/old.log", ".env", ".git/config", "src/.hidden")
    make(root, "server.pem", "id_rsa", "credentials.json", "src/credentials.py", "node_modules/x/index.js")
    (root / ".gitignore").write_text("build/\n")
    (root / "src" / ".gitignore").write_text("*.log\n")

    assert list_files(str(root)) == ["app.py", "src/", "src/credentials.py", "src/main.py"]


def test_the_rules_above_the_directory_apply_up_to_the_top_of_the_repository(tmp_path: Path) -> None:
    root = tmp_path / "project"
    make(root, "a/b/keep.txt", "a/b/drop.tmp", "a/b/local.txt", ".git/info/exclude")
    (root / ".gitignore").write_text("*.tmp\n")
    (root / ".git" / "info" / "exclude").write_text("/a/b/local.txt\n")
    (tmp_path / ".gitignore").write_text("*.txt\n")

    assert list_files(str(root / "a" / "b")) == ["keep.txt"]


def test_links_to_directories_are_not_followed_and_rules_in_pipes_do_not_block(tmp_path: Path) -> None:
    make(tmp_path, "a/file")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / ".gitignore")

    assert list_files(str(tmp_path)) == ["a/", "loop", "a/file"]


def test_names_that_are_not_utf_8_can_be_encoded(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).touch()

    assert list_files(str(tmp_path)) == ["caf?"]


def test_the_list_has_a_limit_and_begins_with_the_shortest_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a/b/c/deep", "a/x", "top")
    monkeypatch.setattr(file_listing, "MAX_PATHS", 3)

    assert list_files(str(tmp_path)) == ["a/", "top", "a/b/"]


def test_a_listing_can_be_stopped(tmp_path: Path) -> None:
    make(tmp_path, "file")

    assert list_files(str(tmp_path), is_stopped=lambda: True) == []
