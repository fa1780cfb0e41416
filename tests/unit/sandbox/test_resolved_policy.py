from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kit.attacks.nobody import NOBODY
from kit.builders.sandbox_policies import root, sandbox_policy
from kit.builders.trees import not_a_link
from parley.errors import SandboxUnavailable
from parley.ports.commands import SandboxPolicy
from parley.sandbox.resolved_policy import ResolvedPolicy, refuse_hidden_cwd, resolve
from parley.wire.text import quoted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


def refusal(policy: SandboxPolicy) -> str:
    with pytest.raises(SandboxUnavailable) as refused:
        resolve(policy)
    return refused.value.detail


# --- the installation of Parley ------------------------------------------------------------------


def test_the_outermost_places_in_a_root_where_parley_is_installed_are_known(project: Path) -> None:
    (project / ".venv/lib").mkdir(parents=True)
    outside = project.parent / "lib"
    outside.mkdir()

    found = resolve(sandbox_policy(project, installed=(project / ".venv/lib", project / ".venv", outside)))

    assert found == ResolvedPolicy(
        roots=(str(project),), missing_git=(f"{project}/.git",), installed=(f"{project}/.venv",)
    )
    assert not found.is_writable(f"{project}/.venv/lib/x")


def test_a_root_that_cannot_be_protected_where_parley_is_installed_is_none(project: Path) -> None:
    (project / ".venv").mkdir()
    inner, other = project / "inner", project.parent / "other"
    inner.mkdir()
    other.mkdir()

    found = resolve(sandbox_policy(project, inner, other, installed=(project / ".venv",)), protects_installed=False)

    assert found == ResolvedPolicy(
        roots=(str(other), str(inner)), missing_git=(f"{other}/.git", f"{inner}/.git"), refused=(str(project),)
    )


@pytest.mark.parametrize("place", ["", "package"])
def test_a_root_that_parley_s_modules_are_loaded_from_is_refused(project: Path, place: str) -> None:
    (project / place).mkdir(exist_ok=True)

    why = f"Parley, or the Python that runs it, loads its modules from {project}"
    assert refusal(sandbox_policy(project / place, installed=(project,))) == (
        f"commands cannot write to {project / place if place else project}: {why}"
    )


def test_a_place_of_modules_that_a_command_could_make_is_refused(project: Path) -> None:
    place = project / "lib/missing"

    why = f"the Python that runs Parley loads modules from {place}, which does not exist"
    assert refusal(sandbox_policy(project, installed=(place,))) == f"commands cannot write to {project}: {why}"


def test_a_link_to_where_parley_is_installed_is_looked_at_afterwards(project: Path) -> None:
    (project / "environments/own").mkdir(parents=True)
    (project / ".venv").symlink_to("environments/own")

    found = resolve(sandbox_policy(project, installed=(project / ".venv", project / "environments/own")))

    assert (found.installed, found.links) == ((f"{project}/environments/own",), (f"{project}/.venv",))


# --- protected paths -----------------------------------------------------------------------------


def test_git_and_the_settings_of_agents_are_protected_in_a_root(project: Path) -> None:
    for name in (".git/objects", ".codex", "src/.claude"):
        (project / name).mkdir(parents=True)
    (project / ".cursor").write_text("a file")

    assert resolve(sandbox_policy(project)) == ResolvedPolicy(
        roots=(str(project),),
        git_directories=(f"{project}/.git",),
        protected=(f"{project}/.codex", f"{project}/.cursor"),
    )


def test_where_there_is_no_git_its_place_is_known(project: Path) -> None:
    other = project / "other"
    (other / ".git").mkdir(parents=True)

    assert resolve(sandbox_policy(project, other)) == ResolvedPolicy(
        roots=(str(project), str(other)), missing_git=(f"{project}/.git", f"{other}/.git")
    )


