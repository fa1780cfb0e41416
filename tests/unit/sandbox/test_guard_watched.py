"""What the guard watches: what git and agents run and obey, and nothing that is data."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kit.bounds import bounds
from kit.guarded import command, enter, furnish, put_back, without_refused
from kit.running import open_descriptors
from kit.trees import tree
from parley.errors import CannotConfine
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import find


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
    "modules/a/b/worktrees/tree/commondir": "modules/a/b/worktrees/tree/commondir",
    "modules/1/2/3/4/5/6/7/8/9/config": "modules/1/2/3/4/5/6/7/8/9/config",
    "worktrees/tree/commondir": "worktrees/tree/commondir",
    "worktrees/tree/modules/d/config": "worktrees/tree/modules/d/config",
    "worktrees/tree/rebase-merge/git-rebase-todo": "worktrees/tree/rebase-merge",
    "rebase-merge/git-rebase-todo": "rebase-merge",
    "remotes/origin": "remotes",
    "sequencer/opts": "sequencer/opts",
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


NEW_PARTS = (
    "modules/new",
    "modules/a/new/er",
    "modules/a/b/modules/c/modules/new",
    "modules/a/b/worktrees/new",
    "worktrees/new",
    "worktrees/tree/modules/d/worktrees/new",
)


@pytest.mark.parametrize("name", NEW_PARTS)
def test_a_submodule_or_a_working_tree_that_was_not_there_is_moved_aside_as_a_whole(
    project: Path, name: str
) -> None:
    git, before = project / ".git", tree(project)
    parts = name.split("/")
    outermost = next(way for end in range(len(parts)) if not (git / (way := "/".join(parts[: end + 1]))).exists())
    told: list[str] = []
    with command(bounds(project), told):
        (git / name / "hooks").mkdir(parents=True)
        for file in ("HEAD", "commondir", "config", "hooks/post-checkout"):
            (git / name / file).write_text("evil, or the user's own")
        made = tree(project)

    assert without_refused(tree(project)) == before
    kept = f"{git}/.refused-X-{os.path.basename(outermost)}"
    assert told == put_back(git, outermost, kept=kept)
    next(git.glob(".refused-*")).rename(git / outermost)
    assert tree(project) == made


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


def test_what_holds_submodules_does_not_become_one_in_which_nobody_looks_for_them(project: Path) -> None:
    git, before, guard = project / ".git", tree(project), Guard()
    first, second = list[str](), list[str]()
    with command(bounds(project), first, guard):
        (git / "modules/a/HEAD").write_text("ref: refs/heads/main\n")
        (git / "modules/a/config").write_text("")
    with command(bounds(project), second, guard):
        (git / "modules/a/b/hooks/pre-commit").write_text("evil")

    assert without_refused(tree(project)) == before
    kept = f"{git}/.refused-X-HEAD, {git}/.refused-X-config"
    assert first == put_back(git, "modules/a/HEAD, modules/a/config", kept=kept)
    assert second == put_back(git, "modules/a/b/hooks/pre-commit", kept=f"{git}/.refused-X-pre-commit")


def test_submodules_of_any_name_are_data_but_for_what_git_obeys(project: Path) -> None:
    for name in ("modules/config", "modules/a/HEAD", "worktrees/HEAD"):
        (project / ".git" / name / "objects").mkdir(parents=True)
        (project / ".git" / name / "HEAD").write_text("ref: refs/heads/main\n")
    told: list[str] = []
    with command(bounds(project), told):
        for name in ("modules/config", "modules/a/HEAD", "worktrees/HEAD"):
            (project / ".git" / name / "index").write_text("data")

    assert told == []


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


def test_packed_branches_are_told_of_and_left(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/packed-refs").write_text("packed\n")

    assert (project / ".git/packed-refs").read_text() == "packed\n"
    assert told == [
        f"{project}/.git is protected: what was done to packed-refs while the command ran was left as it is"
    ]


@pytest.mark.parametrize("before", [None, "old\n"])
def test_a_list_of_branches_for_others_is_told_of_and_left(project: Path, before: str | None) -> None:
    listed = project / ".git/info/refs"
    if before is not None:
        listed.write_text(before)
    told: list[str] = []
    with command(bounds(project), told):
        listed.write_text("new\n")

    assert listed.read_text() == "new\n"
    assert told == [
        f"{project}/.git is protected: what was done to info/refs while the command ran was left as it is"
    ]


def test_a_link_for_a_list_of_branches_is_removed(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/info/refs").symlink_to("/etc/passwd")

    assert not os.path.lexists(project / ".git/info/refs")
    assert told == put_back(project / ".git", "info/refs")


def test_a_name_forges_no_line_of_what_is_told(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/x\n.git is fine\x1b[2K").write_text("evil")

    name = "$'hooks/x\\n.git is fine\\x1b[2K'"
    kept = f"$'{project}/.git/.refused-X-x\\n.git is fine\\x1b[2K'"
    assert told == put_back(project / ".git", name, kept=kept)


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


def grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything have been there for longer than it takes to tell one change from the next by their times."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10_000_000_000)


def test_logs_that_are_too_deep_to_be_searched_for_links_are_moved_aside(project: Path) -> None:
    (project / ".git/logs").mkdir()
    told: list[str] = []
    with command(bounds(project), told):
        deep = project / ".git/logs" / "/".join(["d"] * 40)
        deep.mkdir(parents=True)
        (deep / "HEAD").symlink_to("/etc/passwd")

    assert [path for path in (project / ".git/logs").rglob("*") if path.is_symlink()] == []
    assert told == put_back(project / ".git", "logs/" + "/".join(["d"] * 32), kept=f"{project}/.git/.refused-X-d")


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


@pytest.mark.parametrize("name", ["rebase-merge", "worktrees/tree/rebase-apply"])
def test_a_rebase_that_has_ended_is_not_begun_again(project: Path, name: str) -> None:
    rebase = project / ".git" / name
    rebase.mkdir()
    (rebase / "git-rebase-todo").write_text("exec make test\n")
    told: list[str] = []
    with command(bounds(project), told):
        shutil.rmtree(rebase)

    assert not rebase.exists()
    git = project / ".git"
    assert told == [f"{git} is protected: what was done to {name} while the command ran was left as it is"]


def test_a_directory_within_that_was_deleted_and_held_nothing_is_nobodys_business(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        shutil.rmtree(project / ".git/objects")

    assert told == []


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
    with pytest.raises(CannotConfine) as refused:
        find(bounds(project))

    assert refused.value.detail == f"{config} cannot be looked at: No such file or directory"


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


def test_a_file_that_is_too_large_to_be_kept_is_refused(project: Path) -> None:
    with open(project / ".git/hooks/large", "wb") as file:
        os.truncate(file.fileno(), (32 << 20) + 1)

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail == f"{project}/.git/hooks cannot be watched: it cannot be read, or holds too much"


def test_a_directory_that_holds_more_than_can_be_remembered_is_refused(project: Path) -> None:
    for number in range(4097):
        (project / f".git/hooks/{number}").touch()
    descriptors = open_descriptors()

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail == (f"{project}/.git/hooks cannot be watched: it cannot be read, or holds too much")
    assert open_descriptors() == descriptors


def test_submodules_that_hold_more_together_than_can_be_remembered_are_refused(project: Path) -> None:
    for name in ("modules/a/b/config", "worktrees/tree/modules/d/config"):
        with open(project / ".git" / name, "wb") as file:
            os.truncate(file.fileno(), 17 << 20)

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail.endswith("config cannot be watched: it cannot be read, or holds too much")


def test_a_repository_of_more_parts_than_can_be_watched_is_refused(project: Path) -> None:
    for number in range(257):
        (project / f".git/worktrees/{number}").mkdir()

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    why = "it has more than 256 working trees or submodules"
    assert refused.value.detail == f"{project}/.git cannot be watched: {why}"


def test_submodules_that_would_have_to_be_searched_for_are_refused(project: Path) -> None:
    for number in range(4096):
        (project / f".git/modules/part-{number}").mkdir()

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert refused.value.detail == f"{project}/.git cannot be watched: it holds too much"


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
        with pytest.raises(CannotConfine) as refused:
            enter(whose, find(bounds(project)), [])
        assert refused.value.detail == f"{project}/.git cannot be watched: {why}"
    assert told == [*put_back(project / ".git", "logs/two/zzz, modules/a/b/evil"), left_as_it_is(project)]
    assert not (logs / "two/zzz").is_symlink()
    assert not (project / ".git/modules/a/b/evil").is_symlink()


LEFT_BY_A_COMMAND = "a command has left more there than can be looked at; delete that, or move it out of there"


def left_as_it_is(project: Path) -> str:
    what = "all of it (it holds too much)"
    return f"{project}/.git is protected: what was done to {what} while the command ran was left as it is"


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
    with pytest.raises(CannotConfine) as refused:
        enter(guard, find(bounds(project)), [])
    for number in range(4097):
        (modules / f"file-{number}").unlink()

    assert refused.value.detail == f"{project}/.git cannot be watched: {LEFT_BY_A_COMMAND}"
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
            self.hurry(hurried)
        assert (left_as_it_is(project) in self.told, self.link.is_symlink()) == (True, True)
        self.told.clear()

    @staticmethod
    def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
        moments = count()
        monkeypatch.setattr(time, "monotonic", lambda: next(moments))


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
            spoiled.hurry(hurried)
            with pytest.raises(CannotConfine) as refused:
                enter(spoiled.guard, find(bounds(project)), [])
        assert refused.value.detail == f"{project}/.git cannot be watched: {LEFT_BY_A_COMMAND}"
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


def test_directories_that_can_only_be_read_are_looked_at_and_not_touched(project: Path) -> None:
    folder, told = project / ".git/refs/heads", list[str]()
    folder.chmod(0o555)
    before = folder.stat().st_ctime_ns
    with command(bounds(project), told):
        pass

    assert (folder.stat().st_ctime_ns, told) == (before, [])


@pytest.mark.parametrize("usurper", ["pipe", "folder", "link"])
def test_what_is_no_file_is_not_left_in_the_place_of_packed_branches(project: Path, usurper: str) -> None:
    packed, before, told = project / ".git/packed-refs", tree(project), list[str]()
    with command(bounds(project), told):
        packed.unlink()
        if usurper == "pipe":
            os.mkfifo(packed)
        elif usurper == "folder":
            packed.mkdir()
        else:
            packed.symlink_to("/etc/passwd")

    assert without_refused(tree(project)) == before
    kept = f"{project}/.git/.refused-X-packed-refs" if usurper == "folder" else None
    assert told == put_back(project / ".git", "packed-refs", kept=kept)


def test_what_takes_too_long_to_be_looked_at_is_told_of_and_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    before = without_refused(tree(project))
    with command(bounds(project), told):
        (project / ".git/hooks/pre-commit").write_text("evil")
        moments = count()
        monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), find(bounds(project)), [])

    assert without_refused(tree(project)) == before
    assert left_as_it_is(project) in told
    assert refused.value.detail == f"{project}/.git cannot be watched: it holds too much"


def test_what_cannot_be_looked_at_is_refused(project: Path) -> None:
    places = find(bounds(project))
    (project / ".git").rename(project / "away")
    watches: list[Watch] = []

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), places, watches)

    assert refused.value.detail == f"{project}/.git cannot be watched: No such file or directory (os error 2)"
    assert watches == []


def test_a_link_above_a_root_is_not_followed(project: Path, tmp_path: Path) -> None:
    places = find(bounds(project))
    project.parent.rename(tmp_path / "away")
    project.parent.symlink_to("away")

    with pytest.raises(CannotConfine) as refused:
        enter(Guard(), places, [])

    assert refused.value.detail == f"{project}/.git cannot be watched: Not a directory (os error 20)"
