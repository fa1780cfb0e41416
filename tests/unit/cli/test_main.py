"""`parley` chooses the command to run."""

from __future__ import annotations

import sys

import pytest

from parley.cli.main import COMMANDS, main
from parley.version import __version__

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["--version"], 0, f"parley {__version__}\n", ""),
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


def test_without_a_command_help_goes_to_stderr(capsys: Captured) -> None:
    code = main([])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "usage: parley COMMAND" in err


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_a_command_explains_itself_and_refuses_unknown_options(capsys: Captured, command: str) -> None:
    helped = main([command, "--help"])
    out, err = capsys.readouterr()
    refused = main([command, "--no-such-option", *{"send": ["x", "y"], "token": ["ls"]}.get(command, ["x"])])

    assert (helped, err, refused) == (0, "", 2)
    assert out.startswith(f"usage: parley {command} [")
    said = f"parley {command}: unknown option '--no-such-option'; see `parley {command} --help`\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_on_windows_every_command_says_where_it_runs(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    code = main([command])
    assert (code, *capsys.readouterr()) == (1, "", "parley: needs Linux or macOS; on Windows run it inside WSL2\n")


def test_on_windows_there_is_help(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    assert main(["--help"]) == 0
    assert "usage: parley COMMAND" in capsys.readouterr().out
