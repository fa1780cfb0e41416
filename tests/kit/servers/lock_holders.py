"""Other processes that hold the write lock of a home."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["Held", "held_by_child", "held_by_flock"]

_HOLD: Final = "echo; read line"


class Held:
    """A lock that another process holds."""

    def __init__(self, process: subprocess.Popen[bytes], holder: int) -> None:
        self._process, self.holder = process, holder
        """The PID of the process that error messages must name."""

    def release(self) -> None:
        self._process.communicate(b"\n", timeout=TIMEOUT_SECONDS)


@contextmanager
def _held(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # the lock is held now
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@contextmanager
def held_by_flock(home: Path) -> Iterator[Held]:
    """Hold the lock with `flock HOME/write.lock COMMAND`, until the block ends or the lock is released."""
    with _held("flock", str(home / "write.lock"), "sh", "-c", _HOLD) as process:
        yield Held(process, process.pid)


@contextmanager
def held_by_child(home: Path) -> Iterator[Held]:
    """Hold the lock in a shell that inherited the lock from a program that has ended."""
    with _held("sh", "-c", f'exec 9<"$0"; flock 9; {_HOLD}', str(home / "write.lock")) as process:
        yield Held(process, process.pid)
