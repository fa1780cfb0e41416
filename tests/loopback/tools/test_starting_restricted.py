"""Commands with a restriction: the rights are removed, or nothing runs."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import pytest

from kit.system.commands import PATH, PYTHON, Ran, cancelled_after, marked, open_descriptors, out_of_time, ran
from kit.system.needs import LANDLOCK
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Restriction, Rule
from parley.tools.commands.executor import Executor

pytestmark = LANDLOCK

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
WRITING: Final = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""The rights of the first Landlock version that allow changes."""
SCOPED: Final = 3
"""The scope flags: abstract sockets of processes outside, and signals to these processes, are forbidden."""

READ_ONLY: Final = Restriction(
    handled_files=WRITING,
    handled_network=0,
    scoped=0,
    rules=(Rule("/dev/null", WRITING),),
    seccomp=b"",
)


def instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """Return one `struct sock_filter`."""
    return struct.pack("=HBBI", code, yes, no, value)


ALLOW: Final = instruction(0x06, 0x7FFF_0000)
SOCKET: Final = {"x86_64": 41, "aarch64": 198}.get(platform.machine(), -1)
NO_SOCKETS: Final = b"".join(
    (
        instruction(0x20, 0),  # the number of the call
        instruction(0x15, SOCKET % 2**32, no=1),
        instruction(0x06, 0x0005_0000 | 1),  # EPERM
        ALLOW,
    )
)


def landlock_version() -> int:
    version: int = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return version


def changed(**fields: object) -> Restriction:
    return msgspec.structs.replace(READ_ONLY, **fields)


# --- removed rights --------------------------------------------------------------------------


WRITE: Final = """
import os, sys
for place in sys.argv[1:]:
    try:
        if place.endswith("/"): os.mkdir(place)
        else: open(place, "w").close()
        print(place)
    except OSError as error: print(error)
"""
"""A program that tries to create these files and directories, and prints the outcomes."""


async def test_a_command_without_the_right_to_write_cannot_write(executor: Executor, tmp_path: Path) -> None:
    attempts = (*PYTHON, WRITE, "/dev/null", "file", "directory/")

    restricted = await ran(executor, *attempts, cwd=str(tmp_path), restriction=READ_ONLY)
    made = os.listdir(tmp_path)
    free = await ran(executor, *attempts, cwd=str(tmp_path))

    assert restricted == Ran(
        exit_code=0,
        stdout=b"/dev/null\n[Errno 13] Permission denied: 'file'\n[Errno 13] Permission denied: 'directory/'\n",
    )
    assert free == Ran(exit_code=0, stdout=b"/dev/null\nfile\ndirectory/\n")
    assert (made, sorted(os.listdir(tmp_path))) == ([], ["directory", "file"])


async def test_a_rule_grants_what_is_below_it_and_one_for_a_path_that_is_gone_is_left_out(
    executor: Executor, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    rules = (Rule(f"{tmp_path}/mine", WRITING), Rule(f"{tmp_path}/gone", WRITING), Rule("/dev/null/x", WRITING))

    result = await ran(
        executor,
        *(*PYTHON, WRITE, "mine/a/", "mine/a/b", "theirs/a", "gone/"),
        cwd=str(tmp_path),
        restriction=changed(rules=rules),
    )

    assert result == Ran(
        exit_code=0,
        stdout=b"mine/a/\nmine/a/b\n"
        b"[Errno 13] Permission denied: 'theirs/a'\n[Errno 13] Permission denied: 'gone/'\n",
    )


def of_this_process(name: str) -> int:
    """Return the rights that this process already lacks, as in a container."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name])


async def test_a_command_with_a_filter_is_refused_what_that_refuses(executor: Executor) -> None:
    script = """
import socket
try: socket.socket().close()
except PermissionError as error: print(error)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["NoNewPrivs"]), int(status["Seccomp"]))
"""
    free = await ran(executor, *PYTHON, script)
    filtered = await ran(executor, *PYTHON, script, restriction=changed(seccomp=NO_SOCKETS))

    assert (free, filtered) == (
        Ran(exit_code=0, stdout=f"{of_this_process('NoNewPrivs')} {of_this_process('Seccomp')}\n".encode()),
        Ran(exit_code=0, stdout=b"[Errno 1] Operation not permitted\n1 2\n"),
    )


ATTACK_ON_SUPERVISORS: Final = """
import ctypes, os, signal
supervisor = os.getppid()
fork_server = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
library = ctypes.CDLL(None)
for pid in (supervisor, fork_server):
    for number in (0, signal.SIGWINCH, signal.SIGCONT):
        try: os.kill(pid, number); print("told")
        except PermissionError: print("refused")
    try: os.readlink(f"/proc/{pid}/exe"); print("read")
    except PermissionError: print("refused")
    print("refused" if library.ptrace(0x4206, pid, None, None) else "seized")
