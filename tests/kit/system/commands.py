"""Runs commands in tests, and counts the processes that they leave."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pytest

from kit.system.memory import memory_bytes
from parley.ports.commands import CommandResult, LaunchSpec, Output, Restriction, Starter
from parley.tools.commands.executor import Executor
from parley.wire.events import OutputStream

__all__ = [
    "DAEMON",
    "PATH",
    "PYTHON",
    "TIMEOUT_SECONDS",
    "Meter",
    "Ran",
    "cancelled_after",
    "captured",
    "executor",
    "marked",
    "marker",
    "open_descriptors",
    "out_of_time",
    "ran",
    "resident_bytes",
    "start_of",
    "timed_out",
]

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
TIMEOUT_SECONDS: Final = 90.0
"""The timeout, in seconds, for operations that take almost no time on an idle computer."""
PYTHON: Final = (sys.executable, "-I", "-S", "-c")
DAEMON: Final = """
import os, signal, sys
def leave():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
"""
"""The start of a program that becomes a daemon, to escape from its supervisor."""


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    """Yield an executor that is closed after the test. A directory's conftest.py imports this fixture."""
    executor = Executor()
    yield executor
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await executor.close()


@pytest.fixture
def marker() -> Iterator[str]:
    """Yield a text for the arguments or the environment of all processes that a test starts.

    All these processes must end. A killed process is listed until the kernel has removed it, so the fixture waits
    for that.
    """
    marker = uuid4().hex
    yield marker
    give_up_at = time.monotonic() + TIMEOUT_SECONDS
    while (left := marked(marker)) and time.monotonic() < give_up_at:
        time.sleep(0.005)
    assert left == []


class Ran(NamedTuple):
    """The result and the output of a command, without its duration."""

    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    signal: int | None = None
    timed_out: bool = False


def start_of(*argv: str, timeout_seconds: float = TIMEOUT_SECONDS) -> LaunchSpec:
    """Build the launch spec of a command without options."""
    return LaunchSpec(argv=argv, cwd="/", env={"PATH": PATH}, timeout_seconds=timeout_seconds)


async def ran(
    starter: Starter,
    *argv: str,
    cwd: str = "/",
    env: dict[str, str] | None = None,
    files: tuple[bytes, ...] = (),
    reports: bool = False,
    restriction: Restriction | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Ran:
    """Run a command and return all its output."""
    start = LaunchSpec(
        argv=argv,
        cwd=cwd,
        env={"PATH": PATH} if env is None else env,
        files=files,
        reports=reports,
        restriction=restriction,
        timeout_seconds=timeout_seconds,
    )
    return await captured(lambda output: starter.start(start, output=output))


async def captured(run: Callable[[Output], Awaitable[CommandResult]]) -> Ran:
    """Call `run` with an output callback. Return all output and the result of the command."""
    said: dict[OutputStream, list[bytes]] = {"stdout": [], "stderr": []}
    async with asyncio.timeout(2 * TIMEOUT_SECONDS):
        ended = await run(lambda stream, data: said[stream].append(data))
    return Ran(
        exit_code=ended.exit_code,
        stdout=b"".join(said["stdout"]),
        stderr=b"".join(said["stderr"]),
        signal=ended.signal,
        timed_out=ended.timed_out,
    )


async def out_of_time(starter: Starter, *argv: str, says: bytes, restriction: Restriction | None = None) -> Ran:
    """Run a command that writes `says` and then runs until its timeout."""
    return await timed_out(
        lambda seconds: ran(starter, *argv, restriction=restriction, timeout_seconds=seconds), says=says
    )


async def timed_out(run: Callable[[float], Awaitable[Ran]], *, says: bytes) -> Ran:
    """Run a command that writes `says` and then runs until its timeout. `run` gets the timeout in seconds.

    The first timeout is short. If the output is incomplete, as on a busy computer, the command is run again with a
    longer one.
    """
    result = await run(0.4)
    for seconds in (4.0, TIMEOUT_SECONDS):
        if result.stdout == says:
            break
        result = await run(seconds)
    return result


async def cancelled_after(ticks: int, run: Coroutine[Any, Any, object]) -> None:
    """Run a task for this many iterations of the event loop. Then cancel it and wait for its end."""
    task = asyncio.create_task(run)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def marked(marker: str) -> list[int]:
    """Return the pids of all processes with this text in their arguments or environment, without zombies."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                texts = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            except OSError:
                continue
            if marker.encode() in texts:
                found.append(int(place.name))
    return found


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Meter:
    """Counts the output of a command without storing it, and measures the growth of this process's memory."""

    def __init__(self) -> None:
        self.size = self.peak = 0
        self._before = resident_bytes()

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if self.size // _LOOK_EVERY < (self.size + len(data)) // _LOOK_EVERY:
            self.peak = max(self.peak, resident_bytes() - self._before)
        self.size += len(data)


_LOOK_EVERY: Final = 32 * 1024 * 1024
"""The number of bytes of output between two measurements of the memory."""


def resident_bytes(pid: int | None = None) -> int:
    """Return the memory of a process, by default of this one."""
    return memory_bytes(pid, "VmRSS")
