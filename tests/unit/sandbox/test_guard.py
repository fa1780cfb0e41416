"""What happens between `enter` and `leave` is what a command could have done."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.attacks.nobody import NOBODY, as_nobody
from kit.bounds import bounds
from kit.running import open_descriptors
from kit.trees import Tree, tree
from parley.errors import CannotConfine
from parley.ports.commands import Bounds, Ended, Output, Start, Starter
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import Places, find
from parley.sandbox.vacancies import Vacancy

PATIENCE_SECONDS = 20.0


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
    told += map(as_told, guard.leave(watches))


def as_told(sentence: str) -> str:
    """What is told, with one name for all that was moved aside."""
    return re.sub(r"\.refused-[0-9a-f]{8}-", ".refused-X-", sentence)


def put_back(place: Path, what: str, *, kept: str | None = None) -> list[str]:
    """What is told of something that was put back, and of where that is now which was found in its place."""
    found = [f"{place} is protected: what was found there is now {kept}"] if kept else []
    return [f"{place} is protected: what was done to {what} while the command ran was put back", *found]


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
    what = CHANGES[name]
    is_kept = how in ("written", "folder") or what != name
    kept = f"{project}/.git/.refused-X-{os.path.basename(what)}" if is_kept else None
    assert told == put_back(project / ".git", what, kept=kept)


def test_a_file_that_is_replaced_or_not_wanted_is_kept_beside_it(project: Path) -> None:
    long = "\N{EURO SIGN}" * 85
    with command(bounds(project), []):
        (project / ".git/config").write_text("[user] name = me")
        (project / ".git/hooks" / long).write_text("mine")

    kept = {path.read_text() for path in (project / ".git").iterdir() if path.name.startswith(".refused-")}
    assert kept == {"[user] name = me", "mine"}


@pytest.mark.parametrize("head", ["ref: refs/heads/other\n", f"{'0a' * 20}\n", "0a" * 32])
def test_a_branch_or_a_commit_that_was_switched_to_stays(project: Path, head: str) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        for place in (".git", ".git/worktrees/tree", ".git/modules/a/b"):
            (project / place / "HEAD").write_text(head)

    assert ((project / ".git/HEAD").read_text(), told) == (head, [])


@pytest.mark.parametrize("head", ["ref: refs/../../evil\n", "ref: evil\n", f"{'0a' * 20}\nmore\n", ""])
def test_a_branch_that_is_none_is_put_back(project: Path, head: str) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/HEAD").write_text(head)

    assert (project / ".git/HEAD").read_text() == "HEAD\n"
    assert told == put_back(project / ".git", "HEAD", kept=f"{project}/.git/.refused-X-HEAD")


def test_modes_are_put_back(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/update").chmod(0o755)
        (project / ".git/config").chmod(0o666)
        (project / ".git/info").chmod(0o777)

    assert tree(project) == before
    assert told == put_back(project / ".git", "config, hooks/update, info")


@pytest.mark.parametrize("shut", [".git/hooks", ".git/hooks/sub", ".git", ".", ".git/config"])
def test_shutting_a_directory_keeps_nobody_from_putting_back_what_is_in_it(project: Path, shut: str) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/pre-commit").write_text("evil")
        (project / ".git/hooks/sub/y").write_text("evil")
        (project / shut).chmod(0)

    for kept in (project / ".git").glob(".refused-*"):
        kept.chmod(0o600)
    assert without_refused(tree(project)) == before
    assert stat.S_IMODE(project.stat().st_mode) == 0o755
    assert len(told) == 2


def test_a_directory_that_was_shut_before_stays_so(project: Path) -> None:
    for folder in ("hooks", "objects/info"):
        (project / ".git" / folder).chmod(0o555)
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        pass

    assert (tree(project), told) == (before, [])


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
    assert told == put_back(project / ".git", "config", kept=f"{project}/.git/.refused-X-config")


def test_what_was_removed_is_made_anew(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/sub/x").unlink()
        (project / ".git/hooks/sub").rmdir()
        (project / ".git/config").unlink()

    assert tree(project) == before
    assert told == put_back(project / ".git", "config, hooks/sub")


def test_a_directory_of_hooks_without_end_is_replaced_as_a_whole(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        for number in range(4097):
            (project / f".git/hooks/{number}").touch()

    assert without_refused(tree(project)) == before
    assert told == put_back(project / ".git", "hooks", kept=f"{project}/.git/.refused-X-hooks")


def test_a_file_without_end_is_not_read(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told), open(project / ".git/config", "wb") as file:
        os.truncate(file.fileno(), 1 << 40)

    assert (project / ".git/config").read_text() == "config\n"
    assert told == put_back(project / ".git", "config", kept=f"{project}/.git/.refused-X-config")


def test_a_large_hook_is_put_back(project: Path) -> None:
    hook = project / ".git/hooks/large"
    with open(hook, "wb") as file:
        os.truncate(file.fileno(), 5 << 20)
    told: list[str] = []
    with command(bounds(project), told):
        hook.write_text("evil")

    assert hook.stat().st_size == 5 << 20
    assert told == put_back(project / ".git", "hooks/large", kept=f"{project}/.git/.refused-X-large")


def test_a_file_that_is_too_large_to_be_kept_is_refused(project: Path) -> None:
    with open(project / ".git/hooks/large", "wb") as file:
        os.truncate(file.fileno(), (32 << 20) + 1)

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail == f"{project}/.git/hooks cannot be watched: it cannot be read, or holds too much"


def test_what_takes_the_place_of_a_pipe_is_moved_aside(project: Path) -> None:
    os.mkfifo(project / ".git/hooks/pipe")
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/pipe").unlink()
        (project / ".git/hooks/pipe").write_text("evil")

    assert not (project / ".git/hooks/pipe").exists()
    assert told == [
        f"{project}/.git is protected: what was done to hooks while the command ran was left as it is",
        f"{project}/.git is protected: what was found there is now {project}/.git/.refused-X-pipe",
    ]


def test_packed_branches_are_told_of_and_left(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/packed-refs").write_text("packed\n")

    assert (project / ".git/packed-refs").read_text() == "packed\n"
    assert told == [
        f"{project}/.git is protected: what was done to packed-refs while the command ran was left as it is"
    ]


WITHIN = (
    "objects",
    "objects/info",
    "modules",
    "modules/a",
    "modules/a/b",
    "modules/a/b/modules/c",
    "worktrees/tree",
)


@pytest.mark.parametrize("usurper", ["folder", "link", "file", "nothing"])
@pytest.mark.parametrize("name", WITHIN)
def test_a_directory_within_that_was_moved_away_is_brought_back(
    project: Path, tmp_path: Path, name: str, usurper: str
) -> None:
    outside, place = tmp_path / "outside", project / ".git" / name
    outside.mkdir()
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        place.rename(project / "own")
        if usurper == "folder":
            shutil.copytree(project / "own", place)
        elif usurper == "link":
            place.symlink_to(outside)
        elif usurper == "file":
            place.write_text("")

    kept = None if usurper == "nothing" else f"{project}/.git/.refused-X-{place.name}"
    assert (without_refused(tree(project)), tree(outside)) == (before, {})
    assert told == put_back(project / ".git", name, kept=kept)


def test_what_takes_the_place_of_a_directory_within_that_was_deleted_is_moved_aside(project: Path) -> None:
    before = without_parts(tree(project))
    told: list[str] = []
    with command(bounds(project), told):
        shutil.rmtree(project / ".git/modules")
        (project / ".git/modules/a/b").mkdir(parents=True)
        (project / ".git/modules/a/b/config").write_text("evil")

    assert without_refused(tree(project)) == before
    git = project / ".git"
    assert told == [
        f"{git} is protected: what was done to modules (it was deleted) while the command ran was left as it is",
        f"{git} is protected: what was found there is now {git}/.refused-X-modules",
    ]


def without_parts(found: Tree) -> Tree:
    return {path: item for path, item in found.items() if not path.startswith(".git/modules")}


def test_a_link_on_a_way_that_was_not_there_is_moved_aside(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / ".git/objects")
    (tmp_path / "outside/info").mkdir(parents=True)
    (tmp_path / "outside/info/alternates").write_text("evil")
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/objects").symlink_to(tmp_path / "outside")

    assert without_refused(tree(project)) == before
    assert (tmp_path / "outside/info/alternates").read_text() == "evil"
    assert told == put_back(project / ".git", "objects/info", kept=f"{project}/.git/.refused-X-objects")


@pytest.mark.parametrize("name", ["objects", "modules"])
@pytest.mark.parametrize("usurper", ["same", "link", "folder"])
def test_a_link_that_was_there_on_a_way_is_watched_itself(
    project: Path, tmp_path: Path, usurper: str, name: str
) -> None:
    place = project / ".git" / name
    shutil.move(place, tmp_path / "shared")
    place.symlink_to(tmp_path / "shared")
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        if usurper != "same":
            place.unlink()
        if usurper == "link":
            place.symlink_to("evil")
        elif usurper == "folder":
            place.mkdir()

    kept = f"{project}/.git/.refused-X-{name}" if usurper == "folder" else None
    assert without_refused(tree(project)) == before
    assert told == ([] if usurper == "same" else put_back(project / ".git", name, kept=kept))


def test_a_directory_within_that_was_deleted_and_held_nothing_is_nobodys_business(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        shutil.rmtree(project / ".git/objects")

    assert told == []


AS_NOBODY = """
import os, shutil, tempfile
from pathlib import Path
from kit.bounds import bounds
from parley.sandbox.guard import Guard
from parley.sandbox.places import find

