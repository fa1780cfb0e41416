"""What the guard makes of links and second names: of new ones, and of those on the way to what it watches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.builders.bounds import bounds
from kit.builders.trees import tree
from kit.system.git_guard import command, enter, grow_old, put_back, without_refused
from parley.errors import SandboxUnavailable
from parley.sandbox.guard import Guard
from parley.sandbox.places import find


@pytest.mark.parametrize("name", ["modules", "modules/new", "modules/a/new", "worktrees", "worktrees/new"])
def test_a_link_to_a_submodule_or_a_working_tree_that_was_not_there_is_removed(project: Path, name: str) -> None:
    place = project / ".git" / name
    if place.exists():
        shutil.rmtree(place)
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        place.symlink_to("/evil")

    assert tree(project) == before
    assert told == put_back(project / ".git", name)


def test_a_link_for_a_list_of_branches_is_removed(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/info/refs").symlink_to("/etc/passwd")

    assert not os.path.lexists(project / ".git/info/refs")
    assert told == put_back(project / ".git", "info/refs")


WRITTEN_BY_GIT = (
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "logs/HEAD",
    "logs/refs/heads/main",
    "refs/heads/feature",
    "rr-cache/0a/preimage",
    "objects/0a",
    "objects/pack",
    "objects/pack/multi-pack-index",
    "objects/info/commit-graph",
    "lfs/objects",
    "lfs/objects/0a",
    "lfs/objects/0a/0b",
    "lfs/tmp/objects",
    "lost-found/other/0a",
    "objects/info/commit-graphs/commit-graph-chain",
    "objects/pack/multi-pack-index.d/multi-pack-index-chain",
    "sequencer/abort-safety",
    "whatever/is/to/come",
    "modules/a/b/objects/pack",
    "modules/a/b/lost-found/commit",
    "modules/a/b/COMMIT_EDITMSG",
    "worktrees/tree/logs/HEAD",
)


@pytest.mark.parametrize("name", WRITTEN_BY_GIT)
def test_a_link_that_git_would_write_through_is_removed(project: Path, name: str) -> None:
    place = project / ".git" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        place.symlink_to("/etc/passwd")

    assert tree(project) == before
    assert told == put_back(project / ".git", name)


def test_a_link_on_a_way_that_was_not_there_is_moved_aside(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / ".git/objects/info")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/alternates").write_text("evil")
    before = tree(project)
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/objects/info").symlink_to(tmp_path / "outside")

    assert without_refused(tree(project)) == before
    assert (tmp_path / "outside/alternates").read_text() == "evil"
    assert told == put_back(project / ".git", "objects/info", kept=f"{project}/.git/.refused-X-info")


@pytest.mark.parametrize(
    "name",
    ["objects", "objects/pack", "modules", "modules/a", "modules/a/b", "worktrees/tree", "COMMIT_EDITMSG"],
)
@pytest.mark.parametrize("usurper", ["same", "link", "folder"])
def test_a_link_that_was_there_on_a_way_is_watched_itself(
    project: Path, tmp_path: Path, usurper: str, name: str
) -> None:
    place = project / ".git" / name
    if place.exists():
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

    kept = f"{project}/.git/.refused-X-{place.name}" if usurper == "folder" else None
    assert without_refused(tree(project)) == before
    assert told == ([] if usurper == "same" else put_back(project / ".git", name, kept=kept))


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


def test_a_link_that_another_command_takes_away_meanwhile_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, readlink = project / ".git/config", os.readlink
    config.unlink()
    config.symlink_to("info/exclude")

    def too_late(path: str) -> str:
        config.unlink(missing_ok=True)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", too_late)
    with pytest.raises(SandboxUnavailable) as refused:
        find(bounds(project))

    assert refused.value.detail == f"{config} cannot be looked at: No such file or directory"


def test_a_link_above_a_root_is_not_followed(project: Path, tmp_path: Path) -> None:
    places = find(bounds(project))
    project.parent.rename(tmp_path / "away")
    project.parent.symlink_to("away")

    with pytest.raises(SandboxUnavailable) as refused:
        enter(Guard(), places, [])

    assert refused.value.detail == f"{project}/.git cannot be watched: Not a directory (os error 20)"


def test_a_link_is_found_where_the_time_of_its_directory_was_set_back(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_old(monkeypatch)
    git, guard, told = project / ".git", Guard(), list[str]()
    before, as_it_was = tree(project), (git / "refs/heads").stat()
    for _ in range(2):
        with command(bounds(project), told, guard):
            (git / "refs/heads/evil").symlink_to("/etc/passwd")
            os.utime(git / "refs/heads", ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))

    assert tree(project) == before
    assert told == put_back(git, "refs/heads/evil") * 2


def test_directories_that_are_as_they_were_are_not_listed_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_old(monkeypatch)
    guard, told, listed = Guard(), list[str](), list[str]()
    with command(bounds(project), told, guard):
        pass
    scandir = os.scandir

    def counted(folder: int | str) -> object:
        place = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) else folder
        listed.append(place.removeprefix(f"{project}/.git/"))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    with command(bounds(project), told, guard):
        pass

    assert [name for name in listed if name.startswith(("objects", "refs", "sequencer"))] == []
    assert (told, "hooks" in listed) == ([], True)


def test_a_second_name_for_settings_is_not_theirs_afterwards(project: Path) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text("{}")
    told: list[str] = []
    with command(bounds(project), told):
        (project / "own").hardlink_to(project / ".git/config")
        (project / "others").hardlink_to(project / ".claude/settings.json")

    for name in ("own", "others"):
        (project / name).write_text("evil")
    assert (project / ".git/config").read_text() == "config\n"
    assert (project / ".claude/settings.json").read_text() == "{}"
    assert told == [
        *put_back(project / ".git", "config", kept=f"{project}/.git/.refused-X-config"),
        *put_back(project / ".claude", "it", kept=f"{project}/.refused-X-settings.json"),
    ]


def test_a_second_name_that_was_there_stays(project: Path) -> None:
    (project / "own").hardlink_to(project / ".git/hooks/update")
    told: list[str] = []
    with command(bounds(project), told):
        pass

    assert (told, (project / "own").stat().st_nlink) == ([], 2)
