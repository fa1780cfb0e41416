"""A sandboxed command cannot permanently change the files that control Git.

Bubblewrap prevents changes. Landlock cannot, so files are restored when the command has ended. If that is not
possible, the command counts as failed, its output gives the reason, and the files that the command created are
removed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kit.attacks.confined import MODES, Confined
from kit.attacks.nobody import NOBODY, as_nobody
from kit.builders.trees import Tree, tree
from kit.system.commands import PATH, Ran
from kit.system.needs import LANDLOCK, MECHANISMS
from parley.config.types import Mechanism
from parley.errors import SandboxUnavailable

HOOK: Final = "#!/bin/sh\ntouch hooked\n"
WORKSPACE_WRITE: Final = MODES[1]


class Repository(NamedTuple):
    """A writable project in a writable directory."""

    wide: Path
    project: Path

    def run(
        self, confined: Confined, script: str, mechanism: Mechanism | None, *, wide: bool = True
    ) -> tuple[int | None, str]:
        """Run a script in the project; return its exit code and stderr."""
        roots = (str(self.project), *((str(self.wide),) if wide else ()))
        policy = mechanism and WORKSPACE_WRITE.policy(mechanism, *roots)
        env = {"PATH": PATH, "WIDE": str(self.wide), "HOOK": HOOK}
        result = confined.run(policy or None, "sh", "-c", script, cwd=str(self.project), env=env)
        return result.exit_code, result.stderr.decode()

    def state(self) -> Tree:
        """Return everything that Git reads as the user sees it, except files that were moved away."""
        found: Tree = {}
        for name, place in (("project", self.project), ("main", self.wide / "main")):
            if (place / ".git").is_file():
                found[f"{name}/.git"] = ("file", (place / ".git").read_bytes())
            elif os.path.lexists(place / ".git"):
                found[f"{name}/.git"] = ("link" if (place / ".git").is_symlink() else "directory", b"")
                found |= {f"{name}/.git/{path}": item for path, item in tree(place / ".git").items()}
        for name in (".codex", ".claude", "tools"):
            if (self.project / name).is_symlink():
                found[name] = ("link", os.fsencode((self.project / name).readlink()))
            if os.path.lexists(self.project / name):
                found.setdefault(name, ("directory", b""))
                found |= {f"{name}/{path}": item for path, item in tree(self.project / name).items()}
        return {path: item for path, item in found.items() if ".refused-" not in path}


def plain(repository: Repository) -> None:
    """Create a repository with submodules."""
    write_files_of_git(repository.project / ".git")


def whole(repository: Repository) -> None:
    """Create a repository without submodules."""
    write_files_of_git(repository.project / ".git")
    shutil.rmtree(repository.project / ".git/modules")


def none(repository: Repository) -> None:
    """Create a project without a repository."""


def worktree(repository: Repository) -> None:
    """Create a linked working tree of another repository."""
    write_files_of_git(repository.wide / "main/.git")
    own = repository.wide / "main/.git/worktrees/project"
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    (own / "gitdir").write_text(f"{repository.project}/.git\n")
    (own / "HEAD").write_text("ref: refs/heads/other\n")
    (repository.project / ".git").write_text(f"gitdir: {own}\n")


def agents(repository: Repository) -> None:
    """Create settings of agents in the project."""
    for name in (".codex", ".claude"):
        (repository.project / name).mkdir()
        (repository.project / name / "config.toml").write_text('approval_policy = "untrusted"\n')


def linked(repository: Repository) -> None:
    """Create links to hooks, Git settings and agent settings that lie elsewhere in the project."""
    write_files_of_git(repository.project / ".git")
    for name in ("hooks", "config"):
        (repository.project / "tools").mkdir(exist_ok=True)
        (repository.project / ".git" / name).rename(repository.project / "tools" / name)
        (repository.project / ".git" / name).symlink_to(f"../tools/{name}")
    (repository.project / "tools/claude").mkdir()
    (repository.project / ".claude").symlink_to("tools/claude")


def write_files_of_git(git: Path) -> None:
    for folder in ("hooks", "info", "lfs", "logs", "objects/info", "refs/heads", "sequencer", "modules/part/hooks"):
        (git / folder).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    (git / "modules/part/config").write_text("[core]\n\trepositoryformatversion = 0\n")
    (git / "hooks/update").write_text("#!/bin/sh\nexit 1\n")
    (git / "info/exclude").write_text("*.o\n")


def obeyed(found: Tree) -> Tree:
    """Return the files of the project's own repository that control Git."""
    prefixes = tuple(f"project/.git/{name}" for name in ("config", "hooks", "info"))
    return {path: item for path, item in found.items() if path.startswith(prefixes)}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    project = tmp_path / "wide/between/project"
    project.mkdir(parents=True)
    return Repository(tmp_path / "wide", project)


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    with Confined() as confined:
        yield confined


