"""Running commands in tests, and counting what they leave behind."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from parley.ports.commands import Restriction, Start, Starter
from parley.tools.commands.executor import Executor
from parley.wire.events import OutputStream

__all__ = [
    "PATH",
    "PATIENCE_SECONDS",
    "PYTHON",
    "Ran",
    "executor",
    "marked",
    "open_descriptors",
    "out_of_time",
    "ran",
    "resident_bytes",
    "start_of",
]

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
PATIENCE_SECONDS: Final = 20.0
"""For whatever takes no time worth mentioning on a computer that has nothing else to do."""
PYTHON: Final = (sys.executable, "-I", "-S", "-c")


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    """Runs commands, and has ended all of them when the test is over; a folder's conftest.py takes it up."""
    executor = Executor()
    yield executor
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.close()


class Ran(NamedTuple):
    """What became of a command, without the time it took."""

    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    signal: int | None = None
    timed_out: bool = False


def start_of(*argv: str, timeout_seconds: float = PATIENCE_SECONDS) -> Start:
    """A command that needs nothing but its words."""
    return Start(argv=argv, cwd="/", env={"PATH": PATH}, timeout_seconds=timeout_seconds)


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
    said: dict[OutputStream, list[bytes]] = {"stdout": [], "stderr": []}
    start = Start(
        argv=argv,
        cwd=cwd,
        env={"PATH": PATH} if env is None else env,
        files=files,
        reports=reports,
        restriction=restriction,
        timeout_seconds=timeout_seconds,
    )
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        ended = await starter.start(start, output=lambda stream, data: said[stream].append(data))
    return Ran(
        exit_code=ended.exit_code,
        stdout=b"".join(said["stdout"]),
        stderr=b"".join(said["stderr"]),
        signal=ended.signal,
        timed_out=ended.timed_out,
    )


async def out_of_time(starter: Starter, *argv: str, says: bytes, restriction: Restriction | None = None) -> Ran:
    """Run a command that says this and then goes on until its time is over.

    It has little time; only where it did not come so far, as on a busy computer, it is run with more.
    """
    result = await ran(starter, *argv, restriction=restriction, timeout_seconds=0.4)
    for seconds in (4.0, PATIENCE_SECONDS):
        if result.stdout == says:
            break
        result = await ran(starter, *argv, restriction=restriction, timeout_seconds=seconds)
    return result


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


def resident_bytes() -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
