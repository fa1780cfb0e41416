"""What happens between `enter` and `leave` is what a command could have done."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.attacks.nobody import NOBODY
from kit.bounds import bounds
from kit.running import open_descriptors
from kit.trees import Tree, tree
from parley.errors import CannotConfine
from parley.ports.commands import Bounds
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import Places, find
from parley.sandbox.vacancies import Vacancy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git = tmp_path / "wide/project/.git"
    for folder in (
        "hooks/sub",
        "info",
        "objects/info",
        "refs/heads",
        "modules/a/b/hooks",
        "modules/a/b/modules/c",
        "worktrees/tree",
    ):
        (git / folder).mkdir(parents=True)
    for name in ("HEAD", "config", "hooks/update", "hooks/sub/x", "info/exclude", "packed-refs"):
        (git / name).write_text(f"{name}\n")
    (git / "modules/a/b/config").write_text("part\n")
    (git / "modules/a/b/modules/c/HEAD").write_text("part of a part\n")
    (git / "worktrees/tree/commondir").write_text("../..\n")
    (git / "hooks/link").symlink_to("update")
    return git.parent


def enter(guard: Guard, places: Places, watches: list[Watch]) -> None:
    guard.enter(places, places.git_folders + places.protected + places.vacant + places.links, watches)


@contextmanager
def command(bounds: Bounds, told: list[str], guard: Guard | None = None) -> Iterator[None]:
    """A command runs meanwhile; what is told of it afterwards."""
    guard = Guard() if guard is None else guard
    watches: list[Watch] = []
    enter(guard, find(bounds), watches)
    yield
    told += guard.leave(watches)


def without_refused(found: Tree) -> Tree:
    """The tree without what was moved aside."""
    return {path: item for path, item in found.items() if ".refused-" not in path}


def test_who_changes_nothing_is_told_nothing(project: Path) -> None:
    told: list[str] = []
    descriptors = open_descriptors()
    with command(bounds(project), told):
        (project / "file").write_text("data")
        (project / ".git/refs/heads/new").write_text("data")
        (project / ".git/objects/ab").mkdir()

    assert (told, open_descriptors()) == ([], descriptors)


CHANGES = {
    "config": "config",
    "HEAD": "HEAD",
    "config.worktree": "config.worktree",
    "commondir": "commondir",
    "hooks/pre-commit": "hooks/pre-commit",
    "hooks/update": "hooks/update",
    "hooks/sub/y": "hooks/sub/y",
    "info/attributes": "info/attributes",
    "objects/info/alternates": "objects/info/alternates",
    "modules/a/b/hooks/pre-commit": "modules/a/b/hooks/pre-commit",
    "modules/a/b/config": "modules/a/b/config",
    "modules/a/b/modules/c/config": "modules/a/b/modules/c/config",
    "worktrees/tree/commondir": "worktrees/tree/commondir",
    "rebase-merge/git-rebase-todo": "rebase-merge",
}


@pytest.mark.parametrize("how", ["written", "linked", "pipe", "folder"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_git_runs_and_obeys_is_put_back(project: Path, name: str, how: str) -> None:
    before = tree(project)
    told: list[str] = []
    place = project / ".git" / name

    with command(bounds(project), told):
        place.parent.mkdir(exist_ok=True)
        if how == "written":
            place.write_text("evil")
        else:
            place.unlink(missing_ok=True)
        if how == "linked":
            place.symlink_to("/etc/passwd")
        elif how == "pipe":
            os.mkfifo(place)
        elif how == "folder":
            (place / "below").mkdir(parents=True)

    assert without_refused(tree(project)) == before
    assert told == [f"{project}/.git is protected: what the command did to {CHANGES[name]} was put back"]


def test_modes_are_put_back(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/update").chmod(0o755)
        (project / ".git/config").chmod(0o666)
        (project / ".git/info").chmod(0o777)

    assert tree(project) == before
    assert told == [f"{project}/.git is protected: what the command did to config, hooks/update, info was put back"]


@pytest.mark.parametrize("shut", [".git/hooks", ".git/hooks/sub", ".git", ".", ".git/config"])
def test_shutting_a_directory_keeps_nobody_from_putting_back_what_is_in_it(project: Path, shut: str) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/pre-commit").write_text("evil")
        (project / ".git/hooks/sub/y").write_text("evil")
        (project / shut).chmod(0)

    assert tree(project) == before
    assert stat.S_IMODE(project.stat().st_mode) == 0o755
    assert len(told) == 1


def test_a_file_that_was_changed_and_looks_as_before_is_put_back(project: Path) -> None:
    guard = Guard()
    told: list[str] = []
    config = project / ".git/config"
    as_it_was = config.stat()
    with command(bounds(project), told, guard):
        pass
    with command(bounds(project), told, guard):
        config.write_text("evil!!\n")
        os.utime(config, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))

    assert config.stat().st_size == as_it_was.st_size
    assert config.read_text() == "config\n"
    assert told == [f"{project}/.git is protected: what the command did to config was put back"]


def test_what_was_removed_is_made_anew(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/sub/x").unlink()
        (project / ".git/hooks/sub").rmdir()
        (project / ".git/config").unlink()

    assert tree(project) == before
    assert told == [f"{project}/.git is protected: what the command did to config, hooks/sub was put back"]


def test_a_directory_of_hooks_without_end_is_replaced_as_a_whole(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        for number in range(4097):
            (project / f".git/hooks/{number}").touch()

    assert without_refused(tree(project)) == before
    assert told == [f"{project}/.git is protected: what the command did to hooks was put back"]


def test_a_file_without_end_is_not_read(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told), open(project / ".git/config", "wb") as file:
        os.truncate(file.fileno(), 1 << 40)

    assert tree(project) == before
    assert told == [f"{project}/.git is protected: what the command did to config was put back"]


def test_a_file_that_was_too_large_to_be_kept_is_reported(project: Path) -> None:
    hook = project / ".git/hooks/large"
    with open(hook, "wb") as file:
        os.truncate(file.fileno(), 17 << 20)
    told: list[str] = []
    with command(bounds(project), told):
        pass
    with command(bounds(project), told), open(hook, "r+b") as file:
        file.write(b"evil")

    assert told == [f"{project}/.git is protected: what the command did to hooks was left as it is"]


def test_packed_branches_are_told_of_and_left(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/packed-refs").write_text("packed\n")

    assert (project / ".git/packed-refs").read_text() == "packed\n"
    assert told == [f"{project}/.git is protected: what the command did to packed-refs was left as it is"]


def test_a_directory_of_objects_that_became_a_link_is_not_followed(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside/info").mkdir(parents=True)
    (project / ".git/objects/info/alternates").write_text("/shared\n")
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/objects").rename(project / "own")
        (project / ".git/objects").symlink_to(tmp_path / "outside")

    assert tree(tmp_path / "outside") == {"info": ("drwxr-xr-x", b"")}
    assert told == [
        f"{project}/.git is protected: what the command did to objects/info/alternates was left as it is"
    ]


# --- in its place ------------------------------------------------------------------------


@pytest.mark.parametrize("usurper", ["folder", "link", "file", "nothing"])
@pytest.mark.parametrize("moved", [".git", "project", "wide"])
def test_what_was_moved_away_is_brought_back(project: Path, tmp_path: Path, moved: str, usurper: str) -> None:
    before = tree(tmp_path)
    place = {".git": project / ".git", "project": project, "wide": project.parent}[moved]
    told: list[str] = []
    with command(bounds(project, project.parent, tmp_path), told):
        place.rename(tmp_path / "away")
        if usurper == "folder":
            (place / ".git/hooks").mkdir(parents=True)
        elif usurper == "link":
            place.symlink_to(tmp_path / "away")
        elif usurper == "file":
            place.write_text("gitdir: evil")

    assert without_refused(tree(tmp_path)) == before
    assert f"{project}/.git is protected: what the command did to it was put back" in told


@contextmanager
def before_it_is_brought_back(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Another command acts in the instant before a directory is moved back."""
    rename = os.rename
    with pytest.MonkeyPatch.context() as patched:

        def late(*words: Any, **named: Any) -> None:
            patched.setattr(os, "rename", rename)
            meanwhile()
            rename(*words, **named)

        patched.setattr(os, "rename", late)
        yield


