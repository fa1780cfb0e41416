"""Servers and commands in a working directory that was removed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import parley
from kit.system.commands import TIMEOUT_SECONDS

WHY = "the working directory cannot be used: No such file or directory\n"
ID = "67e55044-10b1-426f-9247-bb680e5fe0c8"
COMMANDS = [
    *("mcp", "exec hi", "serve --no-http", "export ID -o below", "sandbox -- true"),
    *(
        pytest.param(command, marks=pytest.mark.long)
        for command in (
            "mcp --in-process",
            "exec hi --cwd below",
            "send ID hi",
            "show ID",
            "serve --no-http --socket below",
            "serve --tls-cert below --tls-key below",
            "import below",
            "backup below",
            "doctor --repair below",
        )
    ),
]


async def in_a_removed_directory(tmp_path: Path, *arguments: str) -> tuple[int | None, str, str]:
    """Run a command of Parley in a directory that was removed. Return its exit code, stdout and stderr."""
    gone = tmp_path / "gone"
    gone.mkdir()
    start = 'rmdir "$PWD" && exec "$@"'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", start, "sh", sys.executable, "-m", "parley", *arguments),
        cwd=gone,
        env={"PYTHONPATH": str(Path(parley.__file__).parents[1]), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_in_a_removed_directory_reports_it_in_one_line(tmp_path: Path, command: str) -> None:
    name, *rest = command.replace("ID", ID).split()
    code = 125 if name == "sandbox" else 2

    assert await in_a_removed_directory(tmp_path, name, *rest) == (code, "", f"parley {name}: {WHY}")


@pytest.mark.long
async def test_the_demo_needs_no_working_directory(tmp_path: Path) -> None:
    code, out, err = await in_a_removed_directory(tmp_path, "demo")

    assert (code, err) == (0, "")
    assert "Nothing was lost." in out
