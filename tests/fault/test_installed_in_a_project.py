"""Parley installed in the `.venv` of a project that commands may write to: no command can change its code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.http_client import HttpClient
from kit.clients.modern_client import ModernHttpClient
from kit.clients.requests import request
from kit.clients.wire_client import WireClient, speaking
from kit.servers.installed import ATTACK, Installed, install
from kit.servers.resident_process import ResidentProcess
from kit.servers.webhook_receiver import WebhookReceiver
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import BUBBLEWRAP, LANDLOCK
from parley.testing import Call, ScriptedModel

AUDIT: Final = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(event, arguments):
    if event == "import" and arguments[0] not in sys.builtin_module_names:
        os.write(log, (arguments[0] + "\\n").encode())
sys.addaudithook(note)
"""
"""The `sitecustomize` of the environment. It records every module that Python searches for in files."""

SERVER: Final = (sys.executable, "-P", "-m", "parley")
"""The installation that the tests run with."""
RUN: Final = {"command": ["touch", "here"]}
QUERIES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("conversationsList", {}),
    ("conversationSearch", {"text": "go"}),
    ("attentionList", {}),
    ("approvalsList", {}),
    ("settingsList", {}),
)
"""Tools that change nothing, each with its arguments."""
ALL_ATTEMPTS: Final = ATTACK.count("\nattempt(")
IN_THE_PROJECT: Final = "put modules into the project"


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return install(tmp_path / "project")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that planted code writes when the server runs it."""
    return tmp_path / "mark"


class Agent:
    """A conversation in the project whose model runs commands."""

    def __init__(self, client: WireClient, conversation: str) -> None:
        self.client, self._conversation = client, conversation

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Return the output of a call that the model gets."""
        model = self.client.model
        model.says(Call(tool, arguments, "call"))
        model.says("Done")
        await self.client.say(self._conversation, "go")
        await self.client.over(self._conversation)
        return str(model.requests[-1].body["messages"][-1]["content"])

    async def run(self, *command: str) -> str:
        return await self.call("shell", {"command": list(command)})


@asynccontextmanager
async def agent_in(
    installed: Installed,
    model: ScriptedModel,
    mechanism: str = "bubblewrap",
    *,
    home: Path,
    program: Any = None,
    cwd: Path | None = None,
) -> AsyncIterator[Agent]:
    async with speaking(model, program=program or installed.program, home=home) as client:
        conversation = await client.create(
            cwd=str(cwd or installed.project),
            approval_policy="never",
            sandbox="workspace-write",
            config={
                "sandbox.mechanism": mechanism,
                "sandbox_workspace_write.exclude_slash_tmp": True,
                "sandbox_workspace_write.exclude_tmpdir_env_var": True,
            },
        )
        yield Agent(client, conversation)


@pytest.mark.long
def test_each_attempt_works_without_a_sandbox(installed: Installed, mark: Path) -> None:
    attack = [sys.executable, "-I", "-S", "-c", ATTACK, str(installed.project), str(mark)]
    done = subprocess.run(attack, capture_output=True, text=True, check=True)
    away = installed.project / ".venv-away"  # the attack has moved the environment there
    subprocess.run([away / "bin/parley", "--version"], check=False, capture_output=True)

    # An earlier attempt has moved the environment, so the last attempt cannot remove it.
    missing = {"remove the environment"}
    assert len(json.loads(done.stdout)) == ALL_ATTEMPTS - len(missing)
    assert "planted" in mark.read_text()