def moved_into_what_is_shut(git, own):
    git.rename(own / "git")
    shutil.copytree(own / "git", git)
    (git / "config").write_text("evil")
    own.chmod(0)

def within_what_is_shut(git, own):
    for name in ("modules/part/config", "objects/info/alternates"):
        (git / name).write_text("evil")
        (git / name).parent.chmod(0o311)

def within_what_is_new_and_shut(git, own):
    (git / "modules/part/objects/info").mkdir(parents=True)
    (git / "modules/part/objects/info/alternates").write_text("evil")
    (git / "modules/part/objects/info").chmod(0o100)

def usurped_by_what_is_shut(git, own):
    (git / "modules/part").rename(own / "part")
    (git / "modules/part").mkdir(mode=0)

for attempt in (moved_into_what_is_shut, within_what_is_shut, within_what_is_new_and_shut, usurped_by_what_is_shut):
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder).resolve()
        git, own = project / ".git", project / "own"
        for each in (git / "modules/part", git / "objects/info", own):
            each.mkdir(parents=True)
        for each in (git, git / "modules/part"):
            (each / "config").write_text("good")
        guard, watches = Guard(), []
        places = find(bounds(project))
        guard.enter(places, places.git_folders, watches)
        attempt(git, own)
        told = guard.leave(watches)
        found = [(git / name).read_text() for name in ("config", "modules/part/config")]
        planted = [each for each in git.rglob("alternates")]
        print(found, planted, len(told), oct(own.stat().st_mode & 0o777))
        for each in project.rglob("*"):
            each.is_symlink() or each.chmod(0o700)