def test_a_git_directory_that_is_a_root_is_writable(project: Path) -> None:
    (project / ".git/objects").mkdir(parents=True)

    found = resolve(sandbox_policy(project, project / ".git"))

    assert found == ResolvedPolicy(roots=(str(project), f"{project}/.git"), missing_git=(f"{project}/.git/.git",))


def test_a_file_in_place_of_git_is_protected_with_all_that_it_leads_to(project: Path) -> None:
    main = project / "main/.git"
    own = main / "worktrees/tree"
    tree = project / "tree"
    own.mkdir(parents=True)
    tree.mkdir()
    (own / "commondir").write_text("../..\n")
    (tree / ".git").write_text(f"gitdir: {own}\n")

    assert resolve(sandbox_policy(tree)) == ResolvedPolicy(roots=(str(tree),), protected=(f"{tree}/.git",))
    assert resolve(sandbox_policy(tree, project)) == ResolvedPolicy(
        roots=(str(project), str(tree)),
        git_directories=(str(main),),
        protected=(f"{tree}/.git",),
        missing_git=(f"{project}/.git",),
    )


def test_a_link_in_place_of_git_is_refused(project: Path) -> None:
    (project / "elsewhere").mkdir()
    (project / ".git").symlink_to("elsewhere")

    assert refusal(sandbox_policy(project)) == (
        f"{project}/.git is a symbolic link, and its target cannot be protected"
    )


@pytest.mark.parametrize("content", ["gitdir: elsewhere/git", "gitdir: {project}/sub/../elsewhere/git"])
def test_a_file_that_leads_to_where_a_command_could_put_something_is_refused(project: Path, content: str) -> None:
    (project / ".git").write_text(content.format(project=project))

    place = f"{project}/elsewhere/git"
    assert refusal(sandbox_policy(project)) == (
        f"{project}/.git leads to {place}, which does not exist, and cannot be protected"
    )


def test_a_file_that_leads_through_a_link_that_a_command_could_replace_is_refused(project: Path) -> None:
    (project / "real/git").mkdir(parents=True)
    (project / "link").symlink_to("real")
    (project / ".git").write_text("gitdir: link/git\n")

    assert refusal(sandbox_policy(project)) == (
        f"{project}/.git leads to {project}/link/git, through a symbolic link, and cannot be protected"
    )


@pytest.mark.parametrize(
    "content", [b"", b"gitdir:", b"gitdir: \n", b"\xff\x00\xff", b"gitdir: a\0b", b"x" * 100_000]
)
def test_a_file_that_leads_nowhere_is_protected_alone(project: Path, content: bytes) -> None:
    (project / ".git").write_bytes(content)

    assert resolve(sandbox_policy(project)) == ResolvedPolicy(roots=(str(project),), protected=(f"{project}/.git",))


def test_linked_settings_of_agents_are_protected_where_they_could_be_written_to(
    project: Path, tmp_path: Path
) -> None:
    (project / "dotfiles/claude").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (project / ".claude").symlink_to("dotfiles/claude")
    (project / ".codex").symlink_to(tmp_path / "outside")

    found = resolve(sandbox_policy(project))
    assert found.protected == (f"{project}/dotfiles/claude",)
    assert found.links == (f"{project}/.claude", f"{project}/.codex")


def test_all_links_on_the_way_to_something_protected_are_known(project: Path, tmp_path: Path) -> None:
    (project / "real/claude").mkdir(parents=True)
    (project / ".claude").symlink_to("first/claude")
    (project / "first").symlink_to(f"{project}/./second")
    (project / "second").symlink_to("../project/real")
    (project / ".codex").symlink_to(".codex")

    assert resolve(sandbox_policy(project)) == ResolvedPolicy(
        roots=(str(project),),
        protected=(f"{project}/real/claude",),
        missing_git=(f"{project}/.git",),
        links=tuple(f"{project}/{name}" for name in (".claude", ".codex", "first", "second")),
    )