def test_a_link_that_appears_on_the_way_to_what_was_moved_away_is_not_followed(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("secret")
    (project / "own").mkdir()
    before = tree(project / ".git")
    guard, watches = Guard(), list[Watch]()
    enter(guard, find(bounds(project)), watches)
    (project / ".git").rename(project / "own/.ssh")

    def swap() -> None:
        (project / "own").rename(project / "other")
        (project / "own").symlink_to(tmp_path / "home")

    with before_it_is_brought_back(swap):
        told = guard.leave(watches)

    assert tree(project / ".git") == before
    assert tree(tmp_path / "home") == {".ssh": ("drwxr-xr-x", b""), ".ssh/id": ("-rw-r--r--", b"secret")}
    assert told == [f"{project}/.git is protected: what the command did to it was put back"]


def test_what_takes_the_name_of_what_was_moved_away_stays_where_it_is(project: Path) -> None:
    (project / "other").mkdir()
    guard, watches = Guard(), list[Watch]()
    enter(guard, find(bounds(project)), watches)
    (project / ".git").rename(project / "own")

    def swap() -> None:
        (project / "own").rename(project / "away")
        (project / "other").rename(project / "own")

    with before_it_is_brought_back(swap):
        told = guard.leave(watches)

    assert sorted(os.listdir(project)) == ["away", "own"]
    assert told == [f"{project}/.git is protected: it was replaced and cannot be put back: others move it"]


def test_a_link_above_a_root_is_not_followed(project: Path, tmp_path: Path) -> None:
    places = find(bounds(project))
    project.parent.rename(tmp_path / "away")
    project.parent.symlink_to("away")

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), places, [])

    assert refused.value.detail == f"{project}/.git cannot be watched: Not a directory (os error 20)"


