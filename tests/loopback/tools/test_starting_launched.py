"""Programs that get files as descriptors, and launchers, which report the exit code of their command."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from kit.system.commands import PYTHON, Ran, marked, open_descriptors, ran
from kit.system.needs import BUBBLEWRAP
from kit.system.passed_descriptors import passed_descriptor
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.tools.commands.executor import Executor

# --- files -------------------------------------------------------------------------------

FILES: Final = """
import os
for place in sorted(map(int, os.listdir("/proc/self/fd")))[3:-1]:  # but for the list itself
    print(place, len(content := os.read(place, 2**23)), content[:20])
"""


async def test_files_are_found_after_the_standard_descriptors_and_nothing_else_is(executor: Executor) -> None:
    files = (b"first", b"", bytes(range(256)) * 4096, *(b"%d" % number for number in range(20)))

    result = await ran(executor, *PYTHON, FILES, files=files)

    assert result == Ran(
        exit_code=0,
        stdout="".join(f"{place} {len(file)} {file[:20]!r}\n" for place, file in enumerate(files, 3)).encode(),
    )


async def test_files_are_the_commands_own(executor: Executor) -> None:
    script = "cat <&3; echo more >> /proc/self/fd/3"

    results = [await ran(executor, "sh", "-c", script, files=(b"here\n",)) for _ in range(2)]

    assert results == [Ran(exit_code=0, stdout=b"here\n")] * 2


async def test_files_of_many_megabytes_are_refused(executor: Executor) -> None:
    whole = 2 * 1024 * 1024

    taken = await ran(executor, "sh", "-c", "cat <&3 <&4 | wc -c", files=(b"x" * whole, b"x" * whole))
    with pytest.raises(CommandNotStarted) as caught:
        await ran(executor, "true", files=(b"x" * whole, b"x" * whole, b"x"))

    assert taken == Ran(exit_code=0, stdout=b"%d\n" % whole)  # the second redirection replaces the first
    assert caught.value.detail == "the files of the command have more than 4194304 bytes"


# --- the reports of a launcher -----------------------------------------------------------------

BEGUN: Final = """echo '{ "child-pid": 4711, "mnt-namespace": 1 }' >&3; """


def reports_exit(code: int) -> str:
    return f"""echo '{{ "exit-code": {code} }}' >&3; """


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (BEGUN + reports_exit(0), Ran(exit_code=0)),
        (BEGUN + reports_exit(3) + "echo said; exit 3", Ran(exit_code=3, stdout=b"said\n")),
        (BEGUN + reports_exit(137) + "exit 137", Ran(exit_code=137)),
        (BEGUN + reports_exit(3) + "kill -9 $$", Ran(exit_code=3)),
        (BEGUN + "echo said; kill -9 $$", Ran(signal=signal.SIGKILL, stdout=b"said\n")),
        (BEGUN + "sleep 1000 & " + reports_exit(5) + "exit 5", Ran(exit_code=5)),
        (BEGUN + "setsid sleep 1000 & " + reports_exit(6) + "exit 6", Ran(exit_code=6)),
    ],
)
async def test_a_launched_command_ends_as_its_launcher_says(executor: Executor, script: str, expected: Ran) -> None:
    assert await ran(executor, "sh", "-c", script, reports=True) == expected


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exit 0", "ended with exit code 0"),
        ("exit 1", "ended with exit code 1"),
        ("kill -TERM $$", "was killed by signal 15"),
        (BEGUN + "exit 1", "ended with exit code 1"),
        (BEGUN + """echo '{ "exit-code": ' >&3; exit 2""", "ended with exit code 2"),
        (BEGUN + """echo '{ "exit-code": many }' >&3; exit 2""", "ended with exit code 2"),
        ("exec 3>&-; sleep 1000 & exit 7", "ended with exit code 7"),
        ("sleep 1000 & exit 8", "ended with exit code 8"),
    ],
)
async def test_a_launcher_that_ends_without_having_started_its_command_has_confined_nothing(
    executor: Executor, script: str, how: str
) -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        await ran(executor, "sh", "-c", script, reports=True)

    assert caught.value.detail == f"bubblewrap {how} and has not started the command"


async def test_a_launcher_that_takes_too_long_is_out_of_time_whatever_it_has_said(executor: Executor) -> None:
    silent = await ran(executor, "sleep", "1000", reports=True, timeout_seconds=0.01)
    begun = await ran(executor, "sh", "-c", f"{BEGUN} sleep 1000", reports=True, timeout_seconds=0.2)

    assert (silent, begun) == (Ran(timed_out=True), Ran(timed_out=True))


async def test_a_launcher_reports_on_the_descriptor_after_the_files(executor: Executor) -> None:
    script = BEGUN.replace(">&3", ">&5") + reports_exit(4).replace(">&3", ">&5") + "cat <&3; cat <&4"

    result = await ran(executor, "sh", "-c", script, files=(b"a\n", b"b\n"), reports=True)

    assert result == Ran(exit_code=4, stdout=b"a\nb\n")


async def test_a_process_outside_that_holds_the_report_pipe_delays_nothing(
    executor: Executor, tmp_path: Path
) -> None:
    script = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as out:
    out.connect(sys.argv[1])
    socket.send_fds(out, [b"x"], [3])
    out.recv(1)
"""
    async with passed_descriptor(
        tmp_path / "socket", lambda address: ran(executor, *PYTHON, script, address, reports=True)
    ) as task:
        with pytest.raises(SandboxUnavailable):
            await task


