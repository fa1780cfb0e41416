"""Starts the resident server of a home in the background, for `parley mcp --resident`.

The server belongs to no client. It has its own session, and its parent has exited. Its environment contains no
secrets of the client that started it, and its log is a file in the home.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

from parley.common.home import SERVER_LOG

__all__ = ["start_in_background"]

MOST_LOG_BYTES: Final = 1024 * 1024
"""A longer log is emptied when a server is started."""

INHERITED: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PARLEY_LOG",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
)
"""The variables that the server gets from the client that starts it. None of them may hold a secret."""


def start_in_background(home: str, environ: Mapping[str, str]) -> None:
    """Start a resident server, and return when it is ready or has ended. It ends at once if another one runs.

    Raises:
        OSError: it cannot be started.
    """
    os.makedirs(home, mode=0o700, exist_ok=True)
    log = _open_log(home)
    ready, told = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _start(home, environ, log=log, told=told)
    finally:
        os.close(log)
        os.close(told)
    try:
        os.waitpid(child, 0)
        while line := os.read(ready, 4096):
            if line.endswith(b"\n"):
                break
    finally:
        os.close(ready)


def _start(home: str, environ: Mapping[str, str], *, log: int, told: int) -> NoReturn:
    """Start the server as a grandchild in a new session, so that it is not a child of this process."""
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd, target in ((null, 0), (told, 1), (log, 2)):
                os.dup2(fd, target)
            os.chdir("/")
            env = {name: environ[name] for name in INHERITED if name in environ} | {"PARLEY_HOME": home}
            command = (sys.executable, "-P", "-m", "parley", "serve", "--json", "--exit-when-idle")
            os.execve(sys.executable, command, env)
    finally:
        os._exit(1)


def _open_log(home: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(os.path.join(home, SERVER_LOG), flags, 0o600)
    if os.fstat(log).st_size > MOST_LOG_BYTES:
        os.ftruncate(log, 0)
    return log
