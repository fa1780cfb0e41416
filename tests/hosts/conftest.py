"""Hosts for the tests, fetched once from npm, and the table of checks.

The tests of a host that cannot be fetched or cannot run are skipped with a reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from hosts.checks_table import record_check
from hosts.host_apis import Decision, View
from hosts.host_clis import HOSTS, HostCli, configurations_on
from hosts.host_model import HostModel
from kit.clients.npm import fetched
from parley.testing import ParleyProcess, ScriptedModel
from parley.testing.home import Home

INSTALL_SECONDS: Final = 300.0
"""The maximum time in seconds that npm may take for one host. Hosts have up to 200 MB."""
RUN_SECONDS: Final = 240.0
"""The maximum time in seconds that a host may take for one prompt, on a busy computer."""


@dataclass
class HostRun:
    """One prompt, run by a host to its end."""

    views: list[View]
    output: str
    exit_code: int | None

    @property
    def results(self) -> tuple[str, ...]:
        """The tool results that the host's model saw."""
        return self.views[-1].results if self.views else ()


@dataclass
class HostBench:
    """A host, a home of Parley, and the scripted model that Parley's agent asks."""

    host: HostCli
    program: Path
    model: ScriptedModel
    directory: Path
    config: str = ""
    env: dict[str, str] = field(default_factory=dict)
    """Additional environment variables of the host."""
    timeout_seconds: int | None = None
    hook_answers: bool = False
    """True if Claude Code has the hook from its page, and a program that prints the answer from the page."""
    _home: Home | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)

    @property
    def home(self) -> Home:
        if self._home is None:
            self._home = Home(self.model, home=self.directory / "parley", config=self.config)
            self._home.open()
        return self._home

    def release(self) -> None:
        """Let the scripted model of the agent continue its reply after a `HOLD`.

        `decide` calls this method from another thread.
        """
        self._loop.call_soon_threadsafe(self.model.release)

    async def run(self, decide: Callable[[View], Decision]) -> HostRun:
        """Run one prompt until the host exits."""
        async with self.start(decide) as (process, model):
            output, _ = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
            return HostRun(model.views, output.decode(errors="replace"), process.returncode)

    @asynccontextmanager
    async def start(
        self, decide: Callable[[View], Decision]
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, HostModel]]:
        """Start a host with one prompt; kill its remaining processes at the end of the block."""
        home = self.home
        with tempfile.TemporaryDirectory(dir=self.directory) as directory, HostModel(decide) as model:
            place, work = Path(directory) / "home", Path(directory) / "work"
            place.mkdir()
            work.mkdir()
            if self.hook_answers:
                install_hook(work)
            launch = self.host.launch(
                model_url=model.url, home=place, work=work, timeout_seconds=self.timeout_seconds
            )
            programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `parley` is one of the programs
            env = {"PATH": programs, "HOME": str(place), "LANG": "C.UTF-8", "PARLEY_HOME": str(home.path)}
            process = await asyncio.create_subprocess_exec(
                self.program,
                *launch.arguments,
                cwd=work,
                env={**env, **launch.env, **self.env},
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
            try:
                yield process, model
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # the host has ended, and its processes with it
                await process.wait()

    @asynccontextmanager
    async def other_client(self) -> AsyncIterator[ParleyProcess]:
        """Connect another client of the same home, with its own server."""
        async with ParleyProcess(self.model, home=self.home.path, config=self.config) as parley:
            yield parley


def install_hook(work: Path) -> None:
    """Install the hook on the page of Claude Code, with a program that prints the answer that the page shows."""
    _, hook, answer = configurations_on("claude-code.md")
    (work / ".claude").mkdir()
    (work / ".claude" / "settings.json").write_text(json.dumps(hook))
    program = work / "approve.sh"
    program.write_text(f"#!/bin/sh\ncat >question.json\nprintf '%s' {shlex.quote(json.dumps(answer))}\n")
    program.chmod(0o755)


@pytest.fixture(params=HOSTS, ids=lambda host: host.name.replace(" ", ""))
def host(request: pytest.FixtureRequest) -> HostCli:
    cli: HostCli = request.param
    return cli


@pytest.fixture
async def program(host: HostCli) -> Path:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        pytest.skip(f"{host.name} was not tried: its package is for Linux on x86-64")
    name, version = host.name.lower().replace(" ", "-"), host.package.rpartition("@")[2]
    return await fetched(host.name, name, version, host.package, seconds=INSTALL_SECONDS) / host.program


@pytest.fixture
async def bench(host: HostCli, program: Path) -> AsyncIterator[HostBench]:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="parley-host-"))
        model = await stack.enter_async_context(ScriptedModel())
        bench = HostBench(host, program, model, Path(directory))
        yield bench
        bench.home.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report: pytest.TestReport = yield
    check = item.get_closest_marker("check")
    if check is not None and (report.when == "call" or report.skipped):
        callspec = getattr(item, "callspec", None)
        cli: HostCli | None = callspec.params.get("host") if callspec is not None else None
        if cli is not None:
            record_check(check.args[0], cli, report.outcome)
    return report