PART: Final = (
    'mkdir -p "$part/hooks"; echo ref: refs/heads/main > "$part/HEAD"; printf "$HOOK" > "$part/hooks/post-checkout"'
)
"""A shell script that creates a Git directory with a hook, which the next `git submodule update` runs."""

ATTEMPTS: Final[dict[str, tuple[Callable[[Repository], None], str]]] = {
    "a setting": (plain, "echo '[core] hooksPath = evil' >> .git/config"),
    "a setting by git": (plain, "git config core.hooksPath evil"),
    "settings replaced": (plain, "echo '[core] fsmonitor = evil' > own; mv own .git/config"),
    "settings through a hard link": (plain, "ln .git/config own && echo '[core] fsmonitor = evil' >> own"),
    "settings of the working tree": (plain, "echo '[core] fsmonitor = evil' > .git/config.worktree"),
    "settings of another repository": (plain, "mkdir other; echo ../other > .git/commondir"),
    "a hook": (plain, 'printf "$HOOK" > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit'),
    "a hook moved there": (plain, 'printf "$HOOK" > own; chmod +x own; mv own .git/hooks/pre-commit'),
    "a hook linked there": (plain, 'printf "$HOOK" > own; chmod +x own; ln own .git/hooks/pre-commit'),
    "a hook made to run": (plain, "chmod +x .git/hooks/update"),
    "all hooks": (plain, "mkdir own; mv .git/hooks old; ln -s ../own .git/hooks"),
    "a hook of a part": (plain, 'printf "$HOOK" > .git/modules/part/hooks/pre-commit'),
    "a setting of a part": (plain, "echo '[core] hooksPath = evil' >> .git/modules/part/config"),
    "all of a part": (
        plain,
        "cp -r .git/modules/part own; mv .git/modules/part old; ln -s ../../own .git/modules/part",
    ),
    "all parts": (plain, "mv .git/modules own; ln -s ../own .git/modules"),
    "a new part": (plain, f"part=.git/modules/new; {PART}"),
    "the first part": (whole, f"part=.git/modules/lib/new; {PART}"),
    "a new part that is a link": (plain, f"part=own; {PART}; ln -s ../../own .git/modules/new"),
    "a new working tree": (plain, "mkdir -p .git/worktrees/new; echo /evil > .git/worktrees/new/commondir"),
    "a branch that is none": (plain, "echo 'ref: evil' > .git/HEAD"),
    "a link for what git writes": (plain, "ln -s config .git/COMMIT_EDITMSG"),
    "a link for what git writes further down": (plain, "ln -s ../config .git/logs/HEAD"),
    "a link for what git seldom writes": (plain, "ln -s ../config .git/sequencer/abort-safety"),
    "packs elsewhere": (plain, "mkdir own; ln -s ../../own .git/objects/pack"),
    "large files elsewhere": (plain, "mkdir own; ln -s ../../own .git/lfs/objects"),
    "attributes": (plain, "echo '* filter=evil' > .git/info/attributes"),
    "objects of another repository": (plain, "echo /evil > .git/objects/info/alternates"),
    "moved and replaced": (plain, 'mv .git own; mkdir -p .git/hooks; printf "$HOOK" > .git/hooks/pre-commit'),
    "moved and linked": (plain, "mv .git own; mkdir other; ln -s other .git"),
    "moved and named by a file": (plain, "mv .git own; echo gitdir: other > .git"),
    "moved far away": (plain, 'mv .git "$WIDE/own"'),
    "moved with the project": (
        plain,
        'cd /; mv "$WIDE/between/project" "$WIDE/own"; mkdir -p "$WIDE/between/project/.git/hooks"; '
        'printf "$HOOK" > "$WIDE/between/project/.git/hooks/pre-commit"',
    ),
    "moved with its grandparent": (
        plain,
        'cd /; mv "$WIDE/between" "$WIDE/own"; mkdir -p "$WIDE/between/project/.git/hooks"; '
        'printf "$HOOK" > "$WIDE/between/project/.git/hooks/pre-commit"',
    ),
    "made": (none, 'mkdir -p .git/hooks; printf "$HOOK" > .git/hooks/pre-commit'),
    "made by git": (none, "git init -q ."),
    "made as a file": (none, "echo gitdir: other > .git"),
    "made as a link": (none, "mkdir other; ln -s other .git"),
    "made elsewhere and moved": (none, 'mkdir -p own/hooks; printf "$HOOK" > own/hooks/pre-commit; mv own .git'),
    "the file of a working tree": (worktree, "echo gitdir: other > .git"),
    "the file of a working tree removed": (worktree, "rm .git; mkdir -p .git/hooks"),
    "a hook of the main tree": (worktree, 'printf "$HOOK" > "$WIDE/main/.git/hooks/pre-commit"'),
    "a setting of the main tree": (worktree, "echo '[core] hooksPath = evil' >> \"$WIDE/main/.git/config\""),
    "where the main tree is": (worktree, 'echo /evil > "$WIDE/main/.git/worktrees/project/commondir"'),
    "a setting of an agent": (agents, "echo 'sandbox_mode = \"danger-full-access\"' >> .codex/config.toml"),
    "a new setting of an agent": (agents, "echo '{}' > .claude/settings.json"),
    "all settings of an agent": (agents, "mv .claude own && mkdir .claude"),
    "a hook reached through a link": (linked, 'printf "$HOOK" > tools/hooks/pre-commit'),
    "a setting reached through a link": (linked, "echo '[core] hooksPath = evil' >> tools/config"),
    "all hooks reached through a link": (linked, "mv tools/hooks own && mkdir tools/hooks"),
    "a setting of an agent reached through a link": (linked, "echo '{}' > tools/claude/settings.json"),
    "a link to settings of an agent": (linked, "rm .claude && mkdir .claude"),
    "another link to settings of an agent": (linked, "mkdir own && ln -sfn own .claude"),
    "the main tree replaced": (worktree, 'mv "$WIDE/main" "$WIDE/own" && mkdir -p "$WIDE/main/.git/hooks"'),
}


