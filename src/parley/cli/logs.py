"""The server's log: one line for each message, on stderr.

Some clients do not read the server's stderr, and a full pipe must not block the server. Therefore a line that does
not fit into the pipe is discarded, and the next line that fits contains the number of discarded lines.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from typing import Final

from parley.errors import BadSetting
from parley.wire.text import visible

__all__ = ["OneLine", "set_up_logging"]

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class OneLine(logging.Formatter):
    """A log formatter that escapes the invisible characters in a message, including line ends. A traceback follows
    the message unchanged.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return visible(super().formatMessage(record))


class _NeverWaiting(logging.Handler):
    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = _own(fd)
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if self._dropped:
            line = f"({self._dropped} lines were dropped)\n{line}"
        try:
            os.write(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")
            self._dropped = 0
        except OSError:
            self._dropped += 1


def set_up_logging(environ: Mapping[str, str], *, stderr: int = 2) -> None:
    """Log to the descriptor `stderr` at the level that `PARLEY_LOG` specifies.

    Raises:
        BadSetting: the level is unknown.
    """
    name = environ.get("PARLEY_LOG") or "warning"
    if name.lower() not in LEVELS:
        expected = ", ".join(f"`{level}`" for level in LEVELS)
        raise BadSetting(f"unknown level `{name}`, expected one of {expected}", source="PARLEY_LOG")
    handler = _NeverWaiting(stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=LEVELS[name.lower()], handlers=[handler])


def _own(fd: int) -> int:
    """Open the pipe or terminal of `fd` again, without blocking, and return the new descriptor.

    Return `fd` itself if it cannot be opened again or is a regular file. A new descriptor of a regular file would
    have its own offset, and if stdout and stderr were the same file, each would overwrite the other.
    """
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        return os.open(
            f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except OSError:
        return fd
