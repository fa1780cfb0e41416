"""Servers in the process of the test, instead of child processes.

`InProcessServer` is the transport to a server that `parley mcp` would start. The server has all its parts, a home
on disk and two pipes, which carry the same bytes as the pipes of a child process. Only the process is missing. A
test has the marker `child_process` if it needs the PID, the memory or the start-up of the server, or kills the
server with a signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from kit.servers.empty_database import provide_database
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.serving import Server
from parley.cli.logs import OneLine
from parley.client import ServerProcess
from parley.errors import ConfigError
from parley.transports.descriptors import DescriptorTransport

__all__ = ["InProcessServer", "NeedsProcess"]

PROGRAM: Final = (sys.executable, "-P", "-m", "parley", "mcp")
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class NeedsProcess(AssertionError):
    """Raised when a test uses a property that only a process has."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs a process: mark the test with `child_process`")


class InProcessServer(ServerProcess):
    """A server in this process, or in a child process if its command or environment needs one."""

    async def start(self, *, on_message: Callable[[bytes], None], on_end: Callable[[int | None], None]) -> None:
        command, stderr = tuple(self.command), self.stderr
        options = _options(command[len(PROGRAM) :]) if command[: len(PROGRAM)] == PROGRAM else None
        if (
            options is None
            or self.env is None
            or "PARLEY_LOG" in self.env
            or self.cwd is None
            or stderr is None
            or isinstance(stderr, int)
        ):
            await super().start(on_message=on_message, on_end=on_end)
            return
        self._on_message, self._on_end = on_message, on_end
        self.exit_grace_seconds = TIMEOUT_SECONDS  # a task cannot be killed
        await _Process(self, env=self.env, cwd=str(self.cwd), stderr=stderr.fileno(), **options).start()


def _options(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the settings and the mode on a command line; None if it has other options."""
    overrides, is_ephemeral, rest = [], False, list(arguments)
    while rest:
        match rest:
            case ["-c", setting, *rest]:
                overrides.append(setting)
            case ["--ephemeral", *rest]:
                is_ephemeral = True
            case _:
                return None
    return {"overrides": overrides, "is_ephemeral": is_ephemeral}


class _Process(asyncio.SubprocessTransport):
    """Replaces the process of a `ServerProcess`: a task that serves, and two pipes to it."""

    def __init__(
        self,
        server: ServerProcess,
        *,
        env: Mapping[str, str],
        cwd: str,
        stderr: int,
        overrides: list[str],
        is_ephemeral: bool,
    ) -> None:
        super().__init__()
        self._server, self._stderr = server, stderr
        self._env, self._cwd, self._overrides, self._is_ephemeral = env, cwd, overrides, is_ephemeral
        self._exit_code: int | None = None
        self._transport: DescriptorTransport | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        stdin, to_server = os.pipe()
        from_server, stdout = os.pipe()
        self._task = loop.create_task(self._run(stdin, stdout))
        self._to_server, _ = await loop.connect_write_pipe(lambda: _Pipe(self, 0), os.fdopen(to_server, "wb", 0))
        self._from_server, _ = await loop.connect_read_pipe(lambda: _Pipe(self, 1), os.fdopen(from_server, "rb", 0))
        self._open_pipes = 2
        self._server.connection_made(self)
        self._task.add_done_callback(self._exited)

    async def _run(self, stdin: int, stdout: int) -> int:
        logging.getLogger().addHandler(_log)
        _server_stderr.set(self._stderr)
        transport = None
        try:
            if not self._is_ephemeral:
                provide_database(self._env)
            server = Server(
                environ=self._env, server_dir=self._cwd, overrides=self._overrides, is_ephemeral=self._is_ephemeral
            )
            transport = self._transport = DescriptorTransport(stdin=stdin, stdout=stdout)
            await server.serve(transport)
        except ConfigError as error:
            os.write(self._stderr, f"parley mcp: {error}\n".encode())
            return 2
        finally:
            if transport is not None:
                transport.close()
            os.close(stdin)
            os.close(stdout)
        return 0

    def _exited(self, task: asyncio.Task[int]) -> None:
        self._exit_code = task.result() if not task.cancelled() and task.exception() is None else 1
        self._server.process_exited()
        self._release()

    # --- called by `ServerProcess` ------------------------------------------------------

    def get_pid(self) -> int:
        raise NeedsProcess("the pid of a server")

    def get_returncode(self) -> int | None:
        return self._exit_code

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self._to_server if fd == 0 else self._from_server

    def send_signal(self, number: int) -> None:
        if number not in ENDING_SIGNALS:
            raise NeedsProcess(f"signal {number}")
        if self._transport is not None:
            self._transport.stop_reading()

    def close(self) -> None:
        self._to_server.close()
        self._from_server.close()

    # --- called by the pipes ---------------------------------------------------------------

    def data_received(self, fd: int, data: bytes) -> None:
        self._server.pipe_data_received(fd, data)

    def pipe_lost(self, fd: int, error: Exception | None) -> None:
        self._server.pipe_connection_lost(fd, error)
        self._open_pipes -= 1
        self._release()

    def _release(self) -> None:
        if self._exit_code is not None and not self._open_pipes:
            self._server.connection_lost(None)


class _Pipe(asyncio.Protocol):
    def __init__(self, process: _Process, fd: int) -> None:
        self._process, self._fd = process, fd

    def data_received(self, data: bytes) -> None:
        self._process.data_received(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._process.pipe_lost(self._fd, exc)


# --- the log of each server --------------------------------------------------------------

_server_stderr: ContextVar[int] = ContextVar("server_stderr")


class _ServerLog(logging.Handler):
    """Writes each line to the stderr of the server whose task logs it."""

    def emit(self, record: logging.LogRecord) -> None:
        if (stderr := _server_stderr.get(None)) is not None:
            os.write(stderr, self.format(record).encode("utf-8", "backslashreplace") + b"\n")


_log: Final = _ServerLog(logging.WARNING)
_log.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
