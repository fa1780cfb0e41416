"""Commands that try to survive: none of their processes is left, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kit.system.commands import (
    DAEMON,
    PATH,
    PYTHON,
    TIMEOUT_SECONDS,
    Meter,
    Ran,
    cancelled_after,
    marked,
    open_descriptors,
    out_of_time,
    ran,
    start_of,
)
from kit.system.passed_descriptors import passed_descriptor
from parley.tools.commands.executor import Executor

MEGABYTE: Final = 1024 * 1024

FORK_SERVER: Final = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
"""A shell expression for the PID of the fork server, which is the grandparent of the shell."""


async def shell(executor: Executor, script: str, marker: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Ran:
    return await ran(executor, "sh", "-c", script, marker, timeout_seconds=timeout_seconds)


def sleeper(marker: str) -> str:
    """Return a shell command that does not end by itself."""
    return f"sh -c 'sleep 1000; :' {marker}"


# --- the table of behaviours -----------------------------------------------------------------


async def test_a_background_child_that_holds_the_pipe_delays_nothing(executor: Executor, marker: str) -> None:
    result = await shell(executor, f"{sleeper(marker)} & echo done", marker)

    assert (result, marked(marker)) == (Ran(exit_code=0, stdout=b"done\n"), [])


async def test_a_timeout_ends_a_whole_pipeline(executor: Executor, marker: str) -> None:
    script = f"echo begun; {sleeper(marker)} | {sleeper(marker)} | cat"

    result = await out_of_time(executor, "sh", "-c", script, marker, says=b"begun\n")

    assert (result, marked(marker)) == (Ran(stdout=b"begun\n", timed_out=True), [])


@pytest.mark.parametrize(
    "life",
    [
        "signal.pause()",
        "os.closerange(0, 1024); signal.pause()",
        "os.execve('/bin/sh', ['sh', '-c', 'trap \"\" TERM; while :; do sleep 1000; done', sys.argv[1]], {})",
        "while True: leave()",
    ],
    ids=["waits", "closes everything", "becomes another program", "leaves again and again"],
)
@pytest.mark.parametrize("ending", ["of itself", "by timeout"])
async def test_a_daemon_does_not_outlive_its_command(
    executor: Executor, marker: str, life: str, ending: str
) -> None:
    # The daemon reports that it has left its session. The command then ends, or runs until its timeout.
    daemon = f"{DAEMON}leave()\nos.write(1, b'x')\n{life}"
    if ending == "of itself":
        expected = Ran(exit_code=0, stdout=b"x")
        result = await ran(executor, "sh", "-c", '"$@" | head -c 1', marker, *PYTHON, daemon, marker)
    else:
        expected = Ran(stdout=b"x", timed_out=True)
        result = await out_of_time(
            executor, "sh", "-c", '"$@"; sleep 1000', marker, *PYTHON, daemon, marker, says=b"x"
        )

    assert (result, marked(marker)) == (expected, [])


async def test_endless_output_is_read_and_not_kept(executor: Executor, marker: str) -> None:
    size, peak = await drained(executor, "sh", "-c", "yes | head -c 100000000", marker)

    assert size == 100_000_000
    assert peak < 16 * MEGABYTE


async def test_a_line_of_100_megabytes_is_read_and_not_kept(executor: Executor, marker: str) -> None:
    size, peak = await drained(executor, "sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x", marker)

    assert size == 100_000_000
    assert peak < 16 * MEGABYTE


async def drained(executor: Executor, *argv: str) -> tuple[int, int]:
    """Return the size of a command's output, and the growth of this process's memory during the command."""
    meter = Meter()
    ended = await executor.start(start_of(*argv, timeout_seconds=4 * TIMEOUT_SECONDS), output=meter)
    assert ended.exit_code == 0
    return meter.size, meter.peak


async def test_binary_output_arrives_as_it_is(executor: Executor) -> None:
    script = "import os; [os.write(1, bytes(range(256)) * 16) for _ in range(256)]; os.write(2, b'\\xc3')"

    result = await ran(executor, *PYTHON, script)

    assert result == Ran(exit_code=0, stdout=bytes(range(256)) * 16 * 256, stderr=b"\xc3")


@pytest.mark.parametrize(
    "session",
    [
        pytest.param("", marks=pytest.mark.long, id="in one session"),
        pytest.param("os.setsid()", id="each in its own"),
    ],
)
async def test_a_fork_bomb_is_over_when_its_command_is(executor: Executor, marker: str, session: str) -> None:
    # The bomb runs as a user that no other test uses, so that the limit on the processes of this user bounds it.
    bomb = f"""
import os, resource, signal
if os.getuid() == 0: os.setuid(1_000_000 + os.getpid())
resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
full, tell = os.pipe()
os.set_blocking(tell, False)
if os.fork() == 0:
    while True:
        try:
            if os.fork() == 0: {session or "pass"}
        except OSError:
            try: os.write(tell, b"x")
            except OSError: pass
os.read(full, 1)
"""
    result = await ran(executor, *PYTHON, bomb, marker)

    assert (result, marked(marker)) == (Ran(exit_code=0), [])


@pytest.mark.long
async def test_a_thousand_daemons_are_found(executor: Executor, marker: str) -> None:
    script = f"""{DAEMON}
for number in range(1000):
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"x")
        signal.pause()
"""
    result = await ran(executor, "sh", "-c", '"$@" | head -c 1000', marker, *PYTHON, script, marker)

    assert (result, marked(marker)) == (Ran(exit_code=0, stdout=b"x" * 1000), [])


async def test_a_process_outside_that_holds_the_pipe_delays_the_end_by_half_a_second(
    executor: Executor, tmp_path: Path
) -> None:
    script = """
