"""Running commands in tests, and counting what they leave behind."""

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
    "PATIENCE_SECONDS",
    "PYTHON",
    "Meter",
    "Ran",
    "cancelled_after",
    "executor",
    "kept",
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
PATIENCE_SECONDS: Final = 90.0
"""For whatever takes no time worth mentioning on a computer that has nothing else to do."""
PYTHON: Final = (sys.executable, "-I", "-S", "-c")
DAEMON: Final = """
import os, signal, sys
def leave():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
"""
"""How a program begins that knows how to get away from whoever started it."""


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    """Runs commands, and has ended all of them when the test is over; a folder's conftest.py takes it up."""
    executor = Executor()
    yield executor
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.close()


@pytest.fixture
def marker() -> Iterator[str]:
    """A text for the arguments or the environment of everything that a test starts; all of it must end.

    A process that was killed is listed until the kernel has ended it, so the end is waited for.
    """
    marker = uuid4().hex
    yield marker
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while (left := marked(marker)) and time.monotonic() < give_up_at:
        time.sleep(0.005)
    assert left == []


class Ran(NamedTuple):
    """What became of a command, without the time it took."""

    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    signal: int | None = None
    timed_out: bool = False


def start_of(*argv: str, timeout_seconds: float = PATIENCE_SECONDS) -> LaunchSpec:
    """A command that needs nothing but its words."""
    return LaunchSpec(argv=argv, cwd="/", env={"PATH": PATH}, timeout_seconds=timeout_seconds)


async def ran(
    starter: Starter,
    *argv: str,
    cwd: str = "/",
    env: dict[str, str] | None = None,
    files: tuple[bytes, ...] = (),
    reports: bool = False,
    restriction: Restriction | None = None,
    timeout_seconds: float = PATIENCE_SECONDS,
) -> Ran:
    """Run a command and keep all that it says."""
    start = LaunchSpec(
        argv=argv,
        cwd=cwd,
        env={"PATH": PATH} if env is None else env,
        files=files,
        reports=reports,
        restriction=restriction,
        timeout_seconds=timeout_seconds,
    )
    return await kept(lambda output: starter.start(start, output=output))


async def kept(run: Callable[[Output], Awaitable[CommandResult]]) -> Ran:
    """All that a command says, which is to be run with the given output, and how it ends."""
    said: dict[OutputStream, list[bytes]] = {"stdout": [], "stderr": []}
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        ended = await run(lambda stream, data: said[stream].append(data))
    return Ran(
        exit_code=ended.exit_code,
        stdout=b"".join(said["stdout"]),
        stderr=b"".join(said["stderr"]),
        signal=ended.signal,
        timed_out=ended.timed_out,
    )


async def out_of_time(starter: Starter, *argv: str, says: bytes, restriction: Restriction | None = None) -> Ran:
    """Run a command that says this and then goes on until its time is over."""
    return await timed_out(
        lambda seconds: ran(starter, *argv, restriction=restriction, timeout_seconds=seconds), says=says
    )


async def timed_out(run: Callable[[float], Awaitable[Ran]], *, says: bytes) -> Ran:
    """What becomes of a command that says this and then goes on; it is to be run for the given seconds.

    These are few; only where it did not come so far, as on a busy computer, it is run for longer.
    """
    result = await run(0.4)
    for seconds in (4.0, PATIENCE_SECONDS):
        if result.stdout == says:
            break
        result = await run(seconds)
    return result


async def cancelled_after(ticks: int, run: Coroutine[Any, Any, object]) -> None:
    """Let the loop go round so often, then cancel it and wait until it has ended."""
    task = asyncio.create_task(run)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def marked(marker: str) -> list[int]:
    """Every process with this text among its arguments or in its environment, dead ones apart."""
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
    """Counts what a command says and keeps none of it: how much that was, and by how much we grew meanwhile."""

    def __init__(self) -> None:
        self.size = self.peak = 0
        self._before = resident_bytes()

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if self.size // _LOOK_EVERY < (self.size + len(data)) // _LOOK_EVERY:
            self.peak = max(self.peak, resident_bytes() - self._before)
        self.size += len(data)


_LOOK_EVERY: Final = 32 * 1024 * 1024
"""Bytes."""


def resident_bytes(pid: int | None = None) -> int:
    """The memory of a process: of this one, unless another is named."""
    return memory_bytes(pid, "VmRSS")
