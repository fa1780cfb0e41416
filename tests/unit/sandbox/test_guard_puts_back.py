"""How the guard puts back what was there, whatever a command has made of it and of the way to it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.attacks.nobody import as_nobody
from kit.builders.bounds import bounds
from kit.builders.trees import Tree, tree
from kit.system.git_guard import command, enter, put_back, without_refused
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import find


def test_a_file_that_is_replaced_or_not_wanted_is_kept_beside_it(project: Path) -> None:
    long = "\N{EURO SIGN}" * 85
    with command(bounds(project), []):
        (project / ".git/config").write_text("[user] name = me")
        (project / ".git/hooks" / long).write_text("mine")

    kept = {path.read_text() for path in (project / ".git").iterdir() if path.name.startswith(".refused-")}
    assert kept == {"[user] name = me", "mine"}


def test_modes_are_put_back(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/update").chmod(0o755)
        (project / ".git/config").chmod(0o666)
        (project / ".git/info").chmod(0o777)

    assert tree(project) == before
    assert told == put_back(project / ".git", "config, hooks/update, info")


@pytest.mark.parametrize(("opened", "what"), [(".git", "it"), (".git/objects", "objects")])
def test_directories_of_git_that_were_opened_to_others_are_shut_to_them(
    project: Path, opened: str, what: str
) -> None:
    before = stat.S_IMODE((project / opened).stat().st_mode)
    told: list[str] = []
    with command(bounds(project), told):
        (project / opened).chmod(0o777)

    assert stat.S_IMODE((project / opened).stat().st_mode) == before
    assert told == put_back(project / ".git", what)


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


AS_NOBODY = """
import os, shutil, tempfile
from pathlib import Path
from kit.builders.bounds import bounds
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


def test_a_repository_that_was_moved_deeper_than_paths_are_long_is_brought_back(project: Path) -> None:
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / "own").mkdir()
        (project / ".git").rename(project / "own/git")
        folder = os.open(project / "own", os.O_RDONLY)
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=folder)
            inner = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
            os.rename("git", "git", src_dir_fd=folder, dst_dir_fd=inner)
            os.close(folder)
            folder = inner
        os.close(folder)

    shutil.rmtree(project / "own")
    assert tree(project) == before
    assert told == put_back(project / ".git", "it")


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
    assert [sentence.text for sentence in told] == put_back(project / ".git", "it")


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
    assert [sentence.text for sentence in told] == [
        f"{project}/.git is protected: it was replaced and cannot be put back: others move it"
    ]


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
