"""Two commands at once, one of which may write around the root of the other and puts a link in its place."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from kit.attacks.confined import root
from kit.needs import LANDLOCK
from kit.running import PATH, PATIENCE_SECONDS, PYTHON
from parley.errors import CannotConfine
from parley.ports.commands import Bounds, Command
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

STARTS: Final = 60
"""At least, and until one was started and one refused, so that both were come upon. Where links are followed,
one in ten reaches outside."""

SWAP: Final = """
import ctypes, os, sys, time
rename = ctypes.CDLL(None).renameat2
one, other = (os.fsencode(path) for path in sys.argv[1:])
print("begun", flush=True)
while True:
    rename(-100, one, -100, other, 2)
    time.sleep(0.002)
"""
"""Exchanges two names for ever. The pause lets the other command come upon each of both."""


@LANDLOCK
async def test_a_link_that_comes_and_goes_while_a_command_starts_opens_nothing(tmp_path: Path) -> None:
    wide, outside = tmp_path / "wide", tmp_path / "outside"
    project = wide / "between/project"
    for folder in (project / ".git/hooks", outside / "project/.git/hooks"):
        folder.mkdir(parents=True)
    (wide / "link").symlink_to("../outside")
    swapper = Command(
        argv=(*PYTHON, SWAP, str(wide / "between"), str(wide / "link")),
        cwd="/",
        env={},
        timeout_seconds=4 * PATIENCE_SECONDS,
        bounds=Bounds(writable=(root(str(wide)),), mechanism="landlock"),
    )
    victim = Command(
        argv=("sh", "-c", 'echo written > "$0/project/new"', str(outside)),
        cwd="/",
        env={"PATH": PATH},
        timeout_seconds=PATIENCE_SECONDS,
        bounds=Bounds(writable=(root(str(project)),), mechanism="landlock"),
    )
    commands, begun, outcomes = Sandboxed(Executor), asyncio.Event(), list[str]()
    swapping = asyncio.create_task(commands.run(swapper, output=lambda stream, data: begun.set()))
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        await begun.wait()
        while len(outcomes) < STARTS or len(set(outcomes)) < 2:
            try:
                await commands.run(victim, output=lambda stream, data: None)
                outcomes.append("started")
            except CannotConfine:
                outcomes.append("refused")
        swapping.cancel()
        await asyncio.wait((swapping,))
        await commands.close()

    assert os.listdir(outside / "project") == [".git"]
