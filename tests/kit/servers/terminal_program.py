"""Runs a program whose stdin, stdout and stderr are a terminal, and types into it as a user would."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["LAUNCHER", "TerminalProgram"]

COLUMNS: Final = 80
ROWS: Final = 40

LAUNCHER: Final = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A program that makes stdin the terminal of its session, and then becomes the program of the test."""


class TerminalProgram:
    """A program in a session with its own terminal. It is killed at the end of the block."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            (sys.executable, "-c", LAUNCHER, *command),
            stdin=far,
            stdout=far,
            stderr=far,
            env={"TERM": "xterm", **env},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(far)
        self.output = ""
        """Everything that the program has written so far, with `\\n` as the line end."""
        self._unread = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._near)

    def type(self, text: str) -> None:
        os.write(self._near, text.encode())

    def read_until(self, text: str) -> str:
        """Wait until the program has written a text after the end of the last call, and return everything from the
        end of the last call to the end of the text.
        """
        while (at := self.output.find(text, self._unread)) < 0:
            if not self._read():
                raise AssertionError(f"{text!r} did not appear in {self.output[self._unread :]!r}")
        begin, self._unread = self._unread, at + len(text)
        return self.output[begin : self._unread]

    def answer(self, question: str, text: str) -> str:
        """Wait for a question, type a line, and return everything until the end of the question."""
        shown = self.read_until(question)
        self.type(f"{text}\n")
        return shown

    def finish(self) -> int:
        """Read until the program ends, and return its exit code."""
        while self._read():
            pass
        return self._process.wait(TIMEOUT_SECONDS)

    def _read(self) -> bool:
        """Read some bytes. Return False if the program has ended."""
        until = time.monotonic() + TIMEOUT_SECONDS
        if not select.select([self._near], [], [], until - time.monotonic())[0]:
            raise TimeoutError(f"the program writes nothing after {self.output[-500:]!r}")
        try:
            data = os.read(self._near, 65536)
        except OSError:  # the last process with the terminal has ended
            return False
        self.output += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
