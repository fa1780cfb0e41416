"""Sandboxed commands for tests that are not async.

`python -m kit.attacks.confined KIND...` makes the attempts of these kinds and prints their outcomes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self, get_args

from msgspec.structs import replace

from kit.attacks.attempts import KINDS, World
from kit.attacks.ground import Ground, Outcomes, by_itself
from kit.servers.installed import install
from kit.system.commands import PATH, TIMEOUT_SECONDS, Ran
from kit.system.confined_commands import confined
from kit.system.needs import no_bubblewrap, no_landlock
from parley.config.types import Mechanism
from parley.ports.commands import Command, SandboxPolicy, WritableRoot
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

__all__ = ["CELLS", "MODES", "Confined", "Mode", "Survey", "root"]

MECHANISMS: Final[tuple[Mechanism, ...]] = tuple(each for each in get_args(Mechanism) if each != "auto")


class Mode(NamedTuple):
    """A mode of the sandbox, with or without the network."""

    name: str
    writable: bool
    network: bool

    def policy(self, mechanism: Mechanism, *roots: str, hidden: Sequence[str] = ()) -> SandboxPolicy:
        writable = tuple(map(root, roots)) if self.writable else ()
        return SandboxPolicy(writable=writable, network=self.network, hidden=tuple(hidden), mechanism=mechanism)


MODES: Final = (
    Mode("read-only", writable=False, network=False),
    Mode("workspace-write", writable=True, network=False),
    Mode("workspace-write with network", writable=True, network=True),
)


def root(path: str) -> WritableRoot:
    found = os.lstat(path)
    return WritableRoot(path=path, device=found.st_dev, inode=found.st_ino)


class Confined:
    """Runs sandboxed commands, one at a time."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.commands = Sandboxed(Executor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.commands.close()

    def run(
        self,
        policy: SandboxPolicy | None,
        *argv: str,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Ran:
        """Run a command to its end and return all its output."""
        return self._runner.run(
            confined(self.commands, policy, *argv, cwd=cwd, env=env, timeout_seconds=timeout_seconds)
        )

    def cancel_when_it_speaks(self, policy: SandboxPolicy, *argv: str, cwd: str) -> None:
        """Run a command until its first output, then cancel it."""
        command = Command(argv=argv, cwd=cwd, env={"PATH": PATH}, timeout_seconds=TIMEOUT_SECONDS, policy=policy)
        self._runner.run(self._cancel_when_it_speaks(command))

    async def _cancel_when_it_speaks(self, command: Command) -> None:
        begun = asyncio.Event()
        running = asyncio.create_task(self.commands.run(command, output=lambda stream, data: begun.set()))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await begun.wait()
            running.cancel()
            await asyncio.wait((running,))
        assert running.cancelled()

    def attack(
        self, ground: Ground, kind: str, mechanism: Mechanism, mode: Mode, *, installed: str = ""
    ) -> Outcomes:
        """Make all attempts of a kind in a mode. `installed` is a directory in the workspace to install Parley
        in."""

        def run(argv: Sequence[str], world: World) -> str:
            policy = mode.policy(mechanism, world.inside, hidden=world.hidden_paths)
            if installed:
                install(Path(world.inside, installed))
                policy = replace(policy, installed=(f"{world.inside}/{installed}/.venv",))
            result = self.run(policy, *argv, cwd=world.inside)
            assert result == Ran(exit_code=0, stdout=result.stdout), result
            return result.stdout.decode()

        return ground.attack(kind, run)


CELLS: Final = tuple(
    (kind, mechanism, mode)
    for kind in KINDS
    for mechanism in MECHANISMS
    for mode in MODES
    # Landlock does not protect attributes of files outside if the command may write anywhere (docs/security.md).
    if not (kind == "metadata" and mechanism == "landlock" and mode.writable)
)
"""The combinations in which no attempt may succeed."""


class Survey(NamedTuple):
    """The outcomes of all attempts, for one user."""

    by_itself: dict[str, Outcomes]
    """Outcomes without a sandbox, by kind."""
    unconfined: dict[str, str]
    """Why a mechanism does not work here, by mechanism."""
    confined: list[tuple[str, Mechanism, str, Outcomes]]
    """Outcomes in the sandbox, with kind, mechanism and mode."""


def survey(kinds: Sequence[str]) -> Survey:
    """Make all attempts of these kinds, in one mode each. The user makes no difference in the other modes."""
    with Ground() as ground, Confined() as commands:
        reasons = {"bubblewrap": no_bubblewrap(), "landlock": no_landlock()}
        unconfined = {each: why for each, why in reasons.items() if why}
        return Survey(
            by_itself={kind: ground.attack(kind, by_itself) for kind in kinds},
            unconfined=unconfined,
            confined=[
                (kind, mechanism, mode.name, commands.attack(ground, kind, mechanism, mode))
                for kind, mechanism, mode in CELLS
                if kind in kinds
                and mechanism not in unconfined
                and mode == (MODES[0] if kind == "metadata" else MODES[1])
            ],
        )


if __name__ == "__main__":
    print(json.dumps(survey(sys.argv[1:])._asdict()))