@BUBBLEWRAP
@pytest.mark.promises("sandbox.installed")
async def test_no_command_changes_what_the_server_runs_from_the_project(
    installed: Installed, mark: Path, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    attack = (sys.executable, "-I", "-S", "-c", ATTACK, str(installed.project), str(mark))
    async with agent_in(installed, parley_model, home=tmp_path / "home") as agent:
        output = json.loads(await agent.run(*attack))
        again = await agent.run("sh", "-c", "echo still here")
        patched = await agent.call("apply_patch", {"input": _adding("own.txt")})
        module = f"{installed.site.relative_to(installed.project)}/parley/own.py"
        refused = await agent.call("apply_patch", {"input": _adding(module)})
    async with agent_in(installed, parley_model, home=tmp_path / "home") as agent:
        later = await agent.run("sh", "-c", "echo here too")
    in_the_project = await _output_of(*installed.program, "doctor", cwd=installed.project)

    assert json.loads(output["output"].splitlines()[-1]) == [IN_THE_PROJECT], output
    assert json.loads(again)["output"] == "still here\n"
    assert json.loads(later)["output"] == "here too\n"
    assert "Success" in patched
    assert refused.endswith(
        f"error: {installed.project}/{module} must not be changed: Parley itself is installed there"
    )
    assert b"sandbox" in in_the_project
    assert mark.name not in os.listdir(tmp_path)


async def _output_of(*argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        said, _ = await process.communicate()
    return said


@BUBBLEWRAP
@pytest.mark.long
@pytest.mark.promises("sandbox.installed")
async def test_the_model_reads_why_nothing_can_be_installed_beside_parley(
    installed: Installed, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    async with agent_in(installed, parley_model, home=tmp_path / "home") as agent:
        refused = await agent.run("touch", f"{installed.site}/new.py")
        failed = await agent.run("rm", "missing")

    why = f"{installed.venv}: Parley itself is installed here, so it is read-only for commands\n"
    assert refused.endswith(f"Read-only file system\n{why}")
    assert "Parley" not in failed


@BUBBLEWRAP
@pytest.mark.long
async def test_pip_installs_nothing_beside_parley_and_the_model_reads_why(
    installed: Installed, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    wheel = installed.project / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.dist-info/RECORD", "")
    pip = (sys.executable, "-m", "pip", "--python", str(installed.venv / "bin/python"))
    async with agent_in(installed, parley_model, home=tmp_path / "home") as agent:
        output = await agent.run(*pip, "install", "--no-index", "--no-deps", str(wheel))

    assert output.endswith(f"{installed.venv}: Parley itself is installed here, so it is read-only for commands\n")


@BUBBLEWRAP
@pytest.mark.long
async def test_after_the_first_command_the_server_loads_no_module_from_a_file(
    installed: Installed, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    log = tmp_path / "imports"
    (installed.site / "sitecustomize.py").write_text(AUDIT.format(log=str(log)))
    async with agent_in(installed, parley_model, home=tmp_path / "home") as agent:
        await agent.run("touch", "first")
        before = _lines(log)
        await agent.run("sh", "-c", "echo x > x")
        await agent.run("missing-program")
        await agent.call("apply_patch", {"input": _adding("own.txt")})
        await agent.call("view_image", {"path": "own.txt"})
        await agent.call("unknown", {})
        for tool in ("conversationsList", "approvalsList"):
            await agent.client.result_of(agent.client.call(tool))
        after = _lines(log)

    assert len(before) > 100  # the audit hook has written the log
    assert after[len(before) :] == []


@pytest.mark.long
@BUBBLEWRAP
async def test_after_the_first_command_a_server_with_http_loads_no_module_from_a_file(
    installed: Installed, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    log, project = tmp_path / "imports", str(installed.project)
    (installed.site / "sitecustomize.py").write_text(AUDIT.format(log=str(log)))
    for _ in range(4):
        parley_model.says(Call("shell", RUN, "c1"))
        parley_model.says("Done")
    async with (
        WebhookReceiver() as receiver,
        ResidentProcess(
            parley_model,
            tmp_path / "home",
            program=installed.program,
            env={"HOOK": "a long secret of the webhook"},
            config=f'[webhook]\nurl = "{receiver.url}"\nsecret_env = "HOOK"\n',
        ) as resident,
    ):
        url, token = resident.description["url"], resident.description["token"]
        async with HttpClient(url, token=token) as session, ModernHttpClient(url, token=token) as modern:
            await session.initialize()
            async with session.codex("go", cwd=project, sandbox="workspace-write") as answers:
                await answers.rest()
            before = _lines(log)
            conversation = await session.create(cwd=project, sandbox="workspace-write")
            async with session.stream() as stream:
                await session.call("conversationStream", conversation_id=conversation)
                await session.say(conversation, "go")
                await stream.wait_for_message("task_complete")
            await receiver.wait_for(2)
            uri = f"parley://conversations/{conversation}"
            for client in (session, modern):
                for tool, arguments in QUERIES:
                    await client.call(tool, **arguments)
            for method, params in (
                ("server/discover", {}),
                ("resources/list", {}),
                ("resources/read", {"uri": uri}),
                ("resources/read", {"uri": f"{uri}/diff"}),
                ("resources/read", {"uri": "parley://attention"}),
                ("prompts/list", {}),
                ("prompts/get", {"name": "plan", "arguments": {"task": "x"}}),
            ):
                assert (await modern.ask(method, params)).status == 200, method
            async with modern.call_stream("codex", prompt="go", cwd=project) as answers:
                await answers.rest()
            task = {"name": "codex", "arguments": {"prompt": "go", "cwd": project}, "task": {}}
            made = (await session.post(request(90, "tools/call", task))).json["result"]["task"]
            await session.post(request(91, "tasks/result", {"taskId": made["taskId"]}))
            await _output_of(*SERVER, "token", "create", "ada", "--role", "driver", env=resident.environ)
            resident.process.send_signal(signal.SIGHUP)
            await session.send("POST", b"{")
            await session.send("GET", Authorization="Bearer wrong")
            await session.send("DELETE")
            after = _lines(log)

    assert len(before) > 100  # the audit hook has written the log
    assert after[len(before) :] == []


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


@LANDLOCK
@pytest.mark.promises("sandbox.installed")
async def test_under_landlock_a_project_in_which_parley_is_installed_is_not_written_to(
    installed: Installed, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    async with agent_in(installed, parley_model, "landlock", home=tmp_path / "home") as agent:
        output = await agent.run("sh", "-c", "touch x; echo ran")

    why = "Parley itself is installed there, and Landlock cannot protect its files"
    how = "use bubblewrap, or install Parley elsewhere"
    assert output == f"execution error: commands cannot write to {installed.project}: {why}; {how}"


@BUBBLEWRAP
@pytest.mark.long
@pytest.mark.promises("sandbox.installed")
async def test_no_command_of_a_resident_server_changes_the_installation_of_a_relay(
    mark: Path, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    """The server has another installation.

    The installation of the relay lies deep in the project, and stays protected after the relay has disconnected.
    """
    home, project = tmp_path / "home", tmp_path / "projects"
    installed = install(project / "service")
    attack = (sys.executable, "-I", "-S", "-c", ATTACK, str(installed.project), str(mark))
    async with ResidentProcess(parley_model, home):
        async with agent_in(installed, parley_model, home=home, cwd=project) as agent:
            output = json.loads(await agent.run(*attack))
        async with agent_in(installed, parley_model, home=home, cwd=project, program=SERVER) as agent:
            refused = await agent.run("touch", f"{installed.site}/new.py")

    assert json.loads(output["output"].splitlines()[-1]) == [IN_THE_PROJECT], output
    assert "Read-only file system" in refused


@pytest.mark.long
@BUBBLEWRAP
@LANDLOCK
@pytest.mark.promises("sandbox.installed")
async def test_a_server_with_another_installation_protects_the_environment_of_the_project(
    installed: Installed, tmp_path: Path, parley_model: ScriptedModel
) -> None:
    module = f"{installed.site.relative_to(installed.project)}/parley/own.py"
    async with agent_in(installed, parley_model, home=tmp_path / "home", program=SERVER) as agent:
        refused = await agent.run("touch", module)
        patch = await agent.call("apply_patch", {"input": _adding(module)})
    async with agent_in(installed, parley_model, "landlock", home=tmp_path / "home", program=SERVER) as agent:
        output = await agent.run("sh", "-c", "touch x; echo ran")

    assert refused.endswith("Parley itself is installed here, so it is read-only for commands\n")
    assert patch.endswith("must not be changed: Parley itself is installed there")
    assert output.startswith(
        f"execution error: commands cannot write to {installed.project}: Parley itself is installed"
    )


def _adding(path: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch"
