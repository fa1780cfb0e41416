from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.builders.sandbox_policies import sandbox_policy
from kit.system.commands import Ran
from kit.system.confined_commands import confined
from kit.system.needs import BUBBLEWRAP, LANDLOCK
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import CommandResult, LaunchSpec, Output, SandboxPolicy, Starter
from parley.sandbox import MechanismStatus, Report, Sandboxed
from parley.tools.commands.executor import Executor


class LackingStarter:
    """A starter on a system that lacks a feature."""

    def __init__(self, lacks: Callable[[LaunchSpec], str | None]) -> None:
        self._executor = Executor()
        self._lacks = lacks
        self.started: list[LaunchSpec] = []

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        self.started.append(start)
        if (why := self._lacks(start)) is not None:
            output("stderr", f"{why}\n".encode())
            raise SandboxUnavailable("bubblewrap ended with 1")
        return await self._executor.start(start, output=output)

    async def close(self) -> None:
        await self._executor.close()


def without_namespaces(start: LaunchSpec) -> str | None:
    return "bwrap: setting up uid map: Permission denied" if start.reports else None


def without_landlock(start: LaunchSpec) -> str | None:
    return "Landlock: Operation not supported" if start.restriction is not None else None


def without_either(start: LaunchSpec) -> str | None:
    return without_namespaces(start) or without_landlock(start)


def without_proc(start: LaunchSpec) -> str | None:
    return "bwrap: Can't mount proc" if start.reports and b"\0--proc\0" in start.files[-2] else None


@BUBBLEWRAP
async def test_bubblewrap_is_used_where_it_works(sandboxed: Sandboxed) -> None:
    report = await sandboxed.report(sandbox_policy())

    assert (report.used, report.why_none) == ("bubblewrap", None)


@LANDLOCK
async def test_landlock_is_used_where_there_are_no_namespaces() -> None:
    starter = LackingStarter(without_namespaces)
    sandboxed = Sandboxed(lambda: starter)
    try:
        assert await sandboxed.why_unconfined(sandbox_policy()) is None
        assert await confined(sandboxed, sandbox_policy(), "echo", "hello") == Ran(exit_code=0, stdout=b"hello\n")
        assert starter.started[-1].restriction is not None
    finally:
        await sandboxed.close()


@BUBBLEWRAP
async def test_bubblewrap_is_refused_where_there_are_no_namespaces() -> None:
    sandboxed = Sandboxed(lambda: LackingStarter(without_namespaces))
    try:
        why = await sandboxed.why_unconfined(sandbox_policy(mechanism="bubblewrap"))
    finally:
        await sandboxed.close()

    assert why == "bubblewrap: setting up uid map: Permission denied"


@pytest.mark.promises("sandbox.closed")
async def test_where_nothing_works_a_command_is_refused_in_one_sentence_that_names_both_reasons() -> None:
    starter = LackingStarter(without_either)
    sandboxed = Sandboxed(lambda: starter)
    try:
        why = await sandboxed.why_unconfined(sandbox_policy())
        with pytest.raises(SandboxUnavailable) as refused:
            await confined(sandboxed, sandbox_policy(), "true")
        unconfined = await confined(sandboxed, None, "echo", "hello")
    finally:
        await sandboxed.close()

    assert why is not None
    assert re.fullmatch(r"bubblewrap: .+; Landlock: .+", why)
    assert refused.value.detail == f"no sandbox is available on this system: {why}"
    assert unconfined == Ran(exit_code=0, stdout=b"hello\n")


@BUBBLEWRAP
async def test_without_a_proc_of_its_own_a_command_sees_none() -> None:
    starter = LackingStarter(without_proc)
    sandboxed = Sandboxed(lambda: starter)
    try:
        result = await confined(sandboxed, sandbox_policy(mechanism="bubblewrap"), "ls", "/proc")
        report = await sandboxed.report(sandbox_policy(mechanism="bubblewrap"))
    finally:
        await sandboxed.close()

    assert result == Ran(exit_code=0)
    assert dict(report.tried[0].facts)["proc"] == "none: the system does not allow mounting it"


