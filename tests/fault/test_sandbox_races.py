"""Somebody who may write around the root of a command puts a link in its place, before or while it starts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kit.attacks.confined import root
from kit.needs import LANDLOCK
from kit.running import PATH, PATIENCE_SECONDS, PYTHON
from parley.errors import CannotConfine
from parley.ports.commands import Bounds, Command, Ended, Output, Start
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor


class Ways(NamedTuple):
    """A project in a directory that others may write to, with a link there that leads outside."""

    wide: Path
    outside: Path

    @property
    def project(self) -> Path:
        return self.wide / "between/project"

    def victim(self) -> Command:
        """A command that may write to the project, and tries it outside."""
        return Command(
            argv=("sh", "-c", 'echo written > "$0/project/new"', str(self.outside)),
            cwd="/",
            env={"PATH": PATH},
            timeout_seconds=PATIENCE_SECONDS,
            bounds=Bounds(writable=(root(str(self.project)),), mechanism="landlock"),
        )

    def swap(self) -> None:
        (self.wide / "between").rename(self.wide / "away")
        (self.wide / "link").rename(self.wide / "between")


class Swapping:
    """Starts commands, one of them at the very moment when the link takes the place of the directory."""

    def __init__(self, ways: Ways) -> None:
        self._executor, self._ways = Executor(), ways
        self.swaps_next = False

    async def start(self, start: Start, *, output: Output) -> Ended:
        if self.swaps_next:
            self.swaps_next = False
            self._ways.swap()
        return await self._executor.start(start, output=output)

    async def close(self) -> None:
        await self._executor.close()


@pytest.fixture
def ways(tmp_path: Path) -> Ways:
    ways = Ways(tmp_path / "wide", tmp_path / "outside")
    for folder in (ways.project / ".git/hooks", ways.outside / "project/.git/hooks"):
        folder.mkdir(parents=True)
    (ways.wide / "link").symlink_to("../outside")
    return ways


@LANDLOCK
async def test_a_link_that_comes_between_the_look_and_the_start_opens_nothing(ways: Ways) -> None:
    starter, victim = Swapping(ways), ways.victim()
    commands = Sandboxed(lambda: starter)
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        before = await commands.run(victim, output=lambda stream, data: None)
        starter.swaps_next = True
        meanwhile = await commands.run(victim, output=lambda stream, data: None)
        with pytest.raises(CannotConfine):
            await commands.run(victim, output=lambda stream, data: None)
        await commands.close()

    assert (0 in (before.exit_code, meanwhile.exit_code), starter.swaps_next) == (False, False)
    assert os.listdir(ways.outside / "project") == [".git"]


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


@pytest.mark.long
@LANDLOCK
async def test_a_link_that_comes_and_goes_while_a_command_starts_opens_nothing(ways: Ways) -> None:
    swapper = Command(
        argv=(*PYTHON, SWAP, str(ways.wide / "between"), str(ways.wide / "link")),
        cwd="/",
        env={},
        timeout_seconds=4 * PATIENCE_SECONDS,
        bounds=Bounds(writable=(root(str(ways.wide)),), mechanism="landlock"),
    )
    victim = ways.victim()
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

    assert os.listdir(ways.outside / "project") == [".git"]