UNRESTORABLE: Final = (
    "all of a part",
    "all parts",
    "moved and replaced",
    "moved and linked",
    "moved and named by a file",
    "moved far away",
    "moved with the project",
    "moved with its grandparent",
    "the main tree replaced",
)
"""Attempts that move a Git directory. With Landlock, the moved directory stays at its new path."""

DATA: Final = (
    "a branch that is none",
    "a link for what git writes",
    "a link for what git writes further down",
    "a link for what git seldom writes",
    "packs elsewhere",
    "large files elsewhere",
)
"""Attempts on files that do not control Git. With Landlock, these files stay changed."""

IN_BOTH: Final = ("a setting", "a hook moved there", "moved and replaced", "made", "made by git")
"""Attempts that are made twice: in a project that is itself a root, and in a project below a wider root."""


def cases() -> Iterator[tuple[str, bool]]:
    for name, (layout, script) in ATTEMPTS.items():
        needs_wide = "$WIDE" in script or layout is worktree
        if not needs_wide:
            yield name, False
        if needs_wide or name in IN_BOTH:
            yield name, True


@pytest.mark.parametrize("name", ATTEMPTS)
def test_git_can_be_turned_against_its_user_without_a_sandbox(
    confined: Confined, repository: Repository, name: str
) -> None:
    layout, script = ATTEMPTS[name]
    layout(repository)
    before = repository.state()

    assert repository.run(confined, script, None) == (0, "")

    assert repository.state() != before


@pytest.mark.promises("sandbox.git")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("name", "wide"),
    [pytest.param(name, wide, id=f"{name}{', below a wider root' * wide}") for name, wide in cases()],
)
def test_git_is_as_it_was(
    confined: Confined, repository: Repository, name: str, wide: bool, mechanism: Mechanism
) -> None:
    layout, script = ATTEMPTS[name]
    layout(repository)
    before = repository.state()

    exit_code, complaint = repository.run(confined, script, mechanism, wide=wide)

    after = repository.state()
    if mechanism == "landlock" and name in DATA:
        assert (exit_code, complaint) == (0, "")
    elif mechanism == "landlock" and name in UNRESTORABLE:
        assert exit_code == 1
        assert "could not be restored: " in complaint
        assert after.items() < before.items()
    else:
        assert after == before
        assert (exit_code == 0, complaint == "") == (False, False)


MAPPED: Final = """
import mmap, os
with open(".git/config", "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
    before = os.fstat(file.fileno())
    size = len(shared[:])  # pages that were read first can be written to without a notification
    shared[:] = b"[core]\\nfsmonitor = evil\\n".ljust(size, b"#")
    after = os.fstat(file.fileno())
print(before.st_mtime_ns == after.st_mtime_ns and before.st_ctime_ns == after.st_ctime_ns)
"""


