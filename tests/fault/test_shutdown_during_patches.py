"""Shutdowns while a patch is being written: the patch is completed first."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import ScriptedModel
from parley.testing.home import Home

WRITES_ON_REQUEST: Final = """
import asyncio, os, sys
from pathlib import Path
from parley.app.serving import serve_stdio
from parley.tools.patch.threads import written_in_thread

async def main():
    pipe, file = map(Path, sys.argv[1:])
    written_in_thread(lambda: file.write_bytes(pipe.read_bytes()), name="write-patch")
    asyncio.get_running_loop().call_soon(os.dup2, 2, 1)  # now only the server has its stdout
    await serve_stdio()

asyncio.run(main())
"""


async def opened_for_writing(pipe: Path) -> int:
    """Create a pipe with both ends open, so that no thread blocks in opening it."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        await asyncio.sleep(0.02)


@pytest.mark.promises("patch.whole")
async def test_a_patch_in_progress_is_completed_before_the_server_exits(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = Home(parley_model)
    home.open()
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITES_ON_REQUEST, pipe, file),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=home.environ,
        cwd=home.work,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            content = await opened_for_writing(pipe)
            server.stdin.close()
            await server.stdout.read()  # the end of stdout means that the server has closed the connection
            os.write(content, b"all of it")
            os.close(content)
            exit_code = await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
        home.close()

    assert (exit_code, file.read_bytes()) == (0, b"all of it")
