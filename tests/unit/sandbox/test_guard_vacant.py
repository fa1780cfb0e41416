"""A `.git` that was not there is not there afterwards."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from kit.attacks.nobody import NOBODY, as_nobody
from kit.builders.bounds import bounds
from kit.builders.trees import tree
from kit.system.git_guard import command, put_back, without_refused
from parley.sandbox.vacancies import Vacancy


@pytest.mark.parametrize("how", ["folder", "link", "file"])
def test_a_git_that_was_not_there_is_not_there(tmp_path: Path, how: str) -> None:
    told: list[str] = []
    with command(bounds(tmp_path), told):
        if how == "folder":
            for name in ("hooks", "info", "objects"):
                (tmp_path / ".git" / name).mkdir(parents=True)
        elif how == "link":
            (tmp_path / ".git").symlink_to("elsewhere")
        else:
            (tmp_path / ".git").write_text("gitdir: elsewhere")

    assert without_refused(tree(tmp_path)) == {}
    kept = None if how == "link" else f"{tmp_path}/.refused-X-.git"
    assert told == put_back(tmp_path / ".git", "it", kept=kept)


def test_the_mount_point_of_another_server_is_left_to_it(tmp_path: Path) -> None:
    told: list[str] = []
    with command(bounds(tmp_path), told):
        theirs = Vacancy.taken(f"{tmp_path}/.git")
    assert theirs is not None
    assert list(tree(tmp_path)) == [".git"]
    with command(bounds(tmp_path), told):
        theirs.leave()
    assert told == []
    assert list(tree(tmp_path)) == []


def test_an_empty_git_is_removed_and_nobody_told(tmp_path: Path) -> None:
    told: list[str] = []
    with command(bounds(tmp_path), told):
        (tmp_path / ".git").mkdir()

    assert (tree(tmp_path), told) == ({}, [])


def test_an_empty_git_that_somebody_keeps_locked_is_left_and_nobody_told(tmp_path: Path) -> None:
    told: list[str] = []
    with command(bounds(tmp_path), told):
        (tmp_path / ".git").mkdir()
        descriptor = os.open(tmp_path / ".git", os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)

    assert (list(tree(tmp_path)), told) == ([".git"], [])


def test_a_git_that_another_user_puts_where_all_may_write_is_left_and_nobody_told(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    tmp_path.chmod(0o1777)
    told: list[str] = []
    with command(bounds(tmp_path), told):
        (tmp_path / ".git/hooks").mkdir(parents=True)
        os.chown(tmp_path / ".git", NOBODY, NOBODY)

    assert (list(tree(tmp_path)), told) == ([".git", ".git/hooks"], [])


AS_NOBODY = """
import os, tempfile
from pathlib import Path
from kit.builders.bounds import bounds
from kit.system.git_guard import command

for shut in (".git", ".git/hooks", ".git/info"):
    for mode in (0, 0o555):
        with tempfile.TemporaryDirectory() as folder:
            project, told = Path(folder).resolve(), []
            with command(bounds(project), told):
                for name in ("hooks", "info"):
                    (project / ".git" / name).mkdir(parents=True)
                    (project / ".git" / name / "x").touch()
                (project / ".git/config").write_text("evil")
                (project / shut).chmod(mode)
            print(os.path.lexists(project / ".git"), len(told))
            for kept in project.iterdir():
                for each in (kept, kept / "hooks", kept / "info"):
                    each.chmod(0o700)
"""


def test_a_git_that_was_shut_by_an_ordinary_user_is_not_there_either() -> None:
    assert as_nobody("-c", AS_NOBODY) == "False 2\n" * 6
