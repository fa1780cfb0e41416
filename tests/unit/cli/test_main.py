"""`parley`: which subcommand is meant."""

from __future__ import annotations

import sys

import pytest

from parley.cli.main import USAGE, main
from parley.version import __version__

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["--version"], 0, f"parley {__version__}\n", ""),
        (["--help"], 0, USAGE, ""),
        ([], 2, "", USAGE),
        (["serve"], 2, "", "parley: unknown command 'serve'; `parley --help` lists the commands\n"),
        (["--fast"], 2, "", "parley: unknown option '--fast'; `parley --help` lists the commands\n"),
    ],
)
def test_what_is_no_subcommand_is_answered_or_refused(
    capsys: Captured, argv: list[str], code: int, out: str, err: str
) -> None:
    assert (main(argv), *capsys.readouterr()) == (code, out, err)


@pytest.mark.parametrize("command", ["mcp", "demo", "sandbox", "doctor", "export", "import", "backup", "gc"])
def test_on_windows_every_command_says_where_it_runs(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    code = main([command])
    assert (code, *capsys.readouterr()) == (1, "", "parley: needs Linux or macOS; on Windows run it inside WSL2\n")


def test_on_windows_there_is_help(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    assert (main(["--help"]), *capsys.readouterr()) == (0, USAGE, "")
