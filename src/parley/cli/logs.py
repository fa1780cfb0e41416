"""The server's own log: stderr, one line each, never stdout, and never in the way.

A client that starts us may not read our stderr. A full pipe must not stop the server, so a line
that finds no room is dropped, and the next one that finds room says how many were.
"""

from __future__ import annotations

import logging
import os
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
    """Escapes characters of a message that cannot be seen, line ends included; a traceback follows unchanged."""

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
    """Log to stderr at the level of `PARLEY_LOG`.

    Raises:
        BadSetting: there is no such level.
    """
    name = environ.get("PARLEY_LOG") or "warning"
    if name.lower() not in LEVELS:
        expected = ", ".join(f"`{level}`" for level in LEVELS)
        raise BadSetting(f"unknown level `{name}`, expected one of {expected}", source="PARLEY_LOG")
    handler = _NeverWaiting(stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=LEVELS[name.lower()], handlers=[handler])


def _own(fd: int) -> int:
    """A non-blocking descriptor of our own where the system can give one; else the blocking one."""
    try:
        return os.open(
            f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except OSError:
        return fd