def test_what_was_deleted_is_reported(project: Path) -> None:
    (project / "other/.git/x").mkdir(parents=True)
    (project / "other/.git/config").write_text("")
    told: list[str] = []
    with command(bounds(project / "other"), told):
        (project / "other/.git/config").unlink()
        (project / "other/.git/x").rmdir()
        (project / "other/.git").rmdir()

    assert told == [f"{project}/other/.git is protected: it was replaced and cannot be put back: it was deleted"]


def test_a_directory_that_was_shut_is_opened_again(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git").chmod(0)

    assert stat.S_IMODE((project / ".git").stat().st_mode) == 0o755
    assert told == [f"{project}/.git is protected: what the command did to it was put back"]


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
    assert len(os.listdir(tmp_path)) == (how == "folder")
    assert told == [f"{tmp_path}/.git is protected: what the command did to it was put back"]


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


@pytest.mark.parametrize("usurper", ["folder", "link", "nothing"])
def test_a_link_to_settings_of_agents_is_put_back(project: Path, usurper: str) -> None:
    (project / "dotfiles/claude").mkdir(parents=True)
    (project / ".claude").symlink_to("dotfiles/claude")
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".claude").unlink()
        if usurper == "folder":
            (project / ".claude/skills").mkdir(parents=True)
        elif usurper == "link":
            (project / ".claude").symlink_to("elsewhere")

    assert without_refused(tree(project)) == before
    assert told == [f"{project}/.claude is protected: what the command did to it was put back"]


@pytest.mark.parametrize("target", ["tools/hooks", ".git/own"])
def test_hooks_behind_a_link_are_put_back(project: Path, target: str) -> None:
    shutil.rmtree(project / ".git/hooks")
    (project / target).mkdir(parents=True)
    (project / ".git/hooks").symlink_to(project / target)
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / target / "pre-commit").write_text("evil")

    assert tree(project) == before
    assert told == [f"{project}/{target} is protected: what the command did to it was put back"]


def test_settings_of_agents_are_put_back(project: Path) -> None:
    (project / ".claude/skills").mkdir(parents=True)
    (project / ".claude/settings.json").write_text("{}")
    before = tree(project / ".claude")
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".claude/settings.json").write_text('{"hooks": "evil"}')
        (project / ".claude/skills/evil").mkdir()

    assert tree(project / ".claude") == before
    assert told == [f"{project}/.claude is protected: what the command did to it was put back"]


# --- several at the same time ------------------------------------------------------------


def test_commands_at_the_same_time_are_measured_by_what_was_before_the_first(project: Path) -> None:
    guard = Guard()
    first: list[str] = []
    second: list[str] = []
    with command(bounds(project), first, guard):
        (project / ".git/config").write_text("evil")
        with command(bounds(project), second, guard):
            (project / ".git/hooks/pre-commit").write_text("evil")
        (project / ".git/config").write_text("evil again")

    assert (project / ".git/config").read_text() == "config\n"
    assert second == [f"{project}/.git is protected: what the command did to config, hooks/pre-commit was put back"]
    assert first == [f"{project}/.git is protected: what the command did to config was put back"]


def test_what_somebody_changes_between_commands_stays(project: Path) -> None:
    guard = Guard()
    told: list[str] = []
    for content in ("one", "two"):
        (project / ".git/config").write_text(content)
        with command(bounds(project), told, guard):
            pass

    assert ((project / ".git/config").read_text(), told) == ("two", [])


def test_a_directory_that_holds_more_than_can_be_remembered_is_refused(project: Path) -> None:
    for number in range(4097):
        (project / f".git/hooks/{number}").touch()
    descriptors = open_descriptors()

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail == (f"{project}/.git/hooks cannot be watched: it cannot be read, or holds too much")
    assert open_descriptors() == descriptors


def test_a_repository_of_more_parts_than_can_be_watched_is_refused(project: Path) -> None:
    for number in range(257):
        (project / f".git/worktrees/{number}").mkdir()

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail == "more than 256 working trees or submodules cannot be watched"


def test_what_cannot_be_looked_at_is_refused(project: Path) -> None:
    places = find(bounds(project))
    (project / ".git").rename(project / "away")
    watches: list[Watch] = []

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), places, watches)

    assert refused.value.detail == f"{project}/.git cannot be watched: No such file or directory (os error 2)"
    assert watches == []