async def test_a_mechanism_is_tried_out_once_by_however_many_it_is_needed() -> None:
    starter = LackingStarter(lambda start: None)
    sandboxed = Sandboxed(lambda: starter)
    try:
        await asyncio.gather(*(sandboxed.why_unconfined(sandbox_policy()) for _ in range(5)))
        tried = len(starter.started)
        await sandboxed.why_unconfined(sandbox_policy())
    finally:
        await sandboxed.close()

    assert len(starter.started) == tried <= 3


class Busy:
    """A starter that fails at first for lack of processes."""

    def __init__(self) -> None:
        self.executor: Starter | None = None

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        if self.executor is None:
            self.executor = Executor()
            raise CommandNotStarted("Resource temporarily unavailable (os error 11)")
        return await self.executor.start(start, output=output)

    async def close(self) -> None:
        if self.executor is not None:
            await self.executor.close()


@LANDLOCK
async def test_a_mechanism_is_tried_out_where_no_command_can_write(tmp_path: Path) -> None:
    modes: list[int] = []

    def looks(start: LaunchSpec) -> None:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())

    starter = LackingStarter(looks)
    sandboxed = Sandboxed(lambda: starter, home=lambda: str(tmp_path))
    try:
        assert await sandboxed.why_unconfined(sandbox_policy(mechanism="landlock")) is None
    finally:
        await sandboxed.close()

    places = [Path(word).parent.parent for word in starter.started[0].argv if word.startswith(f"{tmp_path}/")]
    assert (places, modes, os.listdir(tmp_path)) == ([tmp_path] * 3, [0o700], [])


@LANDLOCK
async def test_that_landlock_only_detects_is_said_once() -> None:
    said: list[str] = []
    sandboxed = Sandboxed(Executor, warn=said.append)
    try:
        for _ in range(2):
            await confined(sandboxed, sandbox_policy(mechanism="landlock"), "true")
    finally:
        await sandboxed.close()

    assert said == [
        "Landlock confines commands. Landlock does not prevent changes to files that control Git and coding "
        "agents; the server undoes these changes when the commands have ended. bubblewrap prevents them"
    ]


@BUBBLEWRAP
@LANDLOCK
async def test_a_lesser_mechanism_is_not_used_because_nothing_is_known_of_a_better_one() -> None:
    sandboxed, another = Sandboxed(Busy), Sandboxed(Busy)
    try:
        why = await sandboxed.why_unconfined(sandbox_policy())
        first, second = await another.report(sandbox_policy()), await another.report(sandbox_policy())
    finally:
        await sandboxed.close()
        await another.close()

    assert why == "bubblewrap: the self-test failed: Resource temporarily unavailable (os error 11)"
    assert [(report.used, report.tried[1].fault) for report in (first, second)] == [
        (None, None),
        ("bubblewrap", None),
    ]


@LANDLOCK
async def test_a_mechanism_that_could_not_be_tried_out_is_tried_again() -> None:
    sandboxed = Sandboxed(Busy)
    try:
        pinned = sandbox_policy(mechanism="landlock")

        assert await sandboxed.why_unconfined(pinned) == (
            "Landlock: the self-test failed: Resource temporarily unavailable (os error 11)"
        )
        assert await sandboxed.why_unconfined(pinned) is None
    finally:
        await sandboxed.close()


@LANDLOCK
async def test_a_mechanism_that_had_nowhere_to_be_tried_out_is_tried_again(tmp_path: Path) -> None:
    homes = iter([f"{tmp_path}/{'x' * 300}", str(tmp_path)])
    sandboxed = Sandboxed(Executor, home=lambda: next(homes))
    pinned = sandbox_policy(mechanism="landlock")
    try:
        first = await sandboxed.why_unconfined(pinned)
        second = await sandboxed.why_unconfined(pinned)
    finally:
        await sandboxed.close()

    assert (first, second) == ("Landlock: the self-test failed: File name too long (os error 36)", None)


