"""Sandboxed commands that try to survive: no process of them is left, nothing hangs, and memory does not grow."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from kit.clients.shell_turns import nothing_left_of
from kit.system.commands import (
    DAEMON,
    PATH,
    PYTHON,
    TIMEOUT_SECONDS,
    Meter,
    Ran,
    cancelled_after,
    captured,
    marked,
    open_descriptors,
    timed_out,
)
from kit.system.needs import MECHANISMS
from parley.config.types import Mechanism
from parley.ports.commands import Command, SandboxPolicy
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

MEGABYTE: Final = 1024 * 1024

pytestmark = [pytest.mark.parametrize("mechanism", MECHANISMS), pytest.mark.asyncio(loop_scope="module")]

LIVES: Final = {
    "waits": "signal.pause()",
    "closes everything": "os.closerange(0, 1024); signal.pause()",
    "becomes another program": (
        "os.execve('/bin/sh', ['sh', '-c', 'trap \"\" TERM; while :; do sleep 1000; done', sys.argv[1]], {})"
    ),
    "leaves again and again": "while True: leave()",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def commands() -> AsyncIterator[Sandboxed]:
    """Return one runner for all tests, because the self-test takes longer than most of them."""
    commands = Sandboxed(Executor)
    yield commands
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await commands.close()


def command(mechanism: Mechanism, *argv: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Command:
    return Command(
        argv=argv,
        cwd="/",
        env={"PATH": PATH},
        timeout_seconds=timeout_seconds,
        policy=SandboxPolicy(mechanism=mechanism),
    )


async def ran(commands: Sandboxed, command: Command) -> Ran:
    return await captured(lambda output: commands.run(command, output=output))


async def out_of_time(commands: Sandboxed, mechanism: Mechanism, *argv: str, says: bytes) -> Ran:
    """Run a command that writes `says` and then runs until its timeout."""
    return await timed_out(
        lambda seconds: ran(commands, command(mechanism, *argv, timeout_seconds=seconds)), says=says
    )


async def cancelled(commands: Sandboxed, command: Command) -> None:
    """Run a command until its first output, then cancel it."""
    begun = asyncio.Event()
    task = asyncio.create_task(commands.run(command, output=lambda stream, data: begun.set()))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_background_child_that_holds_the_pipe_delays_nothing(
    commands: Sandboxed, marker: str, mechanism: Mechanism
) -> None:
    script = "sh -c 'sleep 1000; :' $0 & echo done"

    result = await ran(commands, command(mechanism, "sh", "-c", script, marker))

    assert (result, marked(marker)) == (Ran(exit_code=0, stdout=b"done\n"), [])


@pytest.mark.promises("sandbox.nothing-left")
@pytest.mark.parametrize("life", LIVES)
async def test_a_daemon_does_not_outlive_its_command(
    commands: Sandboxed, marker: str, life: str, mechanism: Mechanism
) -> None:
    daemon = (*PYTHON, f"{DAEMON}leave()\nos.write(1, b'x')\n{LIVES[life]}", marker)

    result = await ran(commands, command(mechanism, "sh", "-c", '"$@" | head -c 1', marker, *daemon))

    assert (result, marked(marker)) == (Ran(exit_code=0, stdout=b"x"), [])


@pytest.mark.promises("sandbox.nothing-left")
async def test_a_daemon_does_not_outlive_the_time_of_its_command(
    commands: Sandboxed, marker: str, mechanism: Mechanism
) -> None:
    daemon = (*PYTHON, f"{DAEMON}leave()\nos.write(1, b'x')\n{LIVES['waits']}", marker)
    stubborn = 'trap "" TERM INT HUP; "$@"; while :; do sleep 1000; done'

    result = await out_of_time(commands, mechanism, "sh", "-c", stubborn, marker, *daemon, says=b"x")

    assert (result, marked(marker)) == (Ran(stdout=b"x", timed_out=True), [])


@pytest.mark.promises("sandbox.nothing-left")
async def test_a_daemon_does_not_outlive_a_command_that_is_cancelled(
    commands: Sandboxed, marker: str, mechanism: Mechanism
) -> None:
    await ran(commands, command(mechanism, "true"))
    before = open_descriptors()
    daemon = f"{DAEMON}\nif os.fork() == 0: leave()\nos.write(1, b'x')\nwhile True: signal.pause()"

    await cancelled(commands, command(mechanism, *PYTHON, daemon, marker))

    assert (marked(marker), open_descriptors()) == ([], before)


async def test_a_confined_command_can_neither_kill_nor_stop_its_supervisor(
    commands: Sandboxed, marker: str, mechanism: Mechanism
) -> None:
    script = "kill -TERM $PPID; kill -9 $PPID; kill -STOP $PPID; sleep 1000 & echo still here"

    result = await ran(commands, command(mechanism, "sh", "-c", f"({script}) 2>/dev/null", marker))

    assert (result, marked(marker)) == (Ran(exit_code=0, stdout=b"still here\n"), [])


SERVER: Final = f"""
import asyncio, sys
from parley.ports.commands import SandboxPolicy, Command
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor
async def main():
    mechanism, *argv = sys.argv[1:]
    env = {{"PATH": {PATH!r}}}
    command = Command(
        argv=tuple(argv), cwd="/", env=env, timeout_seconds=1000, policy=SandboxPolicy(mechanism=mechanism)
    )
    await Sandboxed(Executor).run(command, output=lambda stream, data: print(data.decode(), end="", flush=True))