"""
"""A program that tries to signal, inspect and trace its supervisor and the fork server."""


@pytest.mark.skipif(landlock_version() < 6, reason="this kernel's Landlock has no scopes")
async def test_a_command_in_a_domain_of_its_own_reaches_neither_its_supervisor_nor_the_fork_server(
    executor: Executor,
) -> None:
    restricted = await ran(executor, *PYTHON, ATTACK_ON_SUPERVISORS, restriction=changed(scoped=SCOPED))
    free = await ran(executor, *PYTHON, ATTACK_ON_SUPERVISORS)

    seized = b"refused" if seizing_is_forbidden() else b"seized"
    assert restricted == Ran(exit_code=0, stdout=b"refused\n" * 10)
    assert free == Ran(exit_code=0, stdout=(b"told\n" * 3 + b"read\n" + seized + b"\n") * 2)


def seizing_is_forbidden() -> bool:
    """Return whether this host allows only root and the parent process to trace a process."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return scope.exists() and int(scope.read_text()) > 0 and os.geteuid() != 0


@pytest.mark.parametrize("restriction", [None, READ_ONLY], ids=["free", "restricted"])
async def test_a_restricted_command_finds_what_a_free_one_finds(
    executor: Executor, restriction: Restriction | None
) -> None:
    script = """
import os, resource, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(os.getsid(0) == os.getppid(), os.getpgrp() == os.getpid(), resource.getrlimit(resource.RLIMIT_CORE))
print(*(hex(int(status[name], 16) % 2**31) for name in ("SigIgn", "SigBlk", "SigCgt")))
print(os.listdir("/proc/self/fd"), sys.stdin.read(), open("/proc/self/oom_score_adj").read())
"""
    as_it_was = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        result = await ran(executor, *PYTHON, script, restriction=restriction)
    finally:
        signal.signal(signal.SIGUSR1, as_it_was)

    by_python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    handled = 1 << signal.SIGINT - 1
    assert result == Ran(
        exit_code=0,
        stdout=(
            # 3 is the descriptor of the listed directory
            f"True True (0, 0)\n{by_python:#x} 0x0 {handled:#x}\n" + "['0', '1', '2', '3']  500\n\n"
        ).encode(),
    )


SECOND_FENCE: Final = """
import ctypes, os
from parley.tools.commands.messages import EncodedRestriction
from parley.tools.commands.restrict import restricted

os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)


def start():
    print("dumpable:", ctypes.CDLL(None).prctl(3), flush=True)
    return os.posix_spawn("/bin/ls", ["ls", "/proc/self/fd"], {})


pid = restricted(EncodedRestriction(files=2, network=0, scoped=0, rules=((b"/", 2),), seccomp=b""), start)
os.waitpid(pid, 0)
"""
"""A program in a process with an inheritable descriptor. The process that really starts commands has none."""


def test_a_restricted_command_cannot_access_its_starter() -> None:
    done = subprocess.run(
        (sys.executable, "-c", SECOND_FENCE), capture_output=True, text=True, timeout=90, check=True
    )

    # 3 is the descriptor of the listed directory
    assert (done.stdout.split(), done.stderr) == (["dumpable:", "0", "0", "1", "2", "3"], "")


# --- rights that cannot be removed -------------------------------------------------------------

INVALID: Final = "Invalid argument (os error 22)"
RULES: Final = "creating the Landlock ruleset failed: "
FILTER: Final = f"applying seccomp failed: {INVALID}"


@pytest.mark.parametrize(
    ("restriction", "why"),
    [
        (changed(handled_files=1 << 63), RULES + INVALID),
        (changed(handled_files=-1), RULES + INVALID),
        (changed(handled_files=1 << 64), RULES + INVALID),
        (changed(handled_files=0), RULES + "No message of desired type (os error 42)"),
        (changed(rules=(Rule("/", READ_DIR),)), RULES + INVALID),
        (changed(rules=(Rule("/", -1),)), RULES + INVALID),
        (changed(rules=(Rule("/", 1 << 64),)), RULES + INVALID),
        (changed(seccomp=ALLOW[:-1]), FILTER),
        (changed(seccomp=instruction(0xFF, 0)), FILTER),
        (changed(seccomp=instruction(0x20, 0)), FILTER),
        (changed(seccomp=ALLOW * 4097), FILTER),
        (changed(seccomp=ALLOW * 65537), FILTER),
    ],
)
async def test_nothing_runs_if_the_system_refuses_a_restriction(
    executor: Executor, tmp_path: Path, restriction: Restriction, why: str
) -> None:
    await ran(executor, "true")
    before = open_descriptors()
    with pytest.raises(SandboxUnavailable) as caught:
        await ran(executor, "touch", f"{tmp_path}/new", restriction=restriction)

    assert (caught.value.detail, os.listdir(tmp_path)) == (why, [])
    assert open_descriptors() == before


