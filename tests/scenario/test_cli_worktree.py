"""`--worktree`: a conversation in a new Git worktree (`parley.app.local_worktree`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kit.servers.command_line import Outcome, outcome_of, start_parley
from kit.servers.in_process_resident import InProcessResident
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.git import git
from kit.system.needs import MECHANISMS, SANDBOX
from parley.client import connect
from parley.common.home import SOCKET
from parley.testing import ScriptedModel

pytestmark = [pytest.mark.child_process, SANDBOX]


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[InProcessResident]:
    async with asyncio.timeout(TIMEOUT_SECONDS), InProcessResident(parley_model, tmp_path / "home") as resident:
        yield resident


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    path = tmp_path / "places" / "app"
    (path / "sub").mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main", cwd=path)
    (path / "sub" / "file").write_text("one\n")
    commit(path)
    return path


def commit(repository: Path) -> None:
    git("add", "--all", cwd=repository)
    git("commit", "--quiet", "--message=one", cwd=repository)


async def run(resident: InProcessResident, cwd: Path, *arguments: str) -> Outcome:
    return await outcome_of(
        await start_parley(Path(resident.home), "exec", "hi", "--worktree", *arguments, cwd=cwd)
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_the_turn_runs_in_a_worktree_on_a_new_branch(
    resident: InProcessResident, repository: Path, mechanism: str
) -> None:
    (repository / "sub" / "file").write_text("changed\n")
    done = await run(resident, repository / "sub", "-c", f"sandbox.mechanism={mechanism}")
    (name,) = set(os.listdir(repository.parent)) - {"app"}
    worktree = repository.parent / name
    branch = f"parley/{name.removeprefix('app-parley-')}"
    async with connect(resident.socket()) as client:
        (listed,) = (await client.list()).conversations

    assert (done.exit_code, done.stdout) == (0, "Done\n"), done.stderr
    assert f"working in {worktree} on the new branch {branch}\n" in done.stderr
    assert listed.cwd == str(worktree / "sub")
    assert (worktree / "sub" / "file").read_text() == "one\n"
    assert git("status", "--short", "--branch", cwd=worktree) == f"## {branch}\n".encode()
    assert git("branch", "--show-current", cwd=repository) == b"main\n"
    assert str(worktree).encode() in git("worktree", "list", cwd=repository)
    git("fsck", "--strict", cwd=worktree)
    git("worktree", "remove", str(worktree), cwd=repository)


@pytest.mark.parametrize("name", ["HEAD", "refs/heads/main", "objects/info/alternates", "packed-refs"])
async def test_a_pipe_or_a_device_in_the_repository_is_refused(
    resident: InProcessResident, repository: Path, name: str
) -> None:
    file = repository / ".git" / name
    file.unlink(missing_ok=True)
    if name == "packed-refs":
        file.symlink_to("/dev/zero")
    else:
        os.mkfifo(file)
    done = await run(resident, repository / "sub")

    kind = "device" if name == "packed-refs" else "named pipe"
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"cannot create a worktree of {repository / 'sub'}: {file} is a {kind}\n" in done.stderr
    assert os.listdir(repository.parent) == ["app"]


async def test_programs_that_the_repository_names_do_not_run_outside_the_sandbox(
    resident: InProcessResident, repository: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (repository / ".gitattributes").write_text("file filter=trap\n")
    commit(repository)
    program = tmp_path / "trap"
    program.write_text(f'#!/bin/sh\ntouch "{marks}/$1"\ncat\n')
    program.chmod(0o755)
    for setting in ("filter.trap.smudge", "core.fsmonitor", "core.sshCommand", "core.askPass", "credential.helper"):
        git("config", setting, f"{program} {setting}", cwd=repository)
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {program} hook\n")
    hook.chmod(0o755)
    done = await run(resident, repository)
    (name,) = set(os.listdir(repository.parent)) - {"app"}

    assert done.exit_code == 0, done.stderr
    assert os.listdir(marks) == []
    assert (repository.parent / name / "sub" / "file").read_text() == "one\n"


async def test_a_directory_that_is_a_link_in_the_commit_is_not_followed(
    resident: InProcessResident, repository: Path, tmp_path: Path
) -> None:
    (repository / "away").symlink_to(tmp_path)
    commit(repository)
    (repository / "away").unlink()
    (repository / "away").mkdir()
    await run(resident, repository / "away")
    (name,) = set(os.listdir(repository.parent)) - {"app"}
    async with connect(resident.socket()) as client:
        (listed,) = (await client.list()).conversations

    assert listed.cwd == str(repository.parent / name)


@pytest.mark.long
async def test_without_a_repository_or_a_commit_nothing_is_created(
    resident: InProcessResident, repository: Path, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    no_repository = await run(resident, empty)
    git("init", "--quiet", cwd=empty)
    no_commit = await run(resident, empty)
    blocking = repository / ".git" / "refs" / "heads" / "parley"
    blocking.write_bytes(git("rev-parse", "HEAD", cwd=repository))
    no_branch = await run(resident, repository)

    for failed, why in ((no_repository, "not a git repository"), (no_commit, "the repository has no commit")):
        assert (failed.exit_code, failed.stdout) == (1, "")
        assert f"cannot create a worktree of {empty}: " in failed.stderr
        assert why in failed.stderr
    assert (no_branch.exit_code, "refs/heads/parley" in no_branch.stderr) == (1, True)
    assert os.listdir(repository.parent) == ["app"]
    assert os.listdir(repository / ".git" / "worktrees") == []
    assert parley_model.requests == []


@pytest.mark.long
async def test_a_filter_that_fails_leaves_no_branch_and_a_directory_may_have_any_name(
    resident: InProcessResident, repository: Path, parley_model: ScriptedModel
) -> None:
    named = repository.parent / "app\nnext"
    os.rename(repository, named)
    (named / ".git" / "info" / "attributes").write_text("* filter=broken\n")
    git("config", "filter.broken.smudge", "false", cwd=named)
    git("config", "filter.broken.required", "true", cwd=named)
    failed = await run(resident, named)
    branches = git("branch", "--format=%(refname:short)", cwd=named)
    git("config", "--unset", "filter.broken.smudge", cwd=named)
    git("config", "filter.broken.required", "false", cwd=named)
    parley_model.says("Done.")
    worked = await run(resident, named)

    assert failed.exit_code == 1, failed
    assert b"parley/" not in branches
    assert (worked.exit_code, len(os.listdir(named.parent))) == (0, 2), worked


@pytest.mark.parametrize("target", [None, ".git/new"])
async def test_a_directory_that_the_worktree_cannot_contain_leaves_nothing_behind(
    resident: InProcessResident, repository: Path, target: str | None
) -> None:
    place = repository / "new"
    if target is None:
        place.touch()
    else:
        place.symlink_to(target)
    commit(repository)
    place.unlink()
    place.mkdir()
    failed = await run(resident, place)

    assert (failed.exit_code, failed.stdout) == (1, "")
    assert f"cannot create a worktree of {place}: " in failed.stderr
    assert os.listdir(repository.parent) == ["app"]
    assert os.listdir(repository / ".git" / "worktrees") == []
    assert git("branch", "--format=%(refname:short)", cwd=repository) == b"main\n"


@pytest.mark.waits
async def test_a_failed_connection_leaves_no_worktree(repository: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / SOCKET).mkdir(parents=True)
    process = await start_parley(home, "exec", "hi", "--worktree", "--resident", cwd=repository)
    failed = await outcome_of(process)

    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "no resident server could be started" in failed.stderr
    assert os.listdir(repository.parent) == ["app"]
    assert git("branch", "--format=%(refname:short)", cwd=repository) == b"main\n"


async def test_spaces_in_the_names_of_directories_are_kept(resident: InProcessResident, repository: Path) -> None:
    os.rename(repository, named := repository.parent / "app ")
    os.rename(named / "sub", named / " sub")
    commit(named)
    await run(resident, named / " sub")
    (name,) = set(os.listdir(named.parent)) - {"app "}
    async with connect(resident.socket()) as client:
        (listed,) = (await client.list()).conversations

    assert name.startswith("app -parley-")
    assert listed.cwd == str(named.parent / name / " sub")


async def test_a_worktree_is_always_new_and_local(resident: InProcessResident, repository: Path) -> None:
    continued = await run(resident, repository, "--continue")
    resumed = await run(resident, repository, "--resume", "67e5")
    at_url = await run(resident, repository, "--url", "http://127.0.0.1:1")

    assert [one.exit_code for one in (continued, resumed, at_url)] == [2, 2, 2]
    assert "not allowed with argument" in continued.stderr
    assert "--worktree cannot be used with --url" in at_url.stderr
