"""Starts the resident server of a home directory in the background, for `parley mcp --resident`.

The server does not depend on a client: it runs in its own process session, and its parent process has exited. The
server's environment contains no secrets from the client that started the server. The server logs to a file in the
home directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

from parley.common.home import SERVER_LOG

__all__ = ["shorten_log", "start_in_background"]

KEPT_LOG_BYTES: Final = 1024 * 1024
"""The size in bytes to which a running server shortens the log file. When a server starts, it empties a log file
that is larger than this size.
"""
MAX_LOG_BYTES: Final = 8 * KEPT_LOG_BYTES
"""The size in bytes beyond which a running server shortens the log file."""

INHERITED: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PARLEY_LOG",
    "PARLEY_LOG_CONTENT",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
)
"""The environment variables that the server inherits from the client that starts it. These variables must not
contain secrets.
"""


def start_in_background(home: str, environ: Mapping[str, str]) -> None:
    """Start a resident server of the home directory `home`, and return when the server is ready or has exited. The
    server gets the variables `INHERITED` from `environ`.

    The server exits immediately if another resident server of the home directory is running.

    Raises:
        OSError: the server cannot be started.
    """
    os.makedirs(home, mode=0o700, exist_ok=True)
    log = _open_log(home)
    ready, report = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _start(home, environ, log=log, report=report)
    finally:
        os.close(log)
        os.close(report)
    try:
        os.waitpid(child, 0)
        while line := os.read(ready, 4096):
            if line.endswith(b"\n"):
                break
    finally:
        os.close(ready)


def shorten_log(home: str, stderr: int = 2) -> None:
    """If stderr is the log file of the home and is larger than `MAX_LOG_BYTES`, keep only the newest
    `KEPT_LOG_BYTES` of the log file. Otherwise do nothing. `stderr` is the descriptor of stderr.

    Raises:
        OSError: the log file cannot be read or changed.
    """
    if os.fstat(stderr).st_size <= MAX_LOG_BYTES:
        return
    log = os.open(os.path.join(home, SERVER_LOG), os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(log), os.fstat(stderr)):
            newest = os.pread(log, KEPT_LOG_BYTES, os.fstat(log).st_size - KEPT_LOG_BYTES)
            os.ftruncate(log, 0)
            os.write(log, newest.partition(b"\n")[2])
    finally:
        os.close(log)


def _start(home: str, environ: Mapping[str, str], *, log: int, report: int) -> NoReturn:
    """Start the server as a child process in a new process session, and then exit.

    Only a forked process may call this function, because the function ends the calling process. The descriptor
    `report` becomes the server's stdout, and the descriptor `log` becomes the server's stderr.
    """
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd, target in ((null, 0), (report, 1), (log, 2)):
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
    if os.fstat(log).st_size > KEPT_LOG_BYTES:
        os.ftruncate(log, 0)
    return log