import socket, sys
with socket.socket(socket.AF_UNIX) as out:
    out.connect(sys.argv[1])
    print("given away", flush=True)
    socket.send_fds(out, [b"x"], [1])
"""
    async with passed_descriptor(
        tmp_path / "socket", lambda address: ran(executor, *PYTHON, script, address)
    ) as task:
        result = await task

    assert result == Ran(exit_code=0, stdout=b"given away\n")


# --- supervisors and fork servers that die ------------------------------------------------


async def test_a_command_that_kills_its_supervisor_is_killed(executor: Executor, marker: str) -> None:
    script = f"setsid {sleeper(marker)} & echo out; kill -9 $PPID; {sleeper(marker)}"

    result = await shell(executor, script, marker)

    assert (result, marked(marker)) == (Ran(signal=signal.SIGKILL, stdout=b"out\n"), [])


async def test_a_command_that_kills_the_fork_server_is_killed_and_the_next_one_runs(
    executor: Executor, marker: str
) -> None:
    script = f"setsid {sleeper(marker)} & echo out; kill -9 {FORK_SERVER}; {sleeper(marker)}"

    result = await shell(executor, script, marker)

    assert (result, marked(marker)) == (Ran(signal=signal.SIGKILL, stdout=b"out\n"), [])
    assert await ran(executor, "echo", "again") == Ran(exit_code=0, stdout=b"again\n")


async def test_all_that_runs_ends_with_the_fork_server(executor: Executor, marker: str) -> None:
    before = open_descriptors()
    running = asyncio.Semaphore(0)
    start = start_of("sh", "-c", f"echo; {sleeper(marker)}")
    tasks = [
        asyncio.create_task(executor.start(start, output=lambda stream, data: running.release())) for _ in range(20)
    ]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for _ in tasks:
            await running.acquire()
    killer = await shell(executor, f"kill -9 {FORK_SERVER}; sleep 1000", marker)
    results = await asyncio.gather(*tasks)

    assert [killer.signal, *(result.signal for result in results)] == [signal.SIGKILL] * 21
    assert marked(marker) == []
    # objects of earlier tests may have closed their descriptors in the meantime
    assert open_descriptors() <= before


@pytest.mark.waits
async def test_a_supervisor_that_does_not_answer_is_killed_with_its_command(
    executor: Executor, marker: str
) -> None:
    script = f"setsid {sleeper(marker)} & kill -STOP $PPID; echo stopped; sleep 1000"
    stopped = asyncio.Event()
    start = start_of("sh", "-c", script, marker, timeout_seconds=1000)
    task = asyncio.create_task(executor.start(start, output=lambda stream, data: stopped.set()))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await stopped.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert marked(marker) == []
    assert await ran(executor, "true") == Ran(exit_code=0)


# --- cancelling --------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("warm", [False, True], ids=["the first command", "a later one"])
async def test_cancelling_at_any_moment_leaves_nothing(
    executor: Executor, marker: str, warm: bool, step: int
) -> None:
    if warm:
        await ran(executor, "true")
    before = open_descriptors()
    for ticks in range(0, 30, step):
        script = f"setsid {sleeper(marker)} & {sleeper(marker)}"
        await cancelled_after(ticks, shell(executor, script, marker))
        assert marked(marker) == []
        if not warm:
            await executor.close()
            executor = Executor()

    await executor.close()
    assert open_descriptors() <= before


async def test_cancelling_a_running_command_twice_leaves_nothing_either(executor: Executor, marker: str) -> None:
    left = asyncio.Event()
    daemon = f"{DAEMON}\nif os.fork() == 0: leave()\nos.write(1, b'x')\nwhile True: signal.pause()"
    start = start_of(*PYTHON, daemon, marker)
    task = asyncio.create_task(executor.start(start, output=lambda stream, data: left.set()))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await left.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert marked(marker) == []


async def test_cancelling_commands_that_wait_for_their_turn_starts_none_of_them(
    executor: Executor, marker: str
) -> None:
    tasks = [asyncio.create_task(shell(executor, sleeper(marker), marker)) for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [asyncio.CancelledError] * 100
    assert marked(marker) == []


# --- the end of the server ---------------------------------------------------------------

SERVER: Final = f"""
import asyncio, sys
from parley.ports.commands import LaunchSpec
from parley.tools.commands.executor import Executor
async def main():
    executor = Executor()
    say = lambda stream, data: print(data.decode(), end="", flush=True)
    argv, env = tuple(sys.argv[1:]), {{"PATH": {PATH!r}}}
    start = LaunchSpec(argv=argv, cwd="/", env=env, timeout_seconds=1000)
    await asyncio.gather(*(executor.start(start, output=say) for _ in range(3)))
asyncio.run(main())
"""


async def test_a_killed_server_leaves_no_command(marker: str) -> None:
    script = f"setsid {sleeper(marker)} & {sleeper(marker)} & echo x; sleep 1000"
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, "sh", "-c", script, marker, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await server.stdout.readexactly(len("x\n") * 3)
        family = descendants(server.pid)
        watched = [os.pidfd_open(pid) for pid in family]
        server.kill()
        await server.wait()
        for descriptor in watched:
            await asyncio.to_thread(select.select, [descriptor], [], [], TIMEOUT_SECONDS)
            os.close(descriptor)

    # the fork server, and at least the supervisor and three other processes of each command
    assert len(family) >= 1 + 3 * 4
    assert [pid for pid in family if is_alive(pid)] == []


def descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []  # the process has ended
    return [below for child in children for below in (child, *descendants(child))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