@pytest.fixture
def in_memory() -> Iterator[Repository]:
    """Create a repository on a tmpfs."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("there is no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        project = Path(place, "project")
        project.mkdir()
        yield Repository(Path(place), project)


@LANDLOCK
@pytest.mark.promises("sandbox.git")
def test_settings_that_are_written_by_way_of_memory_are_put_back(
    confined: Confined, in_memory: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(in_memory)
    before, cwd, words = in_memory.state(), str(in_memory.project), (sys.executable, "-c", MAPPED)
    within = WORKSPACE_WRITE.policy("landlock", cwd)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10_000_000_000)  # the file was not changed recently

    for _ in range(2):
        result = confined.run(within, *words, cwd=cwd)

        assert (in_memory.state(), result.exit_code) == (before, 1)
    assert confined.run(None, *words, cwd=cwd) == Ran(exit_code=0, stdout=b"True\n")
    assert in_memory.state() != before


@LANDLOCK
def test_a_file_name_chosen_by_a_command_forges_no_line_of_the_report(
    confined: Confined, repository: Repository
) -> None:
    plain(repository)
    script = "cp .git/config \"$(printf '.git/hooks/x\\nprotected files: \\033[2K')\""

    _, complaint = repository.run(confined, script, "landlock", wide=False)

    lines = complaint.splitlines()
    assert [line.isprintable() and str(repository.project) in line for line in lines] == [True]


@LANDLOCK
def test_commits_branches_and_garbage_collection_are_no_failure(confined: Confined, repository: Repository) -> None:
    script = (
        "git -c user.name=a -c user.email=b -c commit.gpgsign=false commit -q --allow-empty -m one && "
        "git branch one && git branch -q -d one && git pack-refs --all && git gc -q"
    )
    assert repository.run(confined, "git init -q .", None) == (0, "")

    exit_code, complaint = repository.run(confined, script, "landlock", wide=False)

    assert (exit_code, complaint) == (0, "")


PLANT_HOOK: Final = 'printf "$HOOK" > .git/hooks/pre-commit; echo begun; sleep 1000'


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_git_is_as_it_was_when_the_time_of_a_command_is_over(
    confined: Confined, repository: Repository, mechanism: Mechanism
) -> None:
    plain(repository)
    before = repository.state()
    policy = WORKSPACE_WRITE.policy(mechanism, str(repository.project))

    begun, seconds = False, 0.4
    while not begun:
        result = confined.run(policy, "sh", "-c", PLANT_HOOK, cwd=str(repository.project), timeout_seconds=seconds)
        begun, seconds = b"begun" in result.stdout, 2 * seconds

        assert (result.timed_out, repository.state()) == (True, before)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_git_is_as_it_was_when_a_command_is_cancelled(
    confined: Confined, repository: Repository, mechanism: Mechanism
) -> None:
    plain(repository)
    before = repository.state()
    policy = WORKSPACE_WRITE.policy(mechanism, str(repository.project))

    confined.cancel_when_it_speaks(policy, "sh", "-c", PLANT_HOOK, cwd=str(repository.project))

    assert repository.state() == before


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("script", ["rm -rf .git", "rm -rf .git; git init -q .; git config core.fsmonitor evil"])
def test_a_repository_that_is_deleted_is_reported_and_git_obeys_no_file_of_another(
    confined: Confined, repository: Repository, script: str, mechanism: Mechanism
) -> None:
    plain(repository)
    before = repository.state()

    exit_code, complaint = repository.run(confined, script, mechanism)

    after = repository.state()
    assert exit_code != 0
    if mechanism == "bubblewrap":
        assert after == before
        return
    assert f"could not be restored: {repository.project}/.git" in complaint
    # A new directory may have the inode number of the deleted one. Its files are then restored.
    assert obeyed(after) in ({}, obeyed(before))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_settings_have_no_second_name_by_which_they_could_be_written_later(
    confined: Confined, repository: Repository, mechanism: Mechanism
) -> None:
    plain(repository)
    before = repository.state()

    exit_code, complaint = repository.run(confined, "touch own; ln -f .git/config own", mechanism, wide=False)
    (repository.project / "own").write_text("[core] fsmonitor = evil")

    assert repository.state() == before
    assert (exit_code == 0, complaint == "") == (False, False)


def test_under_landlock_a_branch_that_is_switched_to_stays(confined: Confined, repository: Repository) -> None:
    plain(repository)

    assert repository.run(confined, "echo 'ref: refs/heads/other' > .git/HEAD", "landlock") == (0, "")
    assert (repository.project / ".git/HEAD").read_text() == "ref: refs/heads/other\n"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_link_for_a_repository_is_refused(
    confined: Confined, repository: Repository, mechanism: Mechanism
) -> None:
    write_files_of_git(repository.wide / "elsewhere")
    (repository.project / ".git").symlink_to(repository.wide / "elsewhere")

    with pytest.raises(SandboxUnavailable) as refused:
        repository.run(confined, "echo ran >> $WIDE/elsewhere/config", mechanism)

    assert str(refused.value) == (
        f"{repository.project}/.git is a symbolic link, and its target cannot be protected"
    )
    assert "ran" not in (repository.wide / "elsewhere/config").read_text()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_repository_that_was_made_is_moved_aside_as_one(
    confined: Confined, repository: Repository, mechanism: Mechanism
) -> None:
    exit_code, _ = repository.run(confined, "git init -q .", mechanism, wide=False)

    assert exit_code != 0
    assert len(os.listdir(repository.project)) == (mechanism == "landlock")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_git_of_another_user_where_all_may_write_stops_no_command(
    confined: Confined, repository: Repository, mechanism: Mechanism
) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    (repository.wide / ".git").symlink_to("elsewhere")
    os.chown(repository.wide / ".git", NOBODY, NOBODY, follow_symlinks=False)
    repository.wide.chmod(0o1777)

    script = "rm .git 2>/dev/null; touch file 2>/dev/null || echo kept"
    policy = WORKSPACE_WRITE.policy(mechanism, str(repository.wide))
    result = confined.run(policy, "sh", "-c", script, cwd=str(repository.wide))

    assert (result.exit_code, result.stdout) == (0, b"kept\n")
    assert (repository.wide / ".git").is_symlink()


OWN_AND_CLOSED: Final = """
import os, tempfile
from kit.attacks.confined import MODES, Confined

