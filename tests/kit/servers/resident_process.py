"""A resident server as a process, and relays to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.system.commands import TIMEOUT_SECONDS
from parley.client import ResidentSocket
from parley.testing import ScriptedModel
from parley.testing.home import Home

__all__ = ["ResidentProcess", "content_of", "outcome_of", "parley", "start_parley"]


class ResidentProcess:
    """`parley serve` on a home:

    `async with ResidentProcess(model, path) as resident`. The end of the block stops it.
    """

    def __init__(
        self,
        model: ScriptedModel,
        home: Path,
        *,
        config: str = "",
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-P", "-m", "parley"),
        arguments: Sequence[str] = (),
    ) -> None:
        self._arguments = arguments
        self._files, self._program = Home(model, home=home, config=config, env=env or {}), program
        self.description: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._files.open()
        self.process = await asyncio.create_subprocess_exec(
            *(*self._program, "serve", "--json", *self._arguments),
            env=self._files.environ,
            cwd=self._files.work,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._files.stderr,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            line = await self.process.stdout.readline()
        assert line, self.stderr_text()
        self.description = json.loads(line)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)  # does not wait for turns
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self.process.wait()
        self._files.close()

    def socket(self) -> ResidentSocket:
        """Return a transport to the server."""
        return ResidentSocket(self.description["socket"], env=self.environ, cwd=self._files.work)

    @property
    def environ(self) -> dict[str, str]:
        return self._files.environ

    @property
    def work(self) -> Path:
        """The working directory of the server."""
        return self._files.work

    def stderr_text(self) -> str:
        return self._files.stderr_text()


async def start_parley(*arguments: str, env: dict[str, str], cwd: Path | None = None) -> asyncio.subprocess.Process:
    """Start a command of `parley`."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "parley", *arguments),
        env=env,
        cwd=cwd or os.getcwd(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def outcome_of(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Wait for the end of a command, and return its exit code, its output and its errors."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


async def parley(*arguments: str, env: dict[str, str], cwd: Path | None = None) -> tuple[int, str, str]:
    """Run a command of `parley`, and return its exit code, its output and its errors."""
    return await outcome_of(await start_parley(*arguments, env=env, cwd=cwd))


def content_of(home: Path) -> bytes:
    """Return the contents of all files of a home."""
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