async def test_no_descriptor_is_left_of_any_launcher(executor: Executor) -> None:
    await ran(executor, "true")
    before = open_descriptors()
    for _ in range(30):
        await ran(executor, "sh", "-c", BEGUN + reports_exit(0), reports=True)
        with pytest.raises(SandboxUnavailable):
            await ran(executor, "false", reports=True)

    assert open_descriptors() == before


# --- bubblewrap --------------------------------------------------------------------------------

BWRAP: Final = "/usr/bin/bwrap"


async def confined(executor: Executor, *argv: str, args: tuple[str, ...] = ("--unshare-pid",)) -> Ran:
    """Run a command in bubblewrap with its options in the first file; return the result."""
    options = "".join(f"{word}\0" for word in ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *args))
    return await ran(
        executor,
        *(BWRAP, "--args", "3", "--json-status-fd", "4", "--die-with-parent", "--", *argv),
        files=(options.encode(),),
        reports=True,
    )


@BUBBLEWRAP
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo said; exit 3", Ran(exit_code=3, stdout=b"said\n")),
        ("exit 1", Ran(exit_code=1)),
        ("kill -9 $$", Ran(exit_code=128 + 9)),  # bubblewrap reports no more
        ("ls /proc/self/fd", Ran(exit_code=0, stdout=b"0\n1\n2\n3\n")),  # 3 is the list itself
    ],
)
async def test_bubblewrap_is_understood(executor: Executor, script: str, expected: Ran) -> None:
    assert await confined(executor, "sh", "-c", script) == expected


@BUBBLEWRAP
async def test_a_background_child_in_bubblewrap_delays_nothing(executor: Executor) -> None:
    marker = uuid4().hex

    result = await confined(executor, "sh", "-c", f"setsid sh -c 'sleep 1000; :' {marker} & echo done")

    assert (result, marked(marker)) == (Ran(exit_code=0, stdout=b"done\n"), [])


@BUBBLEWRAP
async def test_bubblewrap_that_is_killed_by_its_command_has_started_it(executor: Executor) -> None:
    result = await confined(executor, "sh", "-c", "echo said; kill -9 $PPID; sleep 1000", args=())

    assert result == Ran(signal=signal.SIGKILL, stdout=b"said\n")


@BUBBLEWRAP
@pytest.mark.parametrize(
    ("argv", "args"),
    [
        (("true",), ("--bind", "/no/such/place", "/mnt")),
        (("true",), ("--no-such-option",)),
        (("true",), ("--seccomp", "3")),
        (("/no/such/program",), ()),
    ],
)
async def test_bubblewrap_that_fails_has_confined_nothing(
    executor: Executor, argv: tuple[str, ...], args: tuple[str, ...]
) -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        await confined(executor, *argv, args=args)

    assert caught.value.detail == "bubblewrap ended with exit code 1 and has not started the command"
