"""`parley mcp` that kills itself at a given write.

Its arguments are the kind of write, the number of the write, and a file in which it records the size of the
write-ahead log after each commit. It intercepts only calls of SQLite and of the operating system.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

from parley.cli.main import main


class KillPoint:
    """Counts writes of one kind, and kills the process at one of them."""

    def __init__(self, moment: str, number: int, notes: str) -> None:
        self._moment, self._left = moment, number
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._wal = os.path.join(os.environ["PARLEY_HOME"], "parley.db-wal")
        stdout = os.fstat(1)
        self._stdout = (stdout.st_dev, stdout.st_ino)
        self._write = os.write

    def comes(self, moment: str) -> bool:
        """Count a write. Return whether the process must kill itself at this write."""
        if moment != self._moment:
            return False
        self._left -= 1
        return self._left == 0

    def at(self, moment: str) -> None:
        if self.comes(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def note_commit(self) -> None:
        self._write(self._notes, b"%d\n" % os.stat(self._wal).st_size)

    def write(self, fd: int, data: Any) -> int:
        """Write and count. This method replaces `os.write`."""
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == self._stdout and self.comes("in a write"):
            self._write(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return self._write(fd, data)


class Connection(sqlite3.Connection):
    """A connection whose commits are counted."""

    def __init__(self, *arguments: Any, kill_point: KillPoint, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kill_point = kill_point

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        self._kill_point.at("before a commit")
        done = super().execute(sql)
        self._kill_point.at("after a commit")
        self._kill_point.note_commit()
        return done


if __name__ == "__main__":
    _, moment, number, notes, *words = sys.argv
    kill_point = KillPoint(moment, int(number), notes)
    counted = partial(sqlite3.connect, factory=partial(Connection, kill_point=kill_point))
    with patch("sqlite3.connect", counted), patch("os.write", kill_point.write):
        sys.exit(main(words))
