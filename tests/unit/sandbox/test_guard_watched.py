"""What the guard watches: what git and agents run and obey, and nothing that is data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.builders.bounds import bounds
from kit.builders.trees import tree
from kit.system.commands import open_descriptors
from kit.system.git_guard import command, enter, put_back, without_refused
from parley.errors import SandboxUnavailable
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


def test_a_name_forges_no_line_of_what_is_told(project: Path) -> None:
    told: list[str] = []
    with command(bounds(project), told):
        (project / ".git/hooks/x\n.git is fine\x1b[2K").write_text("evil")

    name = "$'hooks/x\\n.git is fine\\x1b[2K'"
    kept = f"$'{project}/.git/.refused-X-x\\n.git is fine\\x1b[2K'"
    assert told == put_back(project / ".git", name, kept=kept)


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


def test_what_cannot_be_looked_at_is_refused(project: Path) -> None:
    places = find(bounds(project))
    (project / ".git").rename(project / "away")
    watches: list[Watch] = []

    with pytest.raises(SandboxUnavailable) as refused:
        enter(Guard(), places, watches)

    assert refused.value.detail == f"{project}/.git cannot be watched: No such file or directory (os error 2)"
    assert watches == []
