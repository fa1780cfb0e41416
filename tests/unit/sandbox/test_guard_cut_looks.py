"""Looks of the guard that are cut: there is too much, or no time; what is refused then, and put back later."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kit.builders.bounds import bounds
from kit.builders.trees import tree
from kit.system.commands import open_descriptors
from kit.system.git_guard import command, enter, furnish, grow_old, put_back, without_refused
from parley.errors import SandboxUnavailable
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import find


def why_refused(project: Path, guard: Guard | None = None) -> str:
    """Why no command may run there."""
    with pytest.raises(SandboxUnavailable) as refused:
        enter(Guard() if guard is None else guard, find(bounds(project)), [])
    return refused.value.detail


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look take too long."""
    moments = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))


def test_a_file_that_is_too_large_to_be_kept_is_refused(project: Path) -> None:
    with open(project / ".git/hooks/large", "wb") as file:
        os.truncate(file.fileno(), (32 << 20) + 1)

    assert why_refused(project) == f"{project}/.git/hooks cannot be watched: it cannot be read, or holds too much"


def test_a_directory_that_holds_more_than_can_be_remembered_is_refused(project: Path) -> None:
    for number in range(4097):
        (project / f".git/hooks/{number}").touch()
    descriptors = open_descriptors()

    assert why_refused(project) == f"{project}/.git/hooks cannot be watched: it cannot be read, or holds too much"
    assert open_descriptors() == descriptors


def test_submodules_that_hold_more_together_than_can_be_remembered_are_refused(project: Path) -> None:
    for name in ("modules/a/b/config", "worktrees/tree/modules/d/config"):
        with open(project / ".git" / name, "wb") as file:
            os.truncate(file.fileno(), 17 << 20)

    assert why_refused(project).endswith("config cannot be watched: it cannot be read, or holds too much")


def test_a_repository_of_more_parts_than_can_be_watched_is_refused(project: Path) -> None:
    for number in range(257):
        (project / f".git/worktrees/{number}").mkdir()

    why = "it has more than 256 working trees or submodules"
    assert why_refused(project) == f"{project}/.git cannot be watched: {why}"


def test_submodules_that_would_have_to_be_searched_for_are_refused(project: Path) -> None:
    for number in range(4096):
        (project / f".git/modules/part-{number}").mkdir()

    assert why_refused(project) == f"{project}/.git cannot be watched: it holds too much"


LEFT_BY_A_COMMAND = "a command has left more there than can be looked at; delete that, or move it out of there"


def left_as_it_is(project: Path) -> str:
    what = "all of it (it holds too much)"
    return f"{project}/.git is protected: what was done to {what} while the command ran was left as it is"


@pytest.mark.long
@pytest.mark.parametrize(("make", "number"), [(Path.touch, 131_072), (Path.mkdir, 26_250)])
def test_logs_without_end_are_told_of_and_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], number: int
) -> None:
    grow_old(monkeypatch)
    guard, told, logs = Guard(), list[str](), project / ".git/logs"
    for part in ("one", "two"):
        (logs / part).mkdir(parents=True)
    for each in range(number):
        make(logs / "one" / str(each))
    with command(bounds(project), told, guard):
        pass
    assert told == []
    with command(bounds(project), told, guard):
        for each in range(number):
            make(logs / "two" / str(each))
        (logs / "two/zzz").symlink_to("/etc/passwd")
        (project / ".git/modules/a/b/evil").symlink_to("/etc/passwd")

    for whose, why in ((guard, LEFT_BY_A_COMMAND), (Guard(), "it holds too much")):
        assert why_refused(project, whose) == f"{project}/.git cannot be watched: {why}"
    assert told == [*put_back(project / ".git", "logs/two/zzz, modules/a/b/evil"), left_as_it_is(project)]
    assert not (logs / "two/zzz").is_symlink()
    assert not (project / ".git/modules/a/b/evil").is_symlink()


def test_logs_that_are_too_deep_to_be_searched_for_links_are_moved_aside(project: Path) -> None:
    (project / ".git/logs").mkdir()
    told: list[str] = []
    with command(bounds(project), told):
        deep = project / ".git/logs" / "/".join(["d"] * 40)
        deep.mkdir(parents=True)
        (deep / "HEAD").symlink_to("/etc/passwd")

    assert [path for path in (project / ".git/logs").rglob("*") if path.is_symlink()] == []
    assert told == put_back(project / ".git", "logs/" + "/".join(["d"] * 32), kept=f"{project}/.git/.refused-X-d")


