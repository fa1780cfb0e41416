"""Measures the time to run a command that does nothing, with each sandbox mechanism and without a sandbox."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from bench.commands import spawn_bare
from bench.pipe import Gone
from bench.report import BARE, RESULTS, Row
from bench.servers import CodexMcp, Parley, Server
from parley.config.types import Mechanism
from parley.errors import CommandNotStarted
from parley.ports.commands import Command, CommandResult, CommandRunner, SandboxPolicy, WritableRoot
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

__all__ = ["sandboxed"]

UNCONFINED: Final = "without a sandbox"

CALLS: Final = 40
ROUNDS: Final = 5
"""The number of rounds in each repetition. The variants alternate in short rounds, so that other load on the
computer affects all of them."""

MAY_TAKE: Final[Mapping[Mechanism, float]] = {"landlock": 1.0, "bubblewrap": 4.0}
"""The budget of each mechanism, as a multiple of the time of `codex debug landlock`."""

TIMEOUT_SECONDS: Final = 60.0


def sandboxed(peers: Sequence[Server], *, repetitions: int) -> list[Row]:
    peer = next((peer for peer in peers if isinstance(peer, CodexMcp)), None)
    # The directory is next to the results. It is not in /tmp, because /tmp is a writable root and must not contain
    # the hidden paths of the home.
    RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir=RESULTS.parent) as directory:
        best, missing = asyncio.run(_best(peer, Path(directory).resolve(), repetitions))
    theirs = {name: best[name] * 1000 for name in (CodexMcp.name, BARE) if name in best}
    how = f"mean of {CALLS} sequential calls; best of {repetitions * ROUNDS}"
    rows = []
    for mechanism, times in MAY_TAKE.items():
        ours = {Parley.name: best[mechanism] * 1000} if mechanism in best else {}
        ratio = best[mechanism] / best[CodexMcp.name] if ours and CodexMcp.name in best else None
        notes = [f"not measured: {missing[name]}" for name in (mechanism, CodexMcp.name) if name in missing]
        if ratio is not None:
            notes.append(f"{ratio:.2f} × `codex debug landlock`")
        rows.append(
            Row(
                what=f"time to run `true`, confined by {mechanism}",
                unit="ms",
                values={**ours, **theirs},
                budget=f"≤ {times:g} × `codex debug landlock`",
                kept=None if ratio is None else ratio <= times,
                notes=(how, *notes),
            )
        )
    unconfined = Row(
        what=f"time to run `true`, {UNCONFINED}",
        unit="ms",
        values={Parley.name: best[UNCONFINED] * 1000},
        notes=(how,),
    )
    return [*rows, unconfined]


async def _best(
    peer: CodexMcp | None, directory: Path, repetitions: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Run all variants in turn.

    Returns:
        The best mean time for one command in seconds, by the name of the variant, and the reasons why variants
        could not run, by their names.
    """
    home, work = directory / "home", directory / "work"
    hidden = [home / name for name in (".parley", ".ssh", ".aws")]
    for folder in (work, *hidden):
        folder.mkdir(parents=True)
    policy = SandboxPolicy(writable=(_root(work), _root(Path("/tmp"))), hidden=tuple(map(str, hidden)))
    confined = [replace(policy, mechanism=mechanism) for mechanism in MAY_TAKE]
    commands = Sandboxed(Executor)
    best: dict[str, float] = {}
    try:
        faults = {each.mechanism: await commands.why_unconfined(each) for each in confined}
        missing: dict[str, str] = {name: why for name, why in faults.items() if why is not None}
        for _ in range(repetitions * ROUNDS):
            took = {BARE: spawn_bare(), UNCONFINED: await _run(commands, None, work)}
            for each in confined:
                if each.mechanism not in missing:
                    took[each.mechanism] = await _run(commands, each, work)
            if peer is not None and CodexMcp.name not in missing:
                try:
                    took[CodexMcp.name] = _run_peer(peer.binary, home, work)
                except Gone as gone:
                    missing[CodexMcp.name] = str(gone)
            best = {name: min(seconds, best.get(name, seconds)) for name, seconds in took.items()}
    finally:
        await commands.close()
    return best, missing


def _root(path: Path) -> WritableRoot:
    real = path.resolve()
    found = real.stat()
    return WritableRoot(path=str(real), device=found.st_dev, inode=found.st_ino)


async def _run(commands: CommandRunner, policy: SandboxPolicy | None, work: Path) -> float:
    command = Command(
        argv=("true",),
        cwd=str(work),
        env={"PATH": os.environ["PATH"]},
        timeout_seconds=TIMEOUT_SECONDS,
        policy=policy,
    )
    await _run_once(commands, command)  # warm up: the first command starts the helper processes
    began = time.perf_counter()
    for _ in range(CALLS):
        await _run_once(commands, command)
    return (time.perf_counter() - began) / CALLS


async def _run_once(commands: CommandRunner, command: Command) -> None:
    try:
        ended: CommandResult = await commands.run(command, output=lambda stream, data: None)
    except CommandNotStarted as error:
        raise Gone(f"`true` did not run: {error}") from None
    if ended.exit_code != 0:
        raise Gone(f"`true` failed: {ended}")


def _run_peer(binary: str, home: Path, work: Path) -> float:
    """Run `true` with `codex debug landlock`, the process that the peer starts for each command, in the mode in
    which commands can write to the working directory. Return the mean time in seconds."""
    words = [binary, "debug", "landlock", "--full-auto", "--", "true"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
    here = os.getcwd()
    os.chdir(work)
    try:
        _wait(os.posix_spawn(binary, words, environ))
        began = time.perf_counter()
        for _ in range(CALLS):
            _wait(os.posix_spawn(binary, words, environ))
        return (time.perf_counter() - began) / CALLS
    finally:
        os.chdir(here)


def _wait(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if status:
        raise Gone(f"`codex debug landlock` failed: {status}")