@pytest.mark.parametrize("field", ["handled_network", "scoped"])
async def test_nothing_runs_with_rights_that_no_kernel_knows(
    executor: Executor, tmp_path: Path, field: str
) -> None:
    with pytest.raises(SandboxUnavailable, match=rf"^{RULES}(Invalid argument|Argument list too long)") as caught:
        await ran(executor, "touch", f"{tmp_path}/new", restriction=changed(**{field: 1 << 60}))

    assert (type(caught.value), os.listdir(tmp_path)) == (SandboxUnavailable, [])


async def test_a_filter_that_kills_lets_nothing_run(executor: Executor, tmp_path: Path) -> None:
    kill = instruction(0x06, 0x8000_0000)

    result = await ran(executor, "touch", f"{tmp_path}/new", restriction=changed(seccomp=kill))

    # the filter has killed the supervisor
    assert (result, os.listdir(tmp_path)) == (Ran(signal=signal.SIGKILL), [])


@pytest.mark.parametrize(
    ("argv", "cwd", "why"),
    [
        (("no-such-program",), "/", "No such file or directory (os error 2)"),
        (("/etc/passwd/x",), "/", "Not a directory (os error 20)"),
        (("/etc/passwd",), "/", "Permission denied (os error 13)"),
        (("true", "x" * 200_000), "/", "Argument list too long (os error 7)"),
        (("true",), "/no/such/directory", "No such file or directory (os error 2)"),
    ],
)
async def test_a_program_that_is_no_program_is_no_fault_of_the_restriction(
    executor: Executor, argv: tuple[str, ...], cwd: str, why: str
) -> None:
    with pytest.raises(CommandNotStarted) as caught:
        await ran(executor, *argv, cwd=cwd, restriction=READ_ONLY)

    assert (type(caught.value), caught.value.detail) == (CommandNotStarted, why)


async def test_a_program_that_may_not_be_run_is_not_started(executor: Executor) -> None:
    nothing_runs = changed(handled_files=EXECUTE, rules=())
    with pytest.raises(CommandNotStarted, match="Permission denied"):
        await ran(executor, "true", restriction=nothing_runs)


# --- no process is left ------------------------------------------------------------------------


async def test_nothing_is_left_of_a_restricted_command(executor: Executor) -> None:
    marker = uuid4().hex
    script = f"setsid sh -c 'sleep 1000; :' {marker} & echo begun"
    restriction = changed(seccomp=NO_SOCKETS)

    ended = await ran(executor, "sh", "-c", script, restriction=restriction)
    left = marked(marker)
    killed = await out_of_time(
        executor, "sh", "-c", f"{script}; sleep 1000", says=b"begun\n", restriction=restriction
    )

    assert (ended, left) == (Ran(exit_code=0, stdout=b"begun\n"), [])
    assert (killed, marked(marker)) == (Ran(stdout=b"begun\n", timed_out=True), [])


@pytest.mark.skipif(landlock_version() < 6, reason="this kernel's Landlock has no scopes")
async def test_a_command_that_kills_its_supervisor_right_at_the_start_ends_with_all_it_started(
    executor: Executor,
) -> None:
    marker = uuid4().hex
    # Because of its scope, the command can signal only the thread that started it, until that thread has ended.
    script = "sleep 1000 & pid=$PPID; while [ $((pid += 1)) -lt $$ ]; do kill -9 $pid; done; exit 3"
    ends = set()
    for _ in range(20):
        ended = await ran(
            executor,
            *("sh", "-c", script),
            env={"PATH": PATH, "MARKER": marker},
            restriction=changed(scoped=SCOPED),
        )
        ends.add((ended.exit_code, ended.signal))
        assert marked(marker) == []

    assert ends <= {(3, None), (None, signal.SIGKILL)}
    assert await ran(executor, "echo", "on", restriction=READ_ONLY) == Ran(exit_code=0, stdout=b"on\n")


async def test_restricted_commands_run_side_by_side_and_no_descriptor_is_left_of_them(executor: Executor) -> None:
    await ran(executor, "true")
    before = open_descriptors()
    results = await asyncio.gather(
        *(
            ran(executor, "sh", "-c", f"echo {n}; exit {n % 256}", restriction=READ_ONLY, files=(b"x",) * (n % 4))
            for n in range(100)
        )
    )

    assert results == [Ran(exit_code=n % 256, stdout=f"{n}\n".encode()) for n in range(100)]
    assert open_descriptors() == before


async def test_cancelling_a_restricted_start_at_any_moment_leaves_nothing(executor: Executor) -> None:
    marker = uuid4().hex
    await ran(executor, "true")
    before = open_descriptors()
    for ticks in range(30):
        await cancelled_after(ticks, ran(executor, "sh", "-c", "sleep 1000; :", marker, restriction=READ_ONLY))
        assert marked(marker) == []

    assert open_descriptors() == before
