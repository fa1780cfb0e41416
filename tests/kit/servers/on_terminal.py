"""Starts a program whose stdin is a terminal: `python on_terminal.py PROGRAM ARGUMENTS...`.

Bytes from stdin are passed to the program through a pseudo-terminal in raw mode. The program inherits stdout and
stderr. Signals are passed on to it, and its exit code is returned.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import tty
from pathlib import Path
from typing import Final

__all__ = ["ON_TERMINAL"]

ON_TERMINAL: Final = (sys.executable, str(Path(__file__)), sys.executable, "-P", "-m", "parley")
"""The command that runs `parley` with a terminal as its stdin."""


def main() -> int:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    program = subprocess.Popen(sys.argv[1:], stdin=theirs)
    os.close(theirs)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: program.send_signal(number))
    threading.Thread(target=_copy, args=(ours,), daemon=True).start()
    return program.wait()


def _copy(terminal: int) -> None:
    while data := os.read(0, 65536):
        while data:
            data = data[os.write(terminal, data) :]
    os.close(terminal)  # the program reads the end of its input


if __name__ == "__main__":
    sys.exit(main())
