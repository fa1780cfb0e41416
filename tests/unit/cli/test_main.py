"""`parley` chooses the command to run."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from parley.cli.main import COMMANDS, main
from parley.version import __version__

Captured = pytest.CaptureFixture[str]
OPERANDS = {"config": ["show"], "send": ["x", "y"], "rename": ["x", "y"], "token": ["ls"], "delete": ["x", "--yes"]}


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["--version"], 0, f"parley {__version__}\n", ""),
        (["-V"], 0, f"parley {__version__}\n", ""),
        (
            ["lss"],
            2,
            "",
            "parley: unknown command 'lss'; did you mean `parley ls`? `parley --help` lists the commands\n",
        ),
        (
            ["--verison"],
            2,
            "",
            "parley: unknown option '--verison'; did you mean `parley --version`? "
            "`parley --help` lists the commands\n",
        ),
        (["help", "dance"], 2, "", "parley: unknown command 'dance'; `parley --help` lists the commands\n"),
        (["dance"], 2, "", "parley: unknown command 'dance'; `parley --help` lists the commands\n"),
        (["--fast"], 2, "", "parley: unknown option '--fast'; `parley --help` lists the commands\n"),
    ],
)
def test_arguments_without_a_command_are_answered_or_refused(
    capsys: Captured, argv: list[str], code: int, out: str, err: str
) -> None:
    assert (main(argv), *capsys.readouterr()) == (code, out, err)


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["help"]])
def test_help_lists_every_command(capsys: Captured, argv: list[str]) -> None:
    code = main(argv)

    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert all(f"  {command.name} " in out and command.summary in out for command in COMMANDS)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_with_a_command_shows_the_help_of_the_command(capsys: Captured, command: str) -> None:
    codes = main(["help", command]), main([command, "--help"])
    out, err = capsys.readouterr()

    assert (codes, err, out[: len(out) // 2]) == ((0, 0), "", out[len(out) // 2 :])


@pytest.mark.parametrize(
    ("argv", "helped"),
    [
        (["create"], "parley token create"),
        (["create", "x", "--role", "king"], "parley token create"),
        (["revoke"], "parley token revoke"),
        (["dance"], "parley token"),
    ],
)
def test_a_usage_error_of_an_action_names_the_help_of_the_action(
    capsys: Captured, argv: list[str], helped: str
) -> None:
    assert main(["token", *argv]) == 2
    assert capsys.readouterr().err.endswith(f"; see `{helped} --help`\n")


def test_without_a_command_help_goes_to_stderr(capsys: Captured) -> None:
    code = main([])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "usage: parley COMMAND" in err


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_a_command_explains_itself_and_refuses_unknown_options(capsys: Captured, command: str) -> None:
    helped = main([command, "--help"])
    out, err = capsys.readouterr()
    refused = main([command, "--no-such-option", *OPERANDS.get(command, ["x"])])

    assert (helped, err, refused) == (0, "", 2)
    assert out.startswith(f"usage: parley {command} [")
    assert all(len(line) <= 90 for line in out.splitlines())
    said = f"parley {command}: unknown option '--no-such-option'; see `parley {command} --help`\n"
    assert capsys.readouterr() == ("", said)


WITHOUT_JSON = {"chat", "completion", "demo", "mcp", "sandbox", "schema"}
"""The commands that talk with a person, run another protocol or program, or always print JSON."""


@pytest.mark.parametrize("command", [command.name for command in COMMANDS if command.name not in WITHOUT_JSON])
def test_every_other_command_can_print_json(capsys: Captured, command: str) -> None:
    action = {"config": ["show"], "token": ["ls"]}.get(command, [])
    main([command, *action, "--help"])

    assert "--json" in capsys.readouterr().out


def test_a_misspelt_option_comes_with_the_nearest_one(capsys: Captured) -> None:
    code = main(["send", "ab", "hello", "--folow"])
    said = "parley send: unknown option '--folow', perhaps `--follow`; see `parley send --help`\n"

    assert (code, capsys.readouterr()) == (2, ("", said))


def test_without_asyncpg_the_only_line_is_the_reason(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path))
    monkeypatch.setenv("PARLEY_STORE_URL", "postgresql://parley@127.0.0.1:1/parley")
    code = main(["token", "ls"])
    reason = "the Python package asyncpg is not installed; install parley-server[postgres]"

    assert (code, capsys.readouterr()) == (2, ("", f"parley token: PostgreSQL cannot be used: {reason}\n"))


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_on_windows_every_command_says_where_it_runs(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    code = main([command])
    error = "parley: requires Linux or macOS; on Windows, run Parley in WSL2\n"
    assert (code, *capsys.readouterr()) == (1, "", error)


def test_on_windows_there_is_help(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    assert main(["--help"]) == 0
    assert "usage: parley COMMAND" in capsys.readouterr().out


def test_an_import_of_a_backup_names_the_steps_of_a_restore(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path))
    backup = tmp_path / "monday.db"
    sqlite3.connect(backup).execute("PRAGMA user_version = 1").connection.close()
    code = main(["import", str(backup)])

    assert (code, "shows how to restore a backup" in capsys.readouterr().err) == (1, True)


LIGHT = (
    "exec",
    "ls",
    "show",
    "watch",
    "send",
    "answer",
    "interrupt",
    "continue_",
    "fork",
    "diff",
    "attention",
    "replay",
)


def test_commands_that_only_talk_to_a_server_load_neither_a_server_nor_the_settings() -> None:
    heavy = "server|runtime|agent|stores|models|tools|sandbox|workspaces|web|conversation|ports|testing"
    program = (
        "import importlib, json, re, sys\n"
        f"for name in {LIGHT}: importlib.import_module(f'parley.cli.{{name}}')\n"
        f"ours = re.compile(r'parley\\.({heavy})(\\.|$)|parley\\.config\\.(load|types|schema)$')\n"
        "others = {'aiohttp', 'asyncpg', 'prompt_toolkit', 'rich', 'sqlite3', 'tomlkit'}\n"
        "print(json.dumps([name for name in sys.modules if ours.match(name) or name in others]))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, check=True, text=True
    ).stdout

    assert json.loads(loaded) == []
