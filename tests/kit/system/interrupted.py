"""Programs that wait for an interrupt. A shell can lose an interrupt while it starts a program."""

from __future__ import annotations

import shlex
import sys
from typing import Final

__all__ = ["IGNORES_INTERRUPTS", "WAITS"]


def _command(program: str) -> str:
    return shlex.join((sys.executable, "-I", "-S", "-c", program))


WAITS: Final = _command(
    "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "print('begun', flush=True); [time.sleep(0.01) for _ in iter(int, 1)]"
)
"""A command that prints `begun` when it waits for an interrupt, which ends it."""

IGNORES_INTERRUPTS: Final = _command(
    "import os, signal, time; signal.signal(signal.SIGINT, lambda *_: os.write(1, b'ignored\\n')); "
    "print('begun', flush=True); [time.sleep(0.01) for _ in iter(int, 1)]"
)
"""A command that prints `begun`, and `ignored` for each interrupt."""
