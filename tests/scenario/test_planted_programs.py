"""A confined command puts programs into a directory of `PATH`: the server does not run them outside the sandbox."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.shell_turns import shell
from kit.clients.wire_client import WireClient, speaking
from kit.system.needs import MECHANISMS
from parley.testing import ScriptedModel

CONFIG: Final = 'notify = ["ring"]\n[mcp_servers.own]\ncommand = "tool"\n'
NAMES: Final = ("ring", "tool", "interpreter")
"""The notify program, the program of a tool server, and the interpreter of that program."""


class Programs:
    """The programs of the user, and a directory of the project that comes before them in `PATH`."""

    def __init__(self, path: Path) -> None:
        self.home, self.project, self.started = path / "home", path / "work", path / "started"
        self._user, self._bell = path / "bin", path / "bell"
        self.planted = self.project / "node_modules/.bin"
        for folder in (self._user, self.planted):
            folder.mkdir(parents=True)
        os.mkfifo(self._bell)
        self._write("ring", f"#!/bin/sh\necho user > {self._bell}\n")
        self._write("interpreter", f"#!/bin/sh\necho user >> {self.started}\n")
        self._write("tool", "#!/usr/bin/env interpreter\n")

    def _write(self, name: str, text: str) -> None:
        (self._user / name).write_text(text)
        (self._user / name).chmod(0o755)

    @property
    def attack(self) -> str:
        """A script that puts programs with the same names into the project."""
        text = f"#!/bin/sh\\necho planted >> {self.started}\\necho planted > {self._bell}\\n"
        plants = (f"printf '{text}' > {self.planted}/{name}; chmod +x {self.planted}/{name}" for name in NAMES)
        return "; ".join(plants)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.planted}:node_modules/.bin:{self._user}:{os.environ['PATH']}"}

    async def rung(self) -> str:
        """Wait for the notify program; return who wrote it."""
        async with asyncio.timeout(90):
            return await asyncio.to_thread(self._bell.read_text)


async def turn(client: WireClient, programs: Programs, mechanism: str, script: str) -> str:
    """Run a script in a new conversation; return its output."""
    settings: dict[str, Any] = {
        "sandbox.mechanism": mechanism,
        "sandbox_workspace_write.exclude_slash_tmp": True,
        "sandbox_workspace_write.exclude_tmpdir_env_var": True,
    }
    client.model.says(shell("c1", "sh", "-c", script))
    client.model.says("Done")
    conversation = await client.create(
        cwd=str(programs.project), approval_policy="never", sandbox="workspace-write", config=settings
    )
    await client.say(conversation, "go")
    await client.over(conversation)
    return str(client.model.requests[-1].body["messages"][-1]["content"])


@pytest.mark.promises("servers.path", "turn.notify")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_programs_that_a_command_put_into_the_path_are_not_run(
    parley_model: ScriptedModel, tmp_path: Path, mechanism: str
) -> None:
    programs = Programs(tmp_path)
    options: Any = {"home": programs.home, "env": programs.env, "config": CONFIG}
    async with speaking(parley_model, **options) as client:
        output = await turn(client, programs, mechanism, programs.attack)
        first = await programs.rung()
    async with speaking(parley_model, **options) as client:
        await turn(client, programs, mechanism, "touch later")
        second = await programs.rung()

    assert '"exit_code":0' in output
    assert sorted(os.listdir(programs.planted)) == sorted(NAMES)
    assert (first, second) == ("user\n", "user\n")
    assert set(programs.started.read_text().split()) == {"user"}
