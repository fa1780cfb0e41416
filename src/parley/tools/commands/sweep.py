"""Killing what is left of commands whose fork server is gone or does not answer.

The last resort, and only as good as what `/proc` tells: a process is known by its session, by its
ancestors, or by what stands in the environment that it was started with. `forkserver.py` does not need
it as long as nobody kills or stops the fork server.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from typing import Final, NamedTuple

__all__ = ["is_stopped", "sweep"]

PATIENCE_SECONDS: Final = 2.0
"""How long killed processes may take to die: ample unless one hangs in the kernel, and then nothing helps."""
LOOK_SECONDS: Final = 0.002


class _Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    state: bytes

    @property
    def dead(self) -> bool:
        return self.state in b"ZX"


def sweep(
    *,
    below: int | None = None,
    sessions: Collection[int] = (),
    marks: Collection[bytes] = (),
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Kill all processes of these sessions, all with such a mark, and all that descend from them or from `below`.

    A mark is a whole entry of the environment. Blocks until they are dead, so many seconds at most.
    `below` itself is left alone: as long as it is there, nothing gets away from under it.
    """
    until = time.monotonic() + patience_seconds
    while (found := _found(below, sessions, marks)) and time.monotonic() < until:
        for process in found:
            try:
                if process.group not in (os.getpgrp(), below):
                    os.killpg(process.group, signal.SIGKILL)
                os.kill(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # dead by now, or not ours to kill
        time.sleep(LOOK_SECONDS)


def is_stopped(pid: int) -> bool:
    """Whether a process waits for SIGCONT, or for a debugger."""
    process = _read(str(pid))
    return process is not None and process.state in b"Tt"


def _found(below: int | None, sessions: Collection[int], marks: Collection[bytes]) -> list[_Process]:
    processes = _processes()
    found = {p.pid for p in processes if p.session in sessions or (marks and _has_mark(p.pid, marks))}
    ancestors = found | ({below} if below is not None else set())
    while more := {p.pid for p in processes if p.parent in ancestors and p.pid not in ancestors}:
        ancestors |= more
        found |= more
    return [process for process in processes if process.pid in found and not process.dead]


def _processes() -> list[_Process]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [process for name in names if name.isdigit() and (process := _read(name)) is not None]


def _read(pid: str) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name of the program stands in brackets, and may hold some itself.
    state, parent, group, session = stat[stat.rindex(b")") + 2 :].split()[:4]
    return _Process(int(pid), int(parent), int(group), int(session), state)


def _has_mark(pid: int, marks: Collection[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return False  # it is gone, or not ours to look at
    return any(mark in entries for mark in marks)
