"""Protected files are restored only while no command is running that may write to them."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.builders.sandbox_policies import sandbox_policy
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.protected import command
from parley.errors import SandboxUnavailable
from parley.ports.commands import CommandResult, LaunchSpec, Output, SandboxPolicy
from parley.sandbox.protected_files import ProtectedFiles, Running
from parley.sandbox.resolved_policy import resolve
from parley.sandbox.snapshot import Snapshot
from parley.wire.text import quoted

START = LaunchSpec(argv=("true",), cwd="/", env={}, timeout_seconds=TIMEOUT_SECONDS)


class Starter:
    """A starter that runs a function instead of a command."""

    def __init__(self, work: Callable[[], object], ended: CommandResult | None = None) -> None:
        self._work, self._ended = work, ended or CommandResult(exit_code=0, seconds=0.0)

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        self._work()
        return self._ended

    async def close(self) -> None:
        pass


async def run(
    protected: ProtectedFiles, within: SandboxPolicy, starter: Starter, output: list[bytes]
) -> CommandResult:
    def prepare() -> LaunchSpec:
        policy = resolve(within)
        protected.protect(policy, policy.git_directories + policy.missing_git)
        return START

    roots = [root.path for root in within.writable]
    return await protected.run(starter, prepare, output=lambda _, data: output.append(data), roots=roots)


def test_a_change_of_the_user_between_two_commands_stays(project: Path) -> None:
    protected, config = ProtectedFiles(), project / ".git/config"

    with command(sandbox_policy(project), protected) as first:
        pass
    config.write_text("[user] name = me\n")
    (project / ".git/hooks/pre-commit").write_text("mine")
    with command(sandbox_policy(project), protected) as second:
        config.write_text("evil")

    assert config.read_text() == "[user] name = me\n"
    assert (project / ".git/hooks/pre-commit").read_text() == "mine"
    assert (first.restored, second.restored, second.moved) == (set(), {str(config)}, set())


@pytest.mark.parametrize("is_wider", [False, True])
def test_nothing_is_restored_while_another_command_runs_that_may_write_there(project: Path, is_wider: bool) -> None:
    protected, config = ProtectedFiles(), project / ".git/config"
    other = sandbox_policy(project.parent) if is_wider else sandbox_policy(project)

    with command(sandbox_policy(project), protected) as first:
        running = command(other, protected)
        second = running.__enter__()
        config.write_text("evil")
    while_it_ran = config.read_text()
    running.__exit__(None, None, None)

    assert (while_it_ran, first.restored) == ("evil", set())
    assert (config.read_text(), second.restored) == ("config\n", {str(config)})


def test_commands_that_overlap_are_compared_with_the_state_before_the_first(project: Path) -> None:
    protected, config = ProtectedFiles(), project / ".git/config"

    with command(sandbox_policy(project), protected) as first:
        config.write_text("evil")
        (project / ".git").rename(project / "own")
        with command(sandbox_policy(project), protected) as second:  # there is no `.git`
            (project / "own").rename(project / ".git")

    assert config.read_text() == "config\n"
    assert (first.restored, first.moved, second.restored) == ({str(config)}, set(), set())


def test_commands_in_other_roots_do_not_delay_a_restore(project: Path, tmp_path: Path) -> None:
    protected, other = ProtectedFiles(), tmp_path / "other"
    other.mkdir()

    with command(sandbox_policy(other), protected):
        with command(sandbox_policy(project), protected) as result:
            (project / ".git/config").write_text("evil")
        restored = (project / ".git/config").read_text()

    assert (restored, result.restored) == ("config\n", {f"{project}/.git/config"})


def test_a_command_that_starts_while_files_are_restored_waits_for_that(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected, config = ProtectedFiles(), project / ".git/config"
    restoring, go_on, seen = threading.Event(), threading.Event(), list[str]()
    restore = Snapshot.restore

    def slowly(self: Snapshot) -> object:
        restoring.set()
        assert go_on.wait(TIMEOUT_SECONDS)
        return restore(self)

    def next_command() -> None:
        assert restoring.wait(TIMEOUT_SECONDS)
        threading.Timer(0, go_on.set).start()
        with command(sandbox_policy(project.parent), protected):
            seen.append(config.read_text())

    monkeypatch.setattr(Snapshot, "restore", slowly)
    following = threading.Thread(target=next_command)
    with command(sandbox_policy(project), protected):
        config.write_text("evil")
        following.start()
    following.join(TIMEOUT_SECONDS)

    assert seen == ["config\n"]


# --- results -----------------------------------------------------------------------------


async def test_a_command_that_changed_protected_files_has_failed_and_its_output_says_why(project: Path) -> None:
    git, output = project / ".git", list[bytes]()

    def change() -> None:
        (git / "config").write_text("evil")
        (git / "hooks/pre-commit\n").touch()
        shutil.rmtree(git / "worktrees/tree")

    ended = await run(ProtectedFiles(), sandbox_policy(project), Starter(change), output)

    [moved] = [name for name in os.listdir(git) if name.startswith(".refused-")]
    added, now = quoted(f"{git}/hooks/pre-commit\n"), quoted(f"{git}/{moved}")
    assert ended == CommandResult(
        exit_code=1,
        seconds=0.0,
        remarks=(
            f"protected files were changed while the command ran, and were restored: {git}/config",
            f"protected files were added while the command ran, and were moved aside: {added} (now {now})",
            "protected files were changed while the command ran, and could not be restored: "
            f"{git}/worktrees/tree (it was moved away or deleted)",
        ),
    )
    assert output == [f"{remark}\n".encode() for remark in ended.remarks]


async def test_a_command_that_changed_nothing_ends_as_it_did(project: Path) -> None:
    output: list[bytes] = []
    failed = CommandResult(exit_code=7, seconds=0.0)

    assert await run(ProtectedFiles(), sandbox_policy(project), Starter(lambda: None, failed), output) == failed
    assert output == []


async def test_files_are_restored_after_an_interrupt_and_the_log_reports_it(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted() -> None:
        (project / ".git/config").write_text("evil")
        raise asyncio.CancelledError

    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await run(ProtectedFiles(), sandbox_policy(project), Starter(interrupted), [])

    assert (project / ".git/config").read_text() == "config\n"
    assert caplog.messages == [
        f"protected files were changed while the command ran, and were restored: {project}/.git/config"
    ]


# --- files that cannot be restored ---------------------------------------------------------------


def spoil(project: Path, protected: ProtectedFiles) -> None:
    with command(sandbox_policy(project), protected) as result:
        (project / ".git").rename(project / "own")
    assert result.left == {f"{project}/.git"}


def test_no_command_starts_where_a_file_could_not_be_restored_unless_a_person_has_accepted_it(
    project: Path,
) -> None:
    protected, roots = ProtectedFiles(), [str(project)]
    spoil(project, protected)

    with pytest.raises(SandboxUnavailable) as refused:
        protected.register(Running(roots))
    found = protected.unrestored(roots)
    protected.register(Running(roots), accepted=found)

    reason = "an earlier command changed protected files that could not be restored"
    assert (str(refused.value), found) == (f"{reason}: {project}/.git", (f"{project}/.git",))
    assert protected.unrestored(roots) == ()


@pytest.mark.parametrize("repair", ["moved back", "created"])
def test_a_file_that_the_user_has_repaired_is_accepted(project: Path, repair: str) -> None:
    protected, roots = ProtectedFiles(), [str(project)]
    spoil(project, protected)

    if repair == "moved back":
        (project / "own").rename(project / ".git")
    else:
        (project / ".git").mkdir()

    assert protected.unrestored(roots) == ()


def test_work_in_a_directory_does_not_repair_it(project: Path) -> None:
    protected, roots = ProtectedFiles(), [str(project)]
    with command(sandbox_policy(project), protected):
        for number in range(300):
            (project / ".git/modules" / str(number)).mkdir()

    (project / ".git/modules/another").mkdir()
    assert protected.unrestored(roots) == (f"{project}/.git/modules",)

    for number in [*range(300), "another"]:
        (project / ".git/modules" / str(number)).rmdir()
    assert protected.unrestored(roots) == ()


def test_other_roots_are_not_affected(project: Path, tmp_path: Path) -> None:
    protected = ProtectedFiles()
    spoil(project, protected)

    assert protected.unrestored([str(tmp_path / "other")]) == ()
    assert protected.unrestored([str(tmp_path)]) == (f"{project}/.git",)
