"""Servers and commands in a working directory that was removed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import parley


async def test_a_server_that_is_started_in_a_directory_that_is_gone_reports_it_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    start = 'rmdir "$PWD" && exec "$0" -m parley mcp'
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        start,
        sys.executable,
        cwd=gone,
        env={"PYTHONPATH": str(Path(parley.__file__).parents[1]), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        said, complained = await process.communicate()

    assert (process.returncode, said) == (2, b"")
    assert complained == b"parley mcp: the working directory cannot be used: No such file or directory\n"