def test_linked_files_that_git_obeys_are_protected_where_they_could_be_written_to(
    project: Path, tmp_path: Path
) -> None:
    for folder in (project / ".git/own", project / "tools/hooks", tmp_path / "outside"):
        folder.mkdir(parents=True)
    (project / ".git/hooks").symlink_to("../tools/hooks")
    (project / ".git/info").symlink_to("own")
    (project / ".git/config").symlink_to(tmp_path / "outside")

    assert resolve(sandbox_policy(project)) == ResolvedPolicy(
        roots=(str(project),),
        git_directories=(f"{project}/.git",),
        protected=(f"{project}/.git/own", f"{project}/tools/hooks"),
    )


def test_a_working_directory_that_is_moved_about_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "link").symlink_to(project)
    found = resolve(sandbox_policy(project))
    monkeypatch.setattr(os, "readlink", not_a_link)

    with pytest.raises(SandboxUnavailable) as refused:
        refuse_hidden_cwd(found, f"{project}/link")
    assert refused.value.detail == f"the working directory {project}/link cannot be examined: Invalid argument"


def test_a_root_that_is_moved_away_meanwhile_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def moved_away(path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if path == str(project):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    within = sandbox_policy(project)
    monkeypatch.setattr(os, "stat", moved_away)

    assert refusal(within) == f"{project} cannot be examined: No such file or directory"


@pytest.mark.parametrize("target", ["missing", "."])
def test_a_link_of_git_to_where_a_command_could_put_something_is_refused(project: Path, target: str) -> None:
    (project / ".git").mkdir()
    (project / ".git/hooks").symlink_to(f"../{target}")

    place = project if target == "." else project / target
    assert refusal(sandbox_policy(project)) == f"{project}/.git/hooks leads to {place}, which cannot be protected"


@pytest.mark.parametrize("made", ["link", "repository", "file"])
@pytest.mark.parametrize(
    ("mode", "owner", "is_left_out"), [(0o1777, NOBODY, False), (0o1777, 0, True), (0o777, NOBODY, True)]
)
def test_a_git_directory_of_another_user_in_a_public_root_refuses_no_command(
    project: Path, made: str, mode: int, owner: int, is_left_out: bool
) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    git = project / ".git"
    if made == "link":
        git.symlink_to("elsewhere")
    elif made == "repository":
        (git / "hooks").mkdir(parents=True)
    else:
        git.write_text("gitdir: elsewhere")
    (project / ".claude").mkdir()
    for path, user in ((git, NOBODY), (project / ".claude", NOBODY), (project, owner)):
        os.chown(path, user, user, follow_symlinks=False)
    project.chmod(mode)

    assert resolve(sandbox_policy(project)) == ResolvedPolicy(roots=() if is_left_out else (str(project),))


def test_a_git_of_another_user_that_could_be_replaced_within_another_root_is_refused(
    project: Path, tmp_path: Path
) -> None:
    if os.getuid():
        pytest.skip("only the superuser can make something for another user")
    (project / ".git/hooks").mkdir(parents=True)
    os.chown(project / ".git", NOBODY, NOBODY)
    project.chmod(0o777)

    assert refusal(sandbox_policy(project, tmp_path)) == (
        f"{project}/.git belongs to another user, and cannot be protected"
    )


# --- roots -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["link", "directory", "file", "link above"])
def test_a_root_that_another_has_taken_the_place_of_is_refused(project: Path, tmp_path: Path, what: str) -> None:
    inner = project / "inner"
    inner.mkdir()
    chosen = sandbox_policy(inner)
    if what == "link above":
        project.rename(tmp_path / "away")
        project.symlink_to(tmp_path / "away")
    else:
        inner.rename(tmp_path / "away")
    if what == "link":
        inner.symlink_to(tmp_path / "away")
    elif what == "directory":
        inner.mkdir()
    elif what == "file":
        inner.write_text("")

    assert refusal(chosen) == f"{inner} is no longer writable: it was replaced by another directory"


def test_a_root_that_is_gone_is_none(project: Path) -> None:
    chosen = SandboxPolicy(writable=(root(project),))
    project.rmdir()

    assert resolve(chosen) == ResolvedPolicy()


# --- hidden paths --------------------------------------------------------------------------------


def test_hidden_paths_are_resolved_through_links_and_only_if_they_exist(project: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "token").write_text("secret")
    (tmp_path / "link").symlink_to("keys")
    hidden = tuple(tmp_path / name for name in ("link", "token", "missing", "token/below", "keys/none"))

    found = ResolvedPolicy(hidden_directories=(f"{tmp_path}/keys",), hidden_files=(f"{tmp_path}/token",))
    assert resolve(sandbox_policy(hidden=hidden)) == found
    assert resolve(sandbox_policy(tmp_path, hidden=hidden)).links == (f"{tmp_path}/link",)


def test_paths_in_hidden_directories_are_hidden(project: Path) -> None:
    for name in ("keys/more", ".codex", ".git/x"):
        (project / name).mkdir(parents=True)
    hidden = (project / "keys", project / "keys/more", project / ".codex")

    assert resolve(sandbox_policy(project, hidden=hidden)) == ResolvedPolicy(
        roots=(str(project),),
        git_directories=(f"{project}/.git",),
        hidden_directories=(f"{project}/.codex", f"{project}/keys"),
    )


def test_a_root_within_something_hidden_is_seen_and_nothing_else_of_it(tmp_path: Path) -> None:
    inner = tmp_path / "home/work"
    (inner / ".git/x").mkdir(parents=True)
    (inner / "secret").write_text("")

    found = resolve(sandbox_policy(inner, hidden=(tmp_path / "home", inner / "secret")))

    assert found == ResolvedPolicy(
        roots=(str(inner),),
        git_directories=(f"{inner}/.git",),
        hidden_directories=(f"{tmp_path}/home",),
        hidden_files=(f"{inner}/secret",),
    )
    shown = {path: found.hides(f"{tmp_path}/{path}") for path in ("home", "home/x", "home/work/x", "x")}
    assert shown == {"home": True, "home/x": True, "home/work/x": False, "x": False}


def test_a_hidden_root_cannot_be_written_to(project: Path) -> None:
    assert resolve(sandbox_policy(project, hidden=(project,))) == ResolvedPolicy(hidden_directories=(str(project),))


def test_everything_cannot_be_hidden() -> None:
    assert refusal(sandbox_policy(hidden=("/",))) == "`/` cannot be hidden"


def test_a_working_directory_that_is_hidden_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    policy = ResolvedPolicy(hidden_directories=(str(project),))

    refuse_hidden_cwd(policy, str(tmp_path))
    for cwd in (project, project / "below", tmp_path / "link"):
        with pytest.raises(SandboxUnavailable) as refused:
            refuse_hidden_cwd(policy, str(cwd))
        assert refused.value.detail == f"the working directory {cwd} is hidden from commands"


# --- hidden paths that do not exist --------------------------------------------------------


def test_a_hidden_link_whose_target_a_command_could_create_is_refused(project: Path) -> None:
    link = project.parent / "config.toml"
    link.symlink_to(project / "parley.toml")
    why = f"{quoted(str(link))} is a symbolic link to {quoted(f'{project}/parley.toml')}, which does not exist"

    assert refusal(sandbox_policy(project, hidden=(link,))) == (
        f"commands cannot write to {quoted(str(project))}: {why}; create the file or remove the symbolic link"
    )
    link.unlink()
    link.symlink_to(project.parent / "elsewhere.toml")
    assert resolve(sandbox_policy(project, hidden=(link,))).roots == (str(project),)
    assert resolve(sandbox_policy(project, hidden=(project / "missing",))).roots == (str(project),)
