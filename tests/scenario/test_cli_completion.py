"""Completion of the command line in bash, zsh and fish: each shell runs on a terminal, and the test types Tab."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kit.servers.command_line import Outcome, environ_of, run_parley, start_parley
from kit.servers.terminal_program import TerminalProgram
from kit.system.commands import TIMEOUT_SECONDS
from parley.cli.completion import SHELLS
from parley.cli.main import COMMANDS, main
from parley.testing import Call, ScriptedModel

READY: Final = "READY> "
STARTS: Final = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
    "fish": ("--no-config", "-i"),
}
# The function `parley` prints its arguments instead of running. The scripts call the program with `command`.
SET_UP: Final = {
    "bash": """PS1='{ready}'; bind 'set enable-bracketed-paste off'; source {script}
        parley() {{ echo "GOT<$*>"; }}""",
    "zsh": """PS1='{ready}'; unsetopt zle_bracketed_paste prompt_sp; autoload -Uz compinit; compinit -u -D
        source {script}; parley() {{ print -r -- "GOT<$*>" }}""",
    "fish": """function fish_prompt; echo -n '{ready}'; end; function fish_greeting; end; source {script}
        function parley; echo "GOT<$argv>"; end""",
}


def needs_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; `make with-shells` tries to install it")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with one conversation, in which `bin/parley` starts this Parley."""
    path = tmp_path_factory.mktemp("home")
    (path / "bin").mkdir()
    program = path / "bin" / "parley"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m parley "$@"\n')
    program.chmod(0o755)
    (path / "config.toml").write_text('model_provider = "scripted"\n')
    environ = environ_of(path, {"PATH": f"{path}/bin:{os.environ['PATH']}"})
    for words in (["exec", "-q", "What is this?"], *(["completion", shell] for shell in SHELLS)):
        done = subprocess.run(
            ["parley", *words], env=environ, cwd=path, capture_output=True, timeout=TIMEOUT_SECONDS, check=True
        )
        if words[0] == "completion":
            (path / f"completion.{words[1]}").write_bytes(done.stdout)
    return path


@pytest.fixture
def conversation(home: Path) -> str:
    done = subprocess.run(
        [home / "bin" / "parley", "completion", "conversations"],
        env=environ_of(home),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    [line] = done.stdout.splitlines()
    return line.partition("\t")[0]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[TerminalProgram]:
    """Return a shell in which the completion is installed."""
    needs_shell(request.param)
    environ = environ_of(home, {"PATH": f"{home}/bin:{os.environ['PATH']}", "TERM": "vt100", "LC_ALL": "C.UTF-8"})
    with TerminalProgram((request.param, *STARTS[request.param]), env=environ, cwd=home) as program:
        script = home / f"completion.{request.param}"
        (home / "set-up").write_text(SET_UP[request.param].format(ready=READY, script=script))
        program.type(f". {home}/set-up; echo BE''GIN\n")
        program.read_until("BEGIN")
        program.read_until(READY)
        yield program


def completed(shell: TerminalProgram, line: str) -> str:
    """Type a line and Tab, press Enter, and return the arguments that the shell then passes."""
    shell.type(f"{line}\t\n")
    shell.read_until("GOT<")
    return shell.read_until(">").removesuffix(">").strip()


@pytest.mark.promises("completion.shells")
def test_each_shell_completes_commands_options_values_and_ids(shell: TerminalProgram, conversation: str) -> None:
    lines = {
        "parley conf": "config",
        "parley config se": "config set",
        "parley config --json unse": "config --json unset",
        "parley help docto": "help doctor",
        "parley exec --resid": "exec --resident",
        "parley exec --sandbox dang": "exec --sandbox danger-full-access",
        "parley exec --sandbox=dang": "exec --sandbox=danger-full-access",
        "parley exec --model anth": "exec --model anthropic/",
        "parley config get limits.turn_co": "config get limits.turn_cost",
        "parley exec -c limits.turn_co": "exec -c limits.turn_cost=",
        "parley config init --provider openr": "config init --provider openrouter",
        "parley completion fi": "completion fish",
        "parley exec --output-schema config.t": "exec --output-schema config.toml",
        f"parley show {conversation[:6]}": f"show {conversation}",
        f"parley exec --resume {conversation[:6]}": f"exec --resume {conversation}",
        f"parley send {conversation} {conversation[:6]}": f"send {conversation} {conversation[:6]}",
    }

    assert {line: completed(shell, line) for line in lines} == lines


@pytest.mark.promises("completion.shells")
@pytest.mark.parametrize("name", SHELLS)
def test_every_command_and_option_is_in_the_script(name: str, home: Path) -> None:
    script = (home / f"completion.{name}").read_text()

    assert [command.name for command in COMMANDS if f"'{command.name}" not in script] == []
    assert all(text in script for text in ("--exit-when-idle", "'sandbox.mechanism'", "workspace-write"))


@pytest.mark.promises("completion.ids")
async def test_ids_are_listed_without_a_server(tmp_path: Path) -> None:
    none = await run_parley(tmp_path, "completion", "conversations")
    nothing_created = os.listdir(tmp_path)
    async with ScriptedModel() as model:
        model.says(Call("shell", {"command": ["touch", "made"]}, "c1"))
        (tmp_path / "config.toml").write_text(
            'model_provider = "mine"\napproval_policy = "untrusted"\nsandbox_mode = "read-only"\n'
            f'[model_providers.mine]\nbase_url = "{model.base_url}"\n'
        )
        turn = await start_parley(tmp_path, "exec", "go\u202e\x1b[31m")
        assert turn.stderr is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            asked = (await turn.stderr.readuntil(b"approve`")).decode().split("`parley answer ")[1].split()[0]
        before = files(tmp_path)
        conversations = await run_parley(tmp_path, "completion", "conversations")
        approvals = await run_parley(tmp_path, "completion", "approvals")
        changed = files(tmp_path) != before
        turn.kill()
        await turn.communicate()
    elsewhere = await run_parley(
        tmp_path, "completion", "conversations", variables={"PARLEY_STORE_URL": "postgresql://x@127.0.0.1:1/x"}
    )

    assert (none, nothing_created) == (Outcome("", "", 0), [])
    assert (conversations.exit_code, conversations.stdout.count("\n"), conversations.stderr) == (0, 1, "")
    assert approvals.stdout.startswith(asked)
    assert not {"\x1b", "\u202e"} & {*conversations.stdout, *approvals.stdout}
    assert not changed
    assert elsewhere.stdout == ""


def files(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in home.iterdir()}


@pytest.mark.promises("completion.ids")
def test_a_list_of_ids_costs_little_cpu_time(home: Path) -> None:
    def cpu() -> float:
        before = os.times()
        subprocess.run(
            [sys.executable, "-P", "-m", "parley", "completion", "conversations"],
            env=environ_of(home),
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(cpu() for _ in range(5)) < 0.15


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "unknown shell 'tcsh' (choose from bash, zsh, fish)" in capsys.readouterr().err
