"""Hosts for the tests, fetched once from npm, and the table of what was checked.

Where a host cannot be fetched or cannot run, its tests are skipped and say why.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shlex
import shutil
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
from hosts.host_clis import HOSTS, HostCli, Server, configurations_on, packages_directory
from hosts.host_model import HostModel
from parley.testing import ParleyProcess, ScriptedModel
from parley.testing.home import Home

INSTALL_SECONDS: Final = 900.0
RUN_SECONDS: Final = 240.0
"""How long a host may take for one prompt, on a busy computer."""


@dataclass
class HostRun:
    """One prompt, run by a host to its end."""

    views: list[View]
    output: str
    exit_code: int | None

    @property
    def results(self) -> tuple[str, ...]:
        """What the host's model saw of all tool results."""
        return self.views[-1].results if self.views else ()


@dataclass
class HostBench:
    """A host, a home of Parley, and the scripted model that Parley's agent asks."""

    host: HostCli
    model: ScriptedModel
    directory: Path
    config: str = ""
    timeout_seconds: int | None = None
    hook_answers: bool = False
    """Whether Claude Code has the hook of its page, and a program that prints what the page shows."""
    _home: Home | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)

    @property
    def home(self) -> Home:
        if self._home is None:
            self._home = Home(self.model, home=self.directory / "parley", config=self.config)
            self._home.open()
        return self._home

    def release(self) -> None:
        """Let the agent's model go on where it holds; for `decide`, which runs in a thread of its own."""
        self._loop.call_soon_threadsafe(self.model.release)

    async def run(self, decide: Callable[[View], Decision]) -> HostRun:
        """Run one prompt to the host's own end."""
        async with self.start(decide) as (process, model):
            output, _ = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
            return HostRun(model.views, output.decode(errors="replace"), process.returncode)

    @asynccontextmanager
    async def start(
        self, decide: Callable[[View], Decision]
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, HostModel]]:
        """Start a host on one prompt; whatever is left of it at the end of the block is killed."""
        home = self.home
        with tempfile.TemporaryDirectory(dir=self.directory) as directory, HostModel(decide) as model:
            place, work = Path(directory) / "home", Path(directory) / "work"
            place.mkdir()
            work.mkdir()
            server = Server({"PARLEY_HOME": str(home.path)}, self.timeout_seconds)
            if self.hook_answers:
                install_hook(work)
            launch = self.host.launch(model_url=model.url, server=server, home=place, work=work)
            programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `parley` is one of them
            env = {"PATH": programs, "HOME": str(place), "LANG": "C.UTF-8", **launch.env}
            process = await asyncio.create_subprocess_exec(
                *launch.argv, cwd=work, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
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
        """Another client of the same home, in a server of its own."""
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


def _why_not(host: HostCli) -> str | None:
    """Return why a host cannot be tried here; fetch it if need be."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the packages of the hosts are for Linux on x86-64"
    if (packages_directory() / "node_modules" / host.program).exists():
        return None
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "it comes from npm, and there is no npm or no node"
    return "npm could not fetch it"


async def _fetch() -> None:
    """Fetch all hosts with npm, once."""
    directory = packages_directory()
    if all((directory / "node_modules" / host.program).exists() for host in HOSTS) or shutil.which("npm") is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1")
    install = await asyncio.create_subprocess_exec(
        "npm", "install", "--prefix", str(directory), *options, *(host.package for host in HOSTS), stdout=DEVNULL
    )
    await asyncio.wait_for(install.wait(), INSTALL_SECONDS)


@pytest.fixture(params=HOSTS, ids=lambda host: host.name.replace(" ", ""))
async def host(request: pytest.FixtureRequest) -> HostCli:
    cli: HostCli = request.param
    await _fetch()
    if (why_not := _why_not(cli)) is not None:
        pytest.skip(f"{cli.name} was not tried: {why_not}")
    return cli


@pytest.fixture
async def bench(host: HostCli) -> AsyncIterator[HostBench]:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="parley-host-"))
        model = await stack.enter_async_context(ScriptedModel())
        bench = HostBench(host, model, Path(directory))
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