with Confined() as confined, tempfile.TemporaryDirectory() as project:
    os.chmod(project, 0o555)
    script = "echo runs; chmod 755 . && mkdir -p .git/hooks"
    policy = MODES[1].policy(MECHANISM, project)
    said = confined.run(policy, "sh", "-c", script, cwd=project).stdout.decode().strip()
    print(said, os.path.isdir(f"{project}/.git"))
    os.chmod(project, 0o755)
"""


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_in_a_directory_that_the_user_has_closed_commands_run_and_make_no_repository(mechanism: Mechanism) -> None:
    assert as_nobody("-c", OWN_AND_CLOSED.replace("MECHANISM", repr(mechanism))) == "runs False\n"


# --- roots that were replaced ------------------------------------------------------------

REPLACED: Final = {
    "by a link": 'mv "$0/project" "$0/away"; ln -s "$1" "$0/project"',
    "by another directory": 'mv "$0/project" "$0/away"; mkdir "$0/project"',
    "by a link further up": 'mv "$0" "$0-away"; mkdir "$0-own"; ln -s "$1" "$0-own/project"; ln -s "$0-own" "$0"',
}


@pytest.mark.promises("sandbox.replaced")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("how", REPLACED)
def test_a_root_that_was_replaced_between_two_commands_is_refused(
    confined: Confined, tmp_path: Path, how: str, mechanism: Mechanism
) -> None:
    wide, outside = tmp_path / "wide", tmp_path / "outside"
    for folder in (wide / "between/project", outside):
        folder.mkdir(parents=True)
    project = wide / "between/project"
    before = WORKSPACE_WRITE.policy(mechanism, str(project))
    swap = ("sh", "-c", REPLACED[how], str(wide / "between"), str(outside))
    assert confined.run(WORKSPACE_WRITE.policy(mechanism, str(wide)), *swap).exit_code == 0

    with pytest.raises(SandboxUnavailable) as refused:
        confined.run(before, "sh", "-c", 'echo written > "$0/new"', str(project))

    assert str(refused.value) == (f"{project} is no longer writable: it was replaced by another directory")
    assert [*outside.iterdir(), *(wide / "between").resolve().glob("project/new")] == []
    # The control: without the comparison of identities, the command writes to a directory that the policy does not
    # allow.
    confined.run(None, "sh", "-c", 'echo written > "$0/new"', str(project))
    assert (project / "new").read_text() == "written\n"
    shutil.rmtree(wide)
