"""Starts commands in a project while a directory of its path is repeatedly replaced by a link.

`python -m kit.attacks.swaps STARTS` prints two numbers for each pattern: how many starts in bubblewrap escaped
without the check of mounts (it stops at the first), and how many of STARTS with the check.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from msgspec.structs import replace

from kit.builders.sandbox_policies import sandbox_policy
from kit.system.commands import PATH, PYTHON, TIMEOUT_SECONDS
from parley.config.types import Mechanism
from parley.errors import SandboxUnavailable
from parley.ports.commands import Command, CommandResult, LaunchSpec, Output
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

__all__ = ["ENOUGH", "PATTERNS", "WITHOUT_PAUSE", "Outcome", "Pattern", "Swapping", "Ways", "escapes", "survey"]

Outcome = Literal["started", "refused", "escaped"]

ENOUGH: Final = 200
"""The number of starts that is enough for an escape without the check of mounts. Two of five starts escape."""

SWAP: Final = """
import ctypes, os, sys, time
rename = ctypes.CDLL(None).renameat2
one, other = (os.fsencode(path) for path in sys.argv[1:3])
swaps, pause = int(sys.argv[3]), float(sys.argv[4])
print("begun", flush=True)
while True:
    for _ in range(swaps):
        rename(-100, one, -100, other, 2)
    time.sleep(pause)
"""
"""A program that exchanges two names until it is killed."""


class Pattern(NamedTuple):
    """The number of swaps in a burst, and the pause after it."""

    swaps: int
    pause_seconds: float


WITHOUT_PAUSE: Final = Pattern(1000, 0.0)
PATTERNS: Final = {
    "without a pause": WITHOUT_PAUSE,
    "in long bursts": Pattern(2000, 0.002),
    "in short bursts, and otherwise now this way, now that": Pattern(21, 0.0005),
    "as often as a launcher mounts something": Pattern(1, 0.0002),
}


class Ways(NamedTuple):
    """A project in a directory that others may write to, with a link in that directory that leads outside."""

    wide: Path
    outside: Path

    @classmethod
    def within(cls, folder: Path) -> Self:
        ways = cls(folder / "wide", folder / "outside")
        for place in (ways.project / ".git/hooks", ways.outside / "project/.git/hooks"):
            place.mkdir(parents=True)
        (ways.wide / "link").symlink_to("../outside")
        return ways

    @property
    def project(self) -> Path:
        return self.wide / "between/project"

    @property
    def escaped(self) -> Path:
        """The file outside that the command must not be able to write."""
        return self.outside / "project/new"

    def victim(self, mechanism: Mechanism) -> Command:
        """Return a command that may write to the project and tries to write outside."""
        return Command(
            argv=("sh", "-c", 'echo written > "$0"', str(self.escaped)),
            cwd="/",
            env={"PATH": PATH},
            timeout_seconds=TIMEOUT_SECONDS,
            policy=sandbox_policy(self.project, mechanism=mechanism),
        )

    def swap(self) -> None:
        for old, new in (("between", "away"), ("link", "between"), ("away", "link")):
            (self.wide / old).rename(self.wide / new)

    @contextmanager
    def swapped(self, pattern: Pattern) -> Iterator[None]:
        """Keep exchanging the link and the directory until the block ends."""
        names = (str(self.wide / "between"), str(self.wide / "link"))
        words = (*PYTHON, SWAP, *names, str(pattern.swaps), str(pattern.pause_seconds))
        with subprocess.Popen(words, stdout=subprocess.PIPE) as swapper:
            try:
                assert swapper.stdout is not None
                swapper.stdout.readline()
                yield
            finally:
                swapper.kill()
                swapper.wait()
                if (self.wide / "between").is_symlink():
                    self.swap()


class Swapping:
    """Starts commands; with `swaps_next`, exchanges the link and the directory directly before the next start."""

    def __init__(self, ways: Ways) -> None:
        self._executor, self._ways = Executor(), ways
        self.swaps_next = False
        self.starts: list[LaunchSpec] = []

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        self.starts.append(start)
        if self.swaps_next:
            self.swaps_next = False
            self._ways.swap()
        return await self._executor.start(start, output=output)

    async def start_last_without_a_look(self) -> CommandResult:
        """Start the last command again, without the check of its mounts."""
        return await self._executor.start(replace(self.starts[-1], mounts=()), output=lambda stream, data: None)

    async def close(self) -> None:
        await self._executor.close()


async def outcomes(ways: Ways, pattern: Pattern, *, looks: bool) -> AsyncGenerator[Outcome, None]:
    """Yield the outcome of each start in bubblewrap while the names are exchanged. The policy is resolved before
    that, so only the check of mounts can refuse a start."""
    starter = Swapping(ways)
    commands = Sandboxed(lambda: starter)
    try:
        await commands.run(ways.victim("bubblewrap"), output=lambda stream, data: None)
        start = starter.starts[-1] if looks else replace(starter.starts[-1], mounts=())
        with ways.swapped(pattern):
            while True:
                outcome: Outcome = "started"
                try:
                    await starter.start(start, output=lambda stream, data: None)
                except SandboxUnavailable:
                    outcome = "refused"
                if ways.escaped.exists():
                    ways.escaped.unlink()
                    outcome = "escaped"
                yield outcome
    finally:
        await commands.close()


async def survey(ways: Ways, pattern: Pattern, *, looks: bool, starts: int) -> Counter[Outcome]:
    """Count the outcomes of this many starts. Without the check of mounts, stop at the first escape."""
    found = Counter[Outcome]()
    each = outcomes(ways, pattern, looks=looks)
    try:
        while found.total() < starts and (looks or not found["escaped"]):
            found[await anext(each)] += 1
    finally:
        await each.aclose()
    return found


async def escapes(starts: int) -> dict[str, tuple[int, int]]:
    """Return, for each pattern, how many starts escaped without and with the check of mounts."""
    found = {}
    for name, pattern in PATTERNS.items():
        with tempfile.TemporaryDirectory() as folder:
            ways = Ways.within(Path(folder))
            control = await survey(ways, pattern, looks=False, starts=ENOUGH)
            looked_at = await survey(ways, pattern, looks=True, starts=starts)
        found[name] = (control["escaped"], looked_at["escaped"])
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(escapes(int(sys.argv[1])))))
