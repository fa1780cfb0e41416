"""Runs commands of Parley in child processes."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["Outcome", "environ_of", "outcome_of", "run_on_terminal", "run_parley", "start_parley"]


class Outcome(NamedTuple):
    """The output and the exit code of a command."""

    stdout: str
    stderr: str
    exit_code: int | None


def environ_of(home: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PARLEY_HOME": str(home), "HOME": str(home), **(variables or {})}


async def start_parley(
    home: Path,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
) -> Process:
    """Start a command. By default, its working directory is the home."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "parley", *arguments),
        env=environ_of(home, variables),
        cwd=cwd or home,
        stdin=stdin,
        stdout=stdout,
        stderr=PIPE,
    )


async def outcome_of(process: Process, stdin: bytes | None = None) -> Outcome:
    """Send a command its input, and wait for its end."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate(stdin)
    return Outcome((out or b"").decode(), err.decode(), process.returncode)


async def run_parley(
    home: Path, *arguments: str, variables: Mapping[str, str] | None = None, stdin: bytes | None = None
) -> Outcome:
    """Run a command, and return its outcome."""
    process = await start_parley(home, *arguments, variables=variables, stdin=DEVNULL if stdin is None else PIPE)
    return await outcome_of(process, stdin)


async def run_on_terminal(*arguments: str, env: Mapping[str, str]) -> str:
    """Run a command whose stdout is a terminal, and return its output."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "parley", *arguments),
        env=env,
        stdout=theirs,
        stdin=DEVNULL,
    )
    os.close(theirs)
    printed = b""

    def read() -> None:
        nonlocal printed
        try:
            while data := os.read(ours, 65536):
                printed += data
        except OSError:
            pass  # the other side is closed

    await asyncio.to_thread(read)
    os.close(ours)
    assert await process.wait() == 0
    return printed.decode()