@BUBBLEWRAP
@pytest.mark.parametrize(
    ("became", "said", "reason"),
    [
        (
            SandboxUnavailable("bubblewrap ended with exit code 1 and has not started the command"),
            b"bwrap: Can't mount proc on /newroot/proc: Cannot allocate memory\n",
            "Can't mount proc on /newroot/proc: Cannot allocate memory",
        ),
        (
            SandboxUnavailable("bubblewrap ended with exit code 1 and has not started the command"),
            b"bwrap: Creating new namespace failed: Resource temporarily unavailable\n",
            "Creating new namespace failed: Resource temporarily unavailable",
        ),
        (
            SandboxUnavailable("bubblewrap was killed by signal 9 and has not started the command"),
            b"",
            "bubblewrap was killed by signal 9 and has not started the command",
        ),
        (
            SandboxUnavailable("checking the mounts failed: Connection timed out (os error 110)"),
            b"",
            "checking the mounts failed: Connection timed out (os error 110)",
        ),
        (
            SandboxUnavailable("/tmp/inside is no longer writable: it was replaced by another directory"),
            b"",
            "/tmp/inside is no longer writable: it was replaced by another directory",
        ),
        (
            SandboxUnavailable("bubblewrap ended with exit code 1 and has not started the command"),
            b"bwrap: Can't find source path /tmp/inside: No such file or directory\n",
            "Can't find source path /tmp/inside: No such file or directory",
        ),
        (
            CommandResult(exit_code=1, seconds=0.1),
            b"OSError: [Errno 28] No space left on device: '/tmp/inside/made'\n",
            "OSError: [Errno 28] No space left on device: '/tmp/inside/made'",
        ),
        (CommandResult(timed_out=True, seconds=20.0), b"", "the test command took more than 20 seconds"),
        (CommandResult(exit_code=137, seconds=0.1), b"", "the test command was killed"),
        (CommandResult(signal=9, seconds=0.1), b"", "the test command was killed"),
    ],
)
async def test_a_transient_failure_does_not_disable_a_mechanism_or_its_proc(
    became: CommandResult | SandboxUnavailable, said: bytes, reason: str
) -> None:
    class ShortAtFirst:
        """A starter that lacks a resource for the first confined command."""

        def __init__(self) -> None:
            self._executor = Executor()
            self._is_short = True

        async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
            if not (start.reports and self._is_short):
                return await self._executor.start(start, output=output)
            self._is_short = False
            output("stderr", said)
            if isinstance(became, SandboxUnavailable):
                raise became
            return became

        async def close(self) -> None:
            await self._executor.close()

    sandboxed = Sandboxed(ShortAtFirst)
    pinned = sandbox_policy(mechanism="bubblewrap")
    try:
        first = await sandboxed.why_unconfined(pinned)
        second = await sandboxed.report(pinned)
    finally:
        await sandboxed.close()

    assert first == f"bubblewrap: the self-test failed: {reason}"
    assert (second.used, dict(second.tried[0].facts)["proc"]) == ("bubblewrap", "its own")


@BUBBLEWRAP
async def test_a_fault_that_has_nothing_to_do_with_proc_is_no_reason_to_do_without_it() -> None:
    starter = LackingStarter(lambda start: "bwrap: loopback: Failed" if start.reports else None)
    sandboxed = Sandboxed(lambda: starter)
    try:
        assert (
            await sandboxed.why_unconfined(sandbox_policy(mechanism="bubblewrap")) == "bubblewrap: loopback: Failed"
        )
    finally:
        await sandboxed.close()

    assert len([start for start in starter.started if start.reports]) == 1


@BUBBLEWRAP
async def test_a_bubblewrap_that_is_too_old_is_not_used() -> None:
    class Old:
        """A launcher that reports an old version."""

        async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
            if start.reports:
                raise SandboxUnavailable("Unknown option --json-status-fd")
            output("stdout", b"bubblewrap 0.3.1\n")
            return CommandResult(exit_code=0, seconds=0.0)

        async def close(self) -> None:
            return

    assert await Sandboxed(Old).why_unconfined(sandbox_policy(mechanism="bubblewrap")) == (
        "bubblewrap: version 0.3.1 of it is installed, and 0.4 is needed"
    )