def test_of_links_without_end_none_is_left(project: Path) -> None:
    guard, told, before = Guard(), list[str](), tree(project)
    with command(bounds(project), told, guard):
        for number in range(1025):
            (project / f".git/refs/heads/{number}").symlink_to("/evil")
        (project / ".git/COMMIT_EDITMSG").symlink_to("/evil")
    with command(bounds(project), told, guard):
        pass

    assert (tree(project), len(told)) == (before, 1)
    assert told[0].endswith(" and 1018 more while the command ran was put back")


def test_submodules_among_files_without_end_are_moved_aside_and_commands_refused_until_those_are_deleted(
    project: Path,
) -> None:
    guard, told, before, modules = Guard(), list[str](), tree(project), project / ".git/modules"
    with command(bounds(project), told, guard):
        for number in range(4097):
            (modules / f"file-{number}").touch()
        (modules / "evil").mkdir()
        (modules / "evil/config").write_text("evil")
    refused = why_refused(project, guard)
    for number in range(4097):
        (modules / f"file-{number}").unlink()

    assert refused == f"{project}/.git cannot be watched: {LEFT_BY_A_COMMAND}"
    assert told[1] == left_as_it_is(project)
    assert [told[0], told[2]] == put_back(project / ".git", "modules/evil", kept=f"{project}/.git/.refused-X-evil")
    with command(bounds(project), told, guard):
        pass
    assert (without_refused(tree(project)), len(told)) == (before, 3)


class Spoiled:
    """A repository in which a command has left a link that nobody had the time to look for."""

    def __init__(self, project: Path) -> None:
        self.guard, self.link = Guard(), project / ".git/refs/heads/evil"
        self.told: list[str] = []
        with pytest.MonkeyPatch.context() as hurried, command(bounds(project), self.told, self.guard):
            self.link.symlink_to("/etc/passwd")
            hurry(hurried)
        assert (left_as_it_is(project) in self.told, self.link.is_symlink()) == (True, True)
        self.told.clear()


def test_what_nobody_had_the_time_to_look_for_is_put_back_before_the_next_command(
    project: Path, tmp_path: Path
) -> None:
    spoiled = Spoiled(project)
    for number in range(17):
        (tmp_path / f"{number}/.git").mkdir(parents=True)
        with command(bounds(tmp_path / str(number)), spoiled.told, spoiled.guard):
            pass
    assert spoiled.told == []
    watches: list[Watch] = []
    enter(spoiled.guard, find(bounds(project)), watches)

    assert not spoiled.link.is_symlink()
    said = spoiled.guard.leave(watches)
    assert [(each.text, each.is_fault) for each in said] == [
        (text, False) for text in put_back(project / ".git", "refs/heads/evil")
    ]
    with command(bounds(project), spoiled.told, spoiled.guard):
        pass
    assert spoiled.told == []


def test_while_nobody_has_the_time_to_look_for_it_commands_are_refused(project: Path) -> None:
    spoiled = Spoiled(project)
    descriptors = open_descriptors()
    for _ in range(2):
        with pytest.MonkeyPatch.context() as hurried:
            hurry(hurried)
            refused = why_refused(project, spoiled.guard)
        assert refused == f"{project}/.git cannot be watched: {LEFT_BY_A_COMMAND}"
    assert open_descriptors() == descriptors

    with command(bounds(project), spoiled.told, spoiled.guard):
        assert not spoiled.link.is_symlink()


def test_a_repository_that_took_the_place_of_a_spoiled_one_is_left_as_it_is(project: Path) -> None:
    spoiled = Spoiled(project)
    (project / ".git").rename(project / "old")
    furnish(project / ".git")
    (project / ".git/config").write_text("new")
    spoiled.link.symlink_to("main")
    before = tree(project / ".git")
    with command(bounds(project), spoiled.told, spoiled.guard):
        pass

    assert (tree(project / ".git"), spoiled.told) == (before, [])


def test_where_a_spoiled_repository_was_deleted_commands_run(project: Path) -> None:
    spoiled = Spoiled(project)
    shutil.rmtree(project / ".git")
    with command(bounds(project), spoiled.told, spoiled.guard):
        pass

    assert spoiled.told == []


def test_what_takes_too_long_to_be_looked_at_is_told_of_and_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    before = without_refused(tree(project))
    with command(bounds(project), told):
        (project / ".git/hooks/pre-commit").write_text("evil")
        hurry(monkeypatch)
    refused = why_refused(project)

    assert without_refused(tree(project)) == before
    assert left_as_it_is(project) in told
    assert refused == f"{project}/.git cannot be watched: it holds too much"
