"""After a command, protected files are as before, and files that the command added are moved away."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from kit.attacks.nobody import NOBODY, as_nobody
from kit.builders.sandbox_policies import sandbox_policy
from kit.builders.trees import tree
from kit.system.protected import command, without_moved
from parley.errors import SandboxUnavailable

OBEYED = (
    "config",
    "config.worktree",
    "hooks/pre-commit",
    "hooks/update",
    "remotes/origin",
    "branches/main",
    "hooks/sub/x",
    "info/attributes",
    "info/exclude",
    "objects/info/alternates",
    "commondir",
    "gitdir",
    "modules/a/b/config",
    "modules/a/b/hooks/pre-commit",
    "modules/a/b/modules/c/config",
    "modules/a/HEAD",
    "worktrees/tree/commondir",
    "worktrees/tree/gitdir",
    "worktrees/tree/config.worktree",
)

DATA = (
    "COMMIT_EDITMSG",
    "HEAD",
    "ORIG_HEAD",
    "FETCH_HEAD",
    "index",
    "info/refs",
    "packed-refs",
    "objects/info/packs",
    "refs/heads/config",
    "modules/a/b/index",
    "worktrees/tree/HEAD",
)


def change(path: Path, how: str) -> None:
    """Change a file, or create one."""
    if how == "written":
        path.write_text("evil\n")
        return
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "file").touch()


@pytest.mark.parametrize("name", OBEYED)
def test_a_file_that_git_obeys_is_as_before(project: Path, name: str) -> None:
    before, path = tree(project), project / ".git" / name
    was_there = path.exists()

    with command(sandbox_policy(project)) as result:
        change(path, "written")

    assert without_moved(tree(project)) == before
    assert (result.restored, result.moved) == (({str(path)}, set()) if was_there else (set(), {str(path)}))
    assert result.left == set()


@pytest.mark.parametrize("how", ["link", "pipe", "directory"])
def test_files_that_git_obeys_and_that_were_replaced_are_as_before(project: Path, how: str) -> None:
    before, paths = tree(project), [project / ".git" / name for name in OBEYED]
    old = {str(path) for path in paths if path.exists()}

    with command(sandbox_policy(project)) as result:
        for path in paths:
            change(path, how)

    assert without_moved(tree(project)) == before
    moved = {str(path) for path in paths} - (old if how == "link" else set())
    assert (result.restored, result.moved, result.left) == (old, moved, set())


def test_everything_else_is_data(project: Path) -> None:
    with command(sandbox_policy(project)) as result:
        for name in DATA:
            (project / ".git" / name).write_text("changed\n")

    assert {(project / ".git" / name).read_text() for name in DATA} == {"changed\n"}
    assert (result.restored, result.moved, result.left) == (set(), set(), set())


def test_a_change_that_is_not_there_any_more_is_not_reported(project: Path) -> None:
    with command(sandbox_policy(project)) as result:
        config = project / ".git/config"
        content = config.read_bytes()
        config.write_text("evil")
        config.write_bytes(content)

    assert (result.restored, result.moved, result.left) == (set(), set(), set())


@pytest.mark.parametrize("name", ["config", "hooks", "hooks/sub", "info"])
def test_files_and_directories_that_were_deleted_are_created_again(project: Path, name: str) -> None:
    before, path = tree(project), project / ".git" / name

    with command(sandbox_policy(project)) as result:
        path.rename(project / "own")

    assert {path: item for path, item in tree(project).items() if not path.startswith("own")} == before
    assert (result.restored, result.moved, result.left) == ({str(path)}, set(), set())


@pytest.mark.parametrize("name", [".git", ".git/config", ".git/hooks", ".git/hooks/update", ".git/modules"])
@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_modes_are_restored(project: Path, name: str, mode: int) -> None:
    before = tree(project)

    with command(sandbox_policy(project)) as result:
        (project / name).chmod(mode)

    assert tree(project) == before
    assert result.restored == {str(project / name)}


def test_a_second_name_of_a_file_does_not_lead_to_it_afterwards(project: Path) -> None:
    with command(sandbox_policy(project)) as result:
        os.link(project / ".git/config", project / "own")
    (project / "own").write_text("evil")

    assert (project / ".git/config").read_text() == "config\n"
    assert result.restored == {f"{project}/.git/config"}


def test_a_second_name_that_a_file_had_before_stays(project: Path) -> None:
    os.link(project / ".git/config", project / "own")

    with command(sandbox_policy(project)) as result:
        pass

    assert (project / ".git/config").samefile(project / "own")
    assert result.restored == set()


@pytest.mark.parametrize(
    "how", ["as it was", "linked and unlinked", "renamed and renamed back", "replaced by a copy"]
)
def test_a_file_that_is_still_open_for_writing_cannot_be_changed_by_that_afterwards(
    project: Path, how: str
) -> None:
    """A running command of another root holds the descriptor."""
    config, own = project / ".git/config", project / "own"

    with command(sandbox_policy(project)) as result:
        if how == "linked and unlinked":
            os.link(config, own)
        elif how == "renamed and renamed back":
            config.rename(own)
        elif how == "replaced by a copy":
            shutil.copy2(config, own)
        with open(own if own.exists() else config, "r+") as opened:
            held = os.dup(opened.fileno())
        if how == "linked and unlinked":
            own.unlink()
        elif own.exists():
            own.rename(config)
    os.write(held, b"evil")
    os.close(held)

    assert config.read_text() == "config\n"
    assert result.restored == {str(config)}


def test_a_file_that_was_open_for_writing_before_is_not_replaced(project: Path) -> None:
    with open(project / ".git/config", "r+"):
        before = (project / ".git/config").stat().st_ino
        with command(sandbox_policy(project)) as result:
            pass

    assert ((project / ".git/config").stat().st_ino, result.restored) == (before, set())


def test_a_file_of_another_user_keeps_its_owner(project: Path) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    os.chown(project / ".git/config", NOBODY, NOBODY)

    with command(sandbox_policy(project)):
        (project / ".git/config").write_text("evil")

    assert ((project / ".git/config").read_text(), (project / ".git/config").stat().st_uid) == ("config\n", NOBODY)


@pytest.mark.parametrize("name", ["modules/new", "modules/a/new", "modules/a/b/modules/new", "worktrees/new"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_git_directory_that_was_added_is_moved_out_of_the_way_as_a_whole(
    project: Path, name: str, is_link: bool
) -> None:
    before, path = tree(project), project / ".git" / name

    with command(sandbox_policy(project)) as result:
        if is_link:
            path.symlink_to("/elsewhere")
        else:
            (path / "hooks").mkdir(parents=True)
            (path / "HEAD").touch()

    assert without_moved(tree(project)) == before
    # Next to a submodule, the moved file could have the name of a submodule.
    [moved] = result.new.values()
    assert os.path.dirname(moved) == str(project / ".git")
    assert (result.moved, result.left) == ({str(path)}, set())


def test_a_directory_with_a_great_many_added_hooks_is_replaced(project: Path) -> None:
    before = tree(project)

    with command(sandbox_policy(project)) as result:
        for number in range(300):
            (project / ".git/hooks" / str(number)).touch()

    assert without_moved(tree(project)) == before
    assert (result.restored, result.moved, result.left) == (
        {f"{project}/.git/hooks"},
        {f"{project}/.git/hooks"},
        set(),
    )


def test_a_great_many_added_submodules_cannot_be_moved_aside(project: Path) -> None:
    with command(sandbox_policy(project)) as result:
        for number in range(300):
            (project / ".git/modules" / str(number)).mkdir()

    assert (result.moved, result.left) == (set(), {f"{project}/.git/modules"})


@pytest.mark.parametrize("replacement", ["nothing", "directory", "link", "file"])
@pytest.mark.parametrize("name", [".git", ".git/modules", ".git/modules/a/b", ".git/worktrees/tree"])
def test_a_git_directory_that_was_moved_away_is_named_and_nothing_is_in_its_place(
    project: Path, name: str, replacement: str
) -> None:
    path, own = project / name, project / "own"

    with command(sandbox_policy(project)) as result:
        path.rename(own)
        if replacement == "directory":
            (path / "hooks").mkdir(parents=True)
        elif replacement == "link":
            path.symlink_to(own)
        elif replacement == "file":
            path.write_text("gitdir: own\n")

    assert not os.path.lexists(path)
    assert (result.moved, result.left) == (set() if replacement == "nothing" else {str(path)}, {str(path)})


@pytest.mark.parametrize("replacement", ["directory", "link"])
@pytest.mark.parametrize("moved", ["project", ""])
def test_a_repository_in_place_of_one_whose_parents_were_moved_is_moved_aside(
    project: Path, tmp_path: Path, replacement: str, moved: str
) -> None:
    wide = project.parent
    between = wide / moved if moved else wide

    with command(sandbox_policy(tmp_path, project)) as result:
        between.rename(tmp_path / "own")
        if replacement == "link":
            (tmp_path / "evil/project/.git/hooks").mkdir(parents=True)
            between.symlink_to(tmp_path / "evil" / moved)
        else:
            (project / ".git/hooks").mkdir(parents=True)

    assert not os.path.lexists(project / ".git")
    assert result.left == {f"{project}/.git"}
    assert result.moved == ({str(between)} if replacement == "link" else {f"{project}/.git"})


def test_a_link_in_place_of_objects_is_moved_aside(project: Path) -> None:
    with command(sandbox_policy(project)) as result:
        (project / ".git/objects").rename(project / "own")
        (project / ".git/objects").symlink_to(project / "own")

    assert not os.path.lexists(project / ".git/objects")
    assert (result.moved, result.left) == ({f"{project}/.git/objects"}, set())


@pytest.mark.parametrize("name", ["hooks", "objects", "modules"])
def test_a_link_that_was_there_before_is_protected_itself(project: Path, name: str) -> None:
    path = project / ".git" / name
    (project / "tools").mkdir()
    path.rename(project / "tools" / name)
    path.symlink_to(f"../tools/{name}")
    before = tree(project)

    with command(sandbox_policy(project)) as result:
        path.unlink()
        path.mkdir()

    assert without_moved(tree(project)) == before
    assert (result.restored, result.moved) == ({str(path)}, {str(path)})


def test_hooks_that_a_link_leads_to_are_protected(project: Path) -> None:
    (project / "tools").mkdir()
    (project / ".git/hooks").rename(project / "tools/hooks")
    (project / ".git/hooks").symlink_to("../tools/hooks")
    before = tree(project)

    with command(sandbox_policy(project)) as result:
        (project / "tools/hooks/update").write_text("evil")

    assert tree(project) == before
    assert result.restored == {f"{project}/tools/hooks/update"}


def test_settings_of_agents_are_protected(project: Path) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text("{}")
    before = tree(project)

    with command(sandbox_policy(project)) as result:
        (project / ".claude/settings.json").write_text('{"hooks": {}}')
        (project / ".claude/new.json").touch()

    assert without_moved(tree(project)) == before
    assert (result.restored, result.moved) == (
        {f"{project}/.claude/settings.json"},
        {f"{project}/.claude/new.json"},
    )


def test_a_pipe_that_was_there_before_stays_and_cannot_be_created_again(project: Path) -> None:
    pipe = project / ".git/hooks/pipe"
    os.mkfifo(pipe)
    with command(sandbox_policy(project)) as unchanged:
        pass

    with command(sandbox_policy(project)) as result:
        pipe.unlink()
        pipe.write_text("evil")

    assert (unchanged.restored, unchanged.left) == (set(), set())
    assert not os.path.lexists(pipe)
    assert (result.moved, result.left) == ({str(pipe)}, {str(pipe)})


# --- limits ------------------------------------------------------------------------------


def refusal(project: Path) -> str:
    with pytest.raises(SandboxUnavailable) as refused, command(sandbox_policy(project)):
        pass
    return str(refused.value)


@pytest.mark.long
def test_more_files_than_a_snapshot_holds_are_refused(project: Path) -> None:
    for number in range(4100):
        (project / ".git/hooks" / str(number)).touch()

    assert refusal(project) == (
        f"{project}/.git cannot be protected: it holds more than 4096 protected files; "
        "use bubblewrap, or move some of them out of it"
    )


def test_more_bytes_than_a_snapshot_holds_are_refused(project: Path) -> None:
    with open(project / ".git/hooks/large", "wb") as file:
        file.truncate(32 * 1024 * 1024 + 1)

    assert refusal(project) == (
        f"{project}/.git/hooks/large cannot be protected: the server cannot read it, or the protected files in "
        f"{project}/.git exceed 32 MiB"
    )


def test_a_file_that_a_command_made_large_is_not_read(project: Path) -> None:
    with command(sandbox_policy(project)) as result:
        os.truncate(project / ".git/config", 1 << 40)

    assert (project / ".git/config").read_text() == "config\n"
    assert result.restored == {f"{project}/.git/config"}


# --- a .git that is missing --------------------------------------------------------------


@pytest.mark.parametrize("how", ["directory", "link", "file"])
def test_a_git_that_was_created_is_moved_aside(tmp_path: Path, how: str) -> None:
    git = tmp_path / ".git"

    with command(sandbox_policy(tmp_path)) as result:
        if how == "directory":
            (git / "hooks").mkdir(parents=True)
        elif how == "link":
            git.symlink_to("other")
        else:
            git.write_text("gitdir: other\n")

    assert not os.path.lexists(git)
    assert (result.moved, result.left) == ({str(git)}, set())


def test_an_empty_git_is_removed_without_a_report(tmp_path: Path) -> None:
    with command(sandbox_policy(tmp_path)) as result:
        (tmp_path / ".git").mkdir()

    assert (tree(tmp_path), result.moved, result.left) == ({}, set(), set())


def test_the_placeholder_of_another_server_stays(tmp_path: Path) -> None:
    with command(sandbox_policy(tmp_path)) as result:
        (tmp_path / ".git").mkdir()
        descriptor = os.open(tmp_path / ".git", os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.close(descriptor)

    assert (list(tree(tmp_path)), result.moved, result.left) == ([".git"], set(), set())


def test_a_git_of_another_user_in_a_directory_that_is_open_to_all_stays(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    tmp_path.chmod(0o1777)

    with command(sandbox_policy(tmp_path)) as result:
        (tmp_path / ".git/hooks").mkdir(parents=True)
        os.chown(tmp_path / ".git", NOBODY, NOBODY)

    assert (list(tree(tmp_path)), result.moved, result.left) == ([".git", ".git/hooks"], set(), set())


# --- as an ordinary user -----------------------------------------------------------------

AS_NOBODY = """
import os, tempfile
from pathlib import Path
from kit.builders.sandbox_policies import sandbox_policy
from kit.system.protected import command, write_files_of_git, without_moved
from kit.builders.trees import tree

for name in (".git", ".git/config", ".git/hooks", ".git/hooks/sub", ".git/modules", ".git/modules/a/b"):
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder).resolve()
        write_files_of_git(project / ".git")
        before = tree(project)
        with command(sandbox_policy(project)) as result:
            (project / ".git/hooks/pre-commit").touch()
            (project / ".git/modules/new/hooks").mkdir(parents=True)
            (project / ".git/modules/new").chmod(0)
            (project / name).chmod(0)
        same = {path: item for path, item in tree(project).items() if ".refused-" not in path} == before
        print(same, len(result.moved), sorted(result.left))
        for each in (project / ".git").iterdir():
            each.is_symlink() or each.chmod(0o700)
"""


def test_files_and_directories_that_a_command_closed_to_their_owner_are_restored() -> None:
    assert as_nobody("-c", AS_NOBODY) == "True 2 []\n" * 6