@BUBBLEWRAP
@LANDLOCK
async def test_the_report_says_what_was_found(sandboxed: Sandboxed, tmp_path: Path) -> None:
    within = sandbox_policy(hidden=(tmp_path, tmp_path / "missing"), mechanism="landlock")

    report = await sandboxed.report(within)

    facts = {tried.name: dict(tried.facts) for tried in report.tried}
    assert report == Report(
        used="landlock",
        why_none=None,
        tried=tuple(MechanismStatus(name=each.name, fault=None, facts=each.facts) for each in report.tried),
        hidden=(str(tmp_path),),
    )
    assert sorted(facts["bubblewrap"]) == ["path", "proc", "version"]
    assert facts["bubblewrap"]["proc"] == "its own"
    assert re.fullmatch(r"\d+\.\d+\.\d+", facts["bubblewrap"]["version"])
    assert int(facts["landlock"]["abi"]) >= 3


@pytest.mark.parametrize(
    ("platform", "within", "why"),
    [
        ("win32", sandbox_policy(), "no mechanism for this system; run Parley inside WSL2"),
        ("darwin", sandbox_policy(mechanism="bubblewrap"), "bubblewrap does not exist on this system"),
    ],
)
async def test_other_systems_refuse(platform: str, within: SandboxPolicy, why: str) -> None:
    sandboxed = Sandboxed(Executor, platform=platform)

    assert await sandboxed.why_unconfined(within) == why
    with pytest.raises(SandboxUnavailable):
        await confined(sandboxed, within, "true")
    assert sandboxed.confine_thread(within) is False
    await sandboxed.close()


def test_a_server_that_confines_nothing_loads_nothing_for_it() -> None:
    script = (
        "import sys, parley.sandbox; "
        "print(*(name for name in sys.modules if name == 'ctypes' or name.startswith('parley.sandbox')))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=90)

    assert sorted(done.stdout.split()) == ["parley.sandbox", "parley.sandbox.sandboxed"]


# --- a thread of the server --------------------------------------------------------------


def in_thread(work: Callable[[], object]) -> object:
    """Run a function in another thread; return its result, or the name of its OS error."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(work())
        except (OSError, SandboxUnavailable) as error:
            came.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return came[0]


@LANDLOCK
def test_a_confined_thread_writes_in_the_roots_alone_and_the_server_is_as_before(tmp_path: Path) -> None:
    for name in ("inside/hidden", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside/file").write_text("read")
    (tmp_path / "inside/file").write_text("old")
    within = sandbox_policy(tmp_path / "inside", hidden=(tmp_path / "inside/hidden",))
    sandboxed = Sandboxed(Executor)

    def work() -> object:
        assert sandboxed.confine_thread(within) is True
        (tmp_path / "inside/file").write_text("new")
        found = [(tmp_path / "outside/file").read_text()]
        for place in ("outside/new", "outside/file", "inside/hidden/new"):
            try:
                (tmp_path / place).write_text("evil")
            except PermissionError:
                found.append("refused")
        return found

    assert in_thread(work) == ["read", "refused", "refused", "refused"]
    assert (tmp_path / "inside/file").read_text() == "new"
    (tmp_path / "outside/file").write_text("the server may")


@LANDLOCK
def test_a_thread_moves_files_between_the_directories_of_a_root(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/file").write_text("")
    within = sandbox_policy(tmp_path)

    def work() -> object:
        assert Sandboxed(Executor).confine_thread(within)
        (tmp_path / "a/file").rename(tmp_path / "b/file")
        return "moved"

    assert in_thread(work) == "moved"


@LANDLOCK
def test_a_thread_is_not_confined_to_a_root_that_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    within = sandbox_policy(tmp_path / "root")
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()

    assert in_thread(lambda: Sandboxed(Executor).confine_thread(within)) == "SandboxUnavailable"
