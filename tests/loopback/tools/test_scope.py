"""Limits for all commands together: the requests to systemd, and commands that run even if systemd fails.

A program simulates systemd, and a directory holds the files of the simulated computer.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Final

import pytest

from kit.system.commands import Ran, ran
from parley.tools.commands.executor import Executor
from parley.tools.commands.scope import limits_in, why_none

FORK_SERVER: Final = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
USER: Final = os.geteuid()
BUS: Final = f"run/user/{USER}/bus" if USER else "run/dbus/system_bus_socket"
MANAGED: Final = f"user.slice/user-{USER}.slice/user@{USER}.service/" if USER else ""

RECORDS: Final = '#!/bin/sh\necho "$@" >>asked\n'
MOVES: Final = 'echo "0::/app.slice/$8" >proc/self/cgroup\n'
OBEYS: Final = RECORDS + MOVES
IS_OLD: Final = f'{RECORDS}case "$*" in *OOMPolicy*) exit 1;; esac\n{MOVES}'


class Computer:
    """A computer with a fake systemd whose answers the test determines."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked = root / "asked"
        self.write("proc/1/comm", "systemd\n")
        self.write("proc/meminfo", "MemTotal:        4000 kB\nSwapTotal:       2000 kB\nHugePages_Total:   0\n")
        self.write("proc/self/cgroup", "0::/user.slice/some.scope\n")
        self.write("sys/fs/cgroup/user.slice/some.scope/memory.max", "max\n")
        self.write("sys/fs/cgroup/user.slice/some.scope/cpu.max", "max 100000\n")
        self.write("sys/fs/cgroup/user.slice/some.scope/memory.swap.max", "max\n")
        self.write("sys/fs/cgroup/user.slice/some.scope/io.max", "")
        self.write("sys/fs/cgroup/user.slice/cpuset.cpus", "")
        self.write("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "0-1\n")
        self.write("sys/fs/cgroup/cpuset.cpus.effective", "0-3\n")
        self.write(f"sys/fs/cgroup/{MANAGED}cgroup.controllers", "cpu memory pids\n")
        self.write(BUS, "")
        self.answer_by(OBEYS)

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def answer_by(self, program: str) -> None:
        self.write("usr/bin/busctl", program.replace("\n", f"\ncd {self.root} || exit\n", 1))
        (self.root / "usr/bin/busctl").chmod(0o755)

    async def ran(self, script: str) -> Ran:
        """Run the first command, and return its result."""
        executor = Executor(root=str(self.root))
        try:
            return await ran(executor, "sh", "-c", script)
        finally:
            await executor.close()


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def asked(computer: Computer, fork_server: str, *, count: int, more: str) -> str:
    """Return the expected request, with a shortened name of the scope."""
    return (
        f"--address=unix:path={computer.root}/{BUS} call "
        "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager "
        f"StartTransientUnit ssa(sv)a(sa(sv)) parley-commands-{fork_server}.scope fail {count} "
        "Description s Commands of Parley MemoryMax t 3072000 MemorySwapMax t 1536000 TasksMax t 4096 "
        f"CollectMode s inactive-or-failed PIDs au 1 {fork_server}{more} 0"
    )


# --- asking ------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [OBEYS, IS_OLD], ids=["new", "old"])
async def test_before_the_first_command_the_fork_server_is_in_a_scope_with_limits(
    computer: Computer, program: str
) -> None:
    computer.answer_by(program)
    result = await computer.ran(f"echo {FORK_SERVER}; cat {computer.asked}")

    fork_server, *requests = re.sub(r"-[0-9a-f]{8}\.scope", ".scope", result.stdout.decode()).splitlines()
    with_policy = asked(computer, fork_server, count=7, more=" OOMPolicy s continue")
    without = asked(computer, fork_server, count=6, more="")
    assert requests == ([with_policy] if program is OBEYS else [with_policy, without])


async def test_the_scope_is_requested_once_for_all_commands(computer: Computer) -> None:
    executor = Executor(root=str(computer.root))
    for _ in range(3):
        await ran(executor, "true")
    await executor.close()

    assert len(computer.asked.read_text().splitlines()) == 1


@pytest.mark.waits
@pytest.mark.parametrize(
    "program",
    [
        "#!/bin/sh\nexit 1\n",
        "#!/bin/sh\nkill -9 $$\n",
        "#!/bin/sh\nexit 0\n",
        "not a program\n",
    ],
    ids=["refuses", "dies", "lies", "cannot be run"],
)
async def test_a_systemd_that_does_not_do_it_keeps_no_command_from_running(
    computer: Computer, program: str
) -> None:
    computer.answer_by(program)

    assert await computer.ran("echo out") == Ran(exit_code=0, stdout=b"out\n")


@pytest.mark.waits
async def test_a_systemd_that_hangs_is_not_waited_for(computer: Computer) -> None:
    computer.answer_by("#!/bin/sh\necho $$ >asker; exec tail -f $0\n")
    result = await computer.ran(f"echo out; kill -0 $(cat {computer.root}/asker) 2>&- || echo ended")

    assert result == Ran(exit_code=0, stdout=b"out\nended\n")


async def test_systemd_is_used_also_if_sigchld_is_ignored(computer: Computer) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the process that starts the server may have set this
    try:
        result = await computer.ran(f"wc -l <{computer.asked}")
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert result == Ran(exit_code=0, stdout=b"1\n")


# --- systemd is not asked ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("proc/1/comm", "bwrap\n", "systemd is not the first process here"),
        ("usr/bin/busctl", None, "there is no /usr/bin/busctl"),
        (BUS, None, f"there is no message bus at /{BUS}"),
        (
            f"sys/fs/cgroup/{MANAGED}cgroup.controllers",
            "cpu pids\n",
            f"systemd has no controller for memory in /sys/fs/cgroup/{MANAGED}",
        ),
        (
            f"sys/fs/cgroup/{MANAGED}cgroup.controllers",
            None,
            f"systemd has no controller for memory and pids in /sys/fs/cgroup/{MANAGED}",
        ),
        (
            "sys/fs/cgroup/user.slice/some.scope/memory.max",
            "1000000\n",
            "memory.max of /user.slice/some.scope is already set, and commands stay in that group",
        ),
        (
            "sys/fs/cgroup/user.slice/cpu.max",
            "50000 100000\n",
            "cpu.max of /user.slice is already set, and commands stay in that group",
        ),
        (
            "sys/fs/cgroup/user.slice/some.scope/memory.swap.max",
            "0\n",
            "memory.swap.max of /user.slice/some.scope is already set, and commands stay in that group",
        ),
        (
            "sys/fs/cgroup/user.slice/io.max",
            "8:16 rbps=2097152 wbps=max riops=max wiops=max\n",
            "io.max of /user.slice is already set, and commands stay in that group",
        ),
        (
            "sys/fs/cgroup/user.slice/cpuset.cpus",
            "0-1\n",
            "cpuset.cpus of /user.slice is already set, and commands stay in that group",
        ),
        (
            "proc/self/cgroup",
            "0::/system.slice/agents.service\n",
            "/system.slice/agents.service is a service, and commands stay in it",
        ),
        (
            "proc/self/cgroup",
            "0::/user.slice/user@1.service/app.slice/agents.service/inner\n",
            "/user.slice/user@1.service/app.slice/agents.service is a service, and commands stay in it",
        ),
    ],
)
async def test_systemd_is_not_used_if_it_cannot_limit_or_limits_exist(
    computer: Computer, path: str, text: str | None, why: str
) -> None:
    if text is None:
        (computer.root / path).unlink()
    else:
        computer.write(path, text)
    result = await computer.ran("echo out")

    assert (result, computer.asked.exists()) == (Ran(exit_code=0, stdout=b"out\n"), False)
    assert why_none(str(computer.root)) == why