"""


def test_directories_that_were_shut_keep_an_ordinary_user_from_nothing() -> None:
    kept = "['good', 'good'] [] 2"
    assert as_nobody("-c", AS_NOBODY) == f"{kept} 0o0\n" + f"{kept} 0o755\n" * 3


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
    assert f"{project}/.git is protected: what was done to it while the command ran was put back" in told


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
    assert told == put_back(project / ".git", "it")


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


@pytest.mark.parametrize("usurper", ["folder", "link", "file"])
@pytest.mark.parametrize("deleted", [".git", "project"])
def test_what_takes_the_place_of_what_was_deleted_is_moved_aside(
    project: Path, tmp_path: Path, deleted: str, usurper: str
) -> None:
    place = {".git": project / ".git", "project": project}[deleted]
    told: list[str] = []
    with command(bounds(project, project.parent), told):
        shutil.copytree(place, project.parent / "own")
        shutil.rmtree(place)
        if usurper == "folder":
            shutil.copytree(project.parent / "own", place)
        elif usurper == "link":
            place.symlink_to(project.parent / "own")
        else:
            place.write_text("gitdir: ../own")

    assert not os.path.lexists(place)
    assert told == [
        f"{project}/.git is protected: it was replaced and cannot be put back: it was deleted",
        f"{project}/.git is protected: what was found there is now {place.parent}/.refused-X-{place.name}",
    ]


def test_a_directory_that_was_shut_is_opened_again(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git").chmod(0)

    assert stat.S_IMODE((project / ".git").stat().st_mode) == 0o755
    assert told == put_back(project / ".git", "it")


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
    kept = f"{project}/.refused-X-.claude" if usurper == "folder" else None
    assert told == put_back(project / ".claude", "it", kept=kept)


@pytest.mark.parametrize("target", ["tools/hooks", ".git/own"])
def test_hooks_behind_a_link_are_put_back(project: Path, target: str) -> None:
    shutil.rmtree(project / ".git/hooks")
    (project / target).mkdir(parents=True)
    (project / ".git/hooks").symlink_to(project / target)
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / target / "pre-commit").write_text("evil")

    kept = (project / target).with_name(".refused-X-pre-commit")
    assert without_refused(tree(project)) == before
    assert told == put_back(project / target, "it", kept=str(kept))


def test_settings_of_agents_are_put_back(project: Path) -> None:
    (project / ".claude/skills").mkdir(parents=True)
    (project / ".claude/settings.json").write_text("{}")
    before = tree(project / ".claude")
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".claude/settings.json").write_text('{"hooks": "evil"}')
        (project / ".claude/skills/evil").mkdir()

    assert tree(project / ".claude") == before
    kept = f"{project}/.refused-X-settings.json, {project}/.refused-X-evil"
    assert told == put_back(project / ".claude", "it", kept=kept)


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
    kept = f"{project}/.git/.refused-X-config"
    both = f"{kept}, {project}/.git/.refused-X-pre-commit"
    assert second == put_back(project / ".git", "config, hooks/pre-commit", kept=both)
    assert first == put_back(project / ".git", "config", kept=kept)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_command_of_wider_roots_is_watched_all_the_way_whoever_else_runs(project: Path, is_first: bool) -> None:
    guard = Guard()
    told: list[str] = []
    narrow, wide = bounds(project), bounds(project, project.parent)
    before = tree(project)
    with command(narrow if is_first else wide, told, guard), command(wide if is_first else narrow, told, guard):
        project.rename(project.parent / "own")
        shutil.copytree(project.parent / "own", project, symlinks=True)
        (project / ".git/config").write_text("evil")

    assert tree(project) == before
    assert told == put_back(project / ".git", "it", kept=f"{project.parent}/.refused-X-project")


@pytest.mark.parametrize("name", [".git", ".git/modules/a/b", ".git/config"])
def test_who_comes_later_from_other_roots_is_measured_by_what_was_before_the_first(
    project: Path, name: str
) -> None:
    guard = Guard()
    told: list[str] = []
    first: list[Watch] = []
    before, inode = tree(project), (project / ".git/modules/a/b").stat().st_ino
    enter(guard, find(bounds(project)), first)
    if name.endswith("config"):
        (project / name).write_text("evil")
    else:
        (project / name).rename(project / "own")
        shutil.copytree(project / "own", project / name, symlinks=True)
    with command(bounds(project, project.parent), told, guard):
        told_first = guard.leave(first)

    assert (without_refused(tree(project)), (project / ".git/modules/a/b").stat().st_ino) == (before, inode)
    assert (len(told_first), told) == (2, [])


def test_a_git_that_another_command_has_made_is_not_taken_for_a_repository(tmp_path: Path) -> None:
    (tmp_path / "wide/project").mkdir(parents=True)
    guard = Guard()
    told: list[str] = []
    within = bounds(tmp_path / "wide/project")
    with command(within, told, guard):
        (tmp_path / "wide/project/.git/hooks").mkdir(parents=True)
        with command(bounds(tmp_path / "wide/project", tmp_path / "wide"), told, guard):
            pass

    assert without_refused(tree(tmp_path / "wide/project")) == {}
    place = tmp_path / "wide/project"
    assert told == put_back(place / ".git", "it", kept=f"{place}/.refused-X-.git")


class Interrupted(Starter):
    """Runs nothing: something is planted, and whoever waits is interrupted before that is looked for."""

    def __init__(self, place: Path) -> None:
        self.place = place

    async def start(self, start: Start, *, output: Output) -> Ended:
        self.place.write_text("evil")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return Ended(exit_code=0, seconds=0.0)

    async def close(self) -> None:
        pass


async def test_what_an_interrupt_keeps_from_being_told_is_logged(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()

    def prepare(watches: list[Watch]) -> Start:
        enter(guard, find(bounds(project)), watches)
        return Start(argv=("true",), cwd=str(project), env={}, timeout_seconds=1.0)

    starter = Interrupted(project / ".git/config")
    running = asyncio.create_task(guard.run(starter, prepare, output=lambda stream, data: None))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait([running])

    assert running.cancelled()
    kept = f"{project}/.git/.refused-X-config"
    assert [as_told(each) for each in caplog.messages] == put_back(project / ".git", "config", kept=kept)


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