asyncio.run(main())
"""


@pytest.mark.promises("sandbox.nothing-left")
async def test_a_killed_server_leaves_no_confined_command(marker: str, mechanism: Mechanism) -> None:
    script = f"setsid sh -c 'sleep 1000; :' {marker} & sleep 1000 & echo x; sleep 1000"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, mechanism, "sh", "-c", script, marker), stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await server.stdout.readexactly(len("x\n"))
        server.kill()
        await server.wait()

    await nothing_left_of(marker)


@pytest.mark.promises("sandbox.nothing-left")
async def test_cancelling_at_any_moment_leaves_nothing(
    commands: Sandboxed, marker: str, mechanism: Mechanism
) -> None:
    await ran(commands, command(mechanism, "true"))
    before = open_descriptors()
    for ticks in range(12):
        script = "setsid sleep 1000 & wait"
        await cancelled_after(ticks, ran(commands, command(mechanism, "sh", "-c", script, marker)))
        assert marked(marker) == []

    assert open_descriptors() == before


async def test_a_fork_bomb_is_over_when_its_command_is(
    commands: Sandboxed, marker: str, mechanism: Mechanism
) -> None:
    # The bomb limits itself: it forks at most this many processes, each in its own session.
    bomb = """
import os, signal
count, tell = os.pipe()
for _ in range(300):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, b"x")
        signal.pause()
seen = 0
while seen < 300: seen += len(os.read(count, 300))
"""
    result = await ran(commands, command(mechanism, *PYTHON, bomb, marker))

    assert (result, marked(marker)) == (Ran(exit_code=0), [])


@pytest.mark.parametrize(
    ("script", "size"),
    [
        pytest.param("yes", 50_000_000, id="in short lines"),
        pytest.param("tr '\\0' x < /dev/zero", 100_000_000, id="in one line", marks=pytest.mark.long),
    ],
)
async def test_output_without_end_is_read_and_not_kept(
    commands: Sandboxed, marker: str, script: str, size: int, mechanism: Mechanism
) -> None:
    await ran(commands, command(mechanism, "true"))
    meter = Meter()
    whole = command(
        mechanism, "sh", "-c", f"{script} | head -c {size}", marker, timeout_seconds=4 * TIMEOUT_SECONDS
    )
    ended = await commands.run(whole, output=meter)

    assert (ended.exit_code, meter.size) == (0, size)
    assert meter.peak < 16 * MEGABYTE