@pytest.mark.parametrize(
    "group",
    ["/user.slice/user@1.service", "/user.slice/user@1.service/inner", "/system.slice/agents.service/a.scope", "/"],
)
def test_systemd_is_used_outside_of_services_of_others(computer: Computer, group: str) -> None:
    computer.write("proc/self/cgroup", f"0::{group}\n")

    assert why_none(str(computer.root)) is None


def test_permission_for_all_processors_is_not_a_limit(computer: Computer) -> None:
    computer.write("sys/fs/cgroup/user.slice/cpuset.cpus", "0-7\n")
    computer.write("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "0-3\n")

    assert why_none(str(computer.root)) is None


async def test_systemd_is_not_used_if_the_amount_of_memory_is_unknown(computer: Computer) -> None:
    computer.write("proc/meminfo", "")
    result = await computer.ran("echo out")

    assert (result, computer.asked.exists()) == (Ran(exit_code=0, stdout=b"out\n"), False)


# --- the limits in effect --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "memory", "limits"),
    [
        ("/app.slice/parley-commands-1-2.scope", "3072000", (3072000, 4096)),
        ("/app.slice/parley-commands-1-2.scope", "max", None),
        ("/app.slice/other.scope", "3072000", None),
    ],
)
def test_the_limits_are_read_from_the_group_itself(
    computer: Computer, group: str, memory: str, limits: tuple[int, int] | None
) -> None:
    computer.write(f"sys/fs/cgroup{group}/memory.max", f"{memory}\n")
    computer.write(f"sys/fs/cgroup{group}/pids.max", "4096\n")

    assert limits_in(group, str(computer.root)) == limits
