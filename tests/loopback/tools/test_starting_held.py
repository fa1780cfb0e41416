"""Launchers that wait before they start their command until their mounts are checked."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Final

import pytest

from kit.builders.sandbox_policies import sandbox_policy
from kit.system.commands import PATH, PYTHON, TIMEOUT_SECONDS, Ran, captured, open_descriptors, ran
from kit.system.needs import BUBBLEWRAP
from parley.errors import SandboxUnavailable
from parley.ports.commands import Command, LaunchSpec, Mount
from parley.sandbox.bubblewrap import Bubblewrap
from parley.sandbox.protected_files import ProtectedFiles
from parley.tools.commands.executor import Executor

ALWAYS: Final = (
    Mount(place="/", source="/", writable=False),
    Mount(place="/dev", source=None, writable=False),
)

FREE: Final = """echo '{ "child-pid": '$$' }' >&3; """
"""The report of a launcher that has mounted nothing."""


async def held(
    executor: Executor,
    *argv: str,
    mounts: tuple[Mount, ...] = (),
    files: tuple[bytes, ...] = (),
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Ran:
    """Run a launcher that is held until it has made these mounts, and return the result."""
    start = LaunchSpec(
        argv=argv,
        cwd="/",
        env={"PATH": PATH},
        files=files,
        reports=True,
        mounts=(*ALWAYS, *mounts),
        timeout_seconds=timeout_seconds,
    )
    return await captured(lambda output: executor.start(start, output=output))


@pytest.mark.parametrize(
    "said",
    [
        "",
        FREE,
        """echo '{ "child-pid": many }' >&3; """,
        """echo '{ "child-pid": 1' >&3; """,
        """sleep 0 & echo '{ "child-pid": '$!' }' >&3; wait; """,
    ],
)
async def test_a_launcher_whose_mounts_are_not_made_waits_until_its_time_is_over(
    executor: Executor, said: str
) -> None:
    script = f"{said}head -c 1 <&4; echo ran"

    assert await held(executor, "sh", "-c", script, timeout_seconds=0.1) == Ran(timed_out=True)


async def test_a_launcher_that_ends_while_it_is_held_has_confined_nothing(executor: Executor) -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        await held(executor, "sh", "-c", f"{FREE}exit 3")

    assert caught.value.detail == "bubblewrap ended with exit code 3 and has not started the command"


async def test_killing_the_supervisor_does_not_release_a_held_launcher(executor: Executor, tmp_path: Path) -> None:
    script = "import os, sys; os.kill(os.getppid(), 9); os.read(4, 1); os.mkdir(sys.argv[1])"

    result = await held(executor, *PYTHON, script, str(tmp_path / "ran"))

    assert (result, os.listdir(tmp_path)) == (Ran(signal=signal.SIGKILL), [])


# --- bubblewrap ------------------------------------------------------------------------------

BWRAP: Final = "/usr/bin/bwrap"


async def mounted(executor: Executor, args: tuple[str, ...], mounts: tuple[Mount, ...], *argv: str) -> Ran:
    """Run a command in bubblewrap with these options, and check for these mounts; return the result."""
    options = ("--ro-bind", "/", "/", "--dev", "/dev", "--remount-ro", "/dev", *args)
    return await held(
        executor,
        *(BWRAP, "--args", "3", "--json-status-fd", "4", "--block-fd", "5", "--die-with-parent", "--", *argv),
        mounts=mounts,
        files=(b"".join(os.fsencode(word) + b"\0" for word in options),),
    )


def bound(place: Path, *, writable: bool) -> Mount:
    return Mount(place=str(place), source=str(place), writable=writable)


@BUBBLEWRAP
@pytest.mark.parametrize("name", ["plain", "two words", "tab\there", "line\nbreak", "back\\slash\\040", "\udcff"])
async def test_a_command_runs_whose_mounts_are_what_they_are_to_be(
    executor: Executor, tmp_path: Path, name: str
) -> None:
    place, hidden = tmp_path / name, tmp_path / name / "hidden"
    hidden.mkdir(parents=True)
    args = ("--bind", str(place), str(place), "--tmpfs", str(hidden), "--remount-ro", str(hidden))
    mounts = (bound(place, writable=True), Mount(place=str(hidden), source=None, writable=False))

    result = await mounted(executor, args, mounts, "sh", "-c", "ls /proc/self/fd")

    assert result == Ran(exit_code=0, stdout=b"0\n1\n2\n3\n")  # 3 is the descriptor of the listed directory


@BUBBLEWRAP
@pytest.mark.parametrize(
    ("args", "mounts"),
    [
        ((), [("work", "work", True)]),
        (("--bind", "other", "work"), [("work", "work", True)]),
        (("--bind", "work", "work"), [("work", "work", False)]),
        (("--bind", "work", "work", "--ro-bind", "other", "work"), [("work", "work", True)]),
        (("--bind", "work", "work", "--bind", "work", "work"), [("work", "work", True)]),
        (("--tmpfs", "work"), [("work", None, False)]),
        (("--ro-bind", "other", "work"), [("work", None, False)]),
        (
            ("--bind", "work", "work", "--ro-bind", "other", "other"),
            [("work", "work", True), ("work/in", None, True)],
        ),
    ],
)
async def test_a_command_does_not_run_whose_mounts_are_something_else(
    executor: Executor, tmp_path: Path, args: tuple[str, ...], mounts: list[tuple[str, str | None, bool]]
) -> None:
    for name in ("work/in", "other"):
        (tmp_path / name).mkdir(parents=True)
    words = tuple(word if word.startswith("--") else str(tmp_path / word) for word in args)
    wanted = tuple(
        Mount(place=str(tmp_path / place), source=source and str(tmp_path / source), writable=writable)
        for place, source, writable in mounts
    )

    with pytest.raises(SandboxUnavailable) as caught:
        await mounted(executor, words, wanted, "touch", str(tmp_path / "work/ran"))

    mismatch = tmp_path / mounts[-1][0]
    assert caught.value.detail == f"{mismatch} was replaced while the sandbox was set up"
    assert os.listdir(tmp_path / "work") == ["in"]


@BUBBLEWRAP
async def test_hidden_paths_below_mounts_of_the_launcher_are_hidden(executor: Executor) -> None:
    mechanism = Bubblewrap(executor, ProtectedFiles(), launcher=BWRAP, has_proc=True, has_size_option=False)
    hidden = ("/dev/pts", "/dev/null", "/dev/tty0", "/proc/bus", "/proc/version")
    script = "ls -A /proc/bus; cat /proc/version 2>/dev/null; echo >/dev/null"
    command = Command(argv=("sh", "-c", script), cwd="/", env={"PATH": PATH}, timeout_seconds=TIMEOUT_SECONDS)

    result = await captured(lambda output: mechanism.run(command, sandbox_policy(hidden=hidden), output=output))

    assert result == Ran(exit_code=0)


@BUBBLEWRAP
async def test_a_command_of_bubblewrap_has_few_processes_and_no_core_files(executor: Executor) -> None:
    mechanism = Bubblewrap(executor, ProtectedFiles(), launcher=BWRAP, has_proc=True, has_size_option=False)
    script = "import resource as r; print(r.getrlimit(r.RLIMIT_NPROC), r.getrlimit(r.RLIMIT_CORE))"
    command = Command(argv=(*PYTHON, script), cwd="/", env={"PATH": PATH}, timeout_seconds=TIMEOUT_SECONDS)

    result = await captured(lambda output: mechanism.run(command, sandbox_policy(), output=output))

    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = 512 if hard == resource.RLIM_INFINITY else min(512, hard)
    assert result == Ran(exit_code=0, stdout=f"({most}, {most}) (0, 0)\n".encode())


@BUBBLEWRAP
async def test_no_descriptor_is_left_of_a_launcher_that_was_held(executor: Executor, tmp_path: Path) -> None:
    await ran(executor, "true")
    before = open_descriptors()
    for _ in range(5):
        await mounted(executor, (), (), "true")
        with pytest.raises(SandboxUnavailable):
            await mounted(executor, (), (bound(tmp_path, writable=True),), "true")

    assert open_descriptors() == before
