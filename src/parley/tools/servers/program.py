"""The program of a tool server: a child process with pipes, ended together with its process group.

Knows processes and bytes. Does not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from parley.common.os_errors import os_detail
from parley.common.shield import run_to_completion
from parley.tools.errors import NotStarted
from parley.tools.rlimits import limit_program
from parley.tools.servers.failures import one_line

__all__ = ["Program", "environment"]

log: Final = logging.getLogger(__name__)

INHERITED: Final = (
    "HOME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "USER",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "TZ",
    "__CF_USER_TEXT_ENCODING",
)
"""The variables of the server's environment that a program gets."""

LEAVE_SECONDS: Final = 0.5
"""How long a program may take to exit after its input was closed, which is how MCP ends a server."""

TERM_SECONDS: Final = 0.5
"""How long a program may take to exit after SIGTERM. Both times together are less than the two seconds that
Parley has to stop (docs/protocol.md#lifecycle).
"""

KILL_SECONDS: Final = 2.0
"""How long a killed process may take to end; only a process that is stuck in the kernel takes longer."""

PIPE_SECONDS: Final = 0.5
"""How long the remaining output of a program is read after its end. Another process may keep the pipe open and
never answer."""

READ_BYTES: Final = 256 * 1024

LOG_LINE_BYTES: Final = 1000
"""How much of one line on stderr is logged."""

PidfdOpen = Callable[[int], int]

_PIDFD_OPEN: Final[PidfdOpen | None] = getattr(os, "pidfd_open", None)
"""None where the system lacks it; a thread waits for the end of a program instead."""


def environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in INHERITED if name in environ} | dict(extra)


class Program:
    """A child process in its own process group. `stop` must be called."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process, self._name = process, name
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._pidfd: int | None = None
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        name: str,
        cwd: str = "/",
        pidfd_open: PidfdOpen | None = _PIDFD_OPEN,
    ) -> Program:
        """Run `argv` in `cwd`, with the program found by the PATH of `env`. `name` is its name in the log.

        Raises:
            NotStarted: the program was not found, or the system refused; nothing is left running.
        """
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns when the program was found
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            where = f"cannot start in {cwd}: " if error.filename == cwd and error.filename != argv[0] else ""
            raise NotStarted(f"{where}{os_detail(error)}") from None
        except ValueError as error:
            raise NotStarted(str(error)) from None
        limit_program(process.pid)
        program = cls(process, name)
        try:
            program._watch(pidfd_open)
            await program._open_pipes()
        except BaseException as error:
            await program._abandon()
            if isinstance(error, OSError):
                raise NotStarted(os_detail(error)) from error
            if isinstance(error, RuntimeError):  # no thread can be started
                raise NotStarted(str(error)) from error
            raise
        return program

    async def read(self) -> bytes:
        """Return the next part of its output; empty at the end."""
        return await self._output.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        """Write to its input; return when the pipe has room again.

        Raises:
            ConnectionError: the program no longer reads.
        """
        self._input.write(data)
        await self._input.drain()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; return False after this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def how_it_ended(self) -> str:
        """Return a text that says how the program ended."""
        try:
            code = self._exit_code()
        except ChildProcessError:  # other code has reaped it
            return "the program ended before it answered"
        if code is None:
            return "the program closed its output before it answered"
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"the program ended before it answered ({how})"

    async def stop(self) -> None:
        """Close its input, then send SIGTERM, then SIGKILL to its process group.

        Cancelling sends SIGKILL at once.
        """
        discard = asyncio.create_task(self._discard())  # or a full pipe would keep it from exiting
        try:
            if not self._input.transport.is_closing():
                self._input.transport.abort()
            if not await self.wait(LEAVE_SECONDS):
                self._signal(signal.SIGTERM)
                await self.wait(TERM_SECONDS)
        finally:
            # Before it is reaped: until then no other process can have its process id.
            self._signal(signal.SIGKILL)
            try:
                if not await self.wait(KILL_SECONDS):
                    self._warn_stuck()
            finally:
                discard.cancel()
                self._logging.cancel()
                self._release()
        await asyncio.gather(discard, self._logging, return_exceptions=True)

    async def _open_pipes(self) -> None:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await self._loop.connect_write_pipe(lambda: protocol, stdin)
        self._transports.append(transport)
        self._input = asyncio.StreamWriter(transport, protocol, None, self._loop)
        self._output = await self._reader(stdout)
        errors = await self._reader(stderr)
        self._logging = asyncio.create_task(self._log_errors(errors))

    async def _reader(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=READ_BYTES)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._transports.append(transport)
        return reader

    # --- its end -----------------------------------------------------------------------------

    def _watch(self, pidfd_open: PidfdOpen | None) -> None:
        if pidfd_open is None:
            threading.Thread(target=self._wait_for_end, name="tool-server-end", daemon=True).start()
        else:
            self._pidfd = pidfd_open(self._process.pid)
            self._loop.add_reader(self._pidfd, self._note_end)

    def _wait_for_end(self) -> None:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # other code has reaped it
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
            self._signal_group(signal.SIGKILL)  # at once: it is reaped, and its process id may be reused
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note_end)

    def _exit_code(self) -> int | None:
        """Return the exit code without reaping the process: None while it runs, negative for a signal."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.returncode
        status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def _note_end(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self._ended.set()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or belongs to another user now
            os.killpg(self._process.pid, number)

    async def _abandon(self) -> None:
        """Kill the program before its first use and close its pipes. Cancelling has no effect."""
        self._signal(signal.SIGKILL)
        try:
            await run_to_completion(self._loop.run_in_executor(None, self._process.wait, KILL_SECONDS))
        except (subprocess.TimeoutExpired, RuntimeError):  # stuck in the kernel, or no thread can be started
            self._warn_stuck()
        finally:
            self._release()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()

    def _warn_stuck(self) -> None:
        log.warning("tool server %s: process %d cannot be ended", self._name, self._process.pid)

    def _release(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        for transport in self._transports:
            transport.close()
        if self._process.poll() is None:
            self._process.returncode = -signal.SIGKILL  # stuck in the kernel: so that `Popen` does not warn

    # --- its output ------------------------------------------------------------------------

    async def _discard(self) -> None:
        while await self._output.read(READ_BYTES):
            pass

    async def _log_errors(self, errors: asyncio.StreamReader) -> None:
        line = b""
        while data := await errors.read(READ_BYTES):
            if not log.isEnabledFor(logging.INFO):
                line = b""
                continue
            first, *rest = data.split(b"\n")
            line += first[:LOG_LINE_BYTES]
            for following in rest:
                self._log_line(line)
                line = following[:LOG_LINE_BYTES]
            line = line[:LOG_LINE_BYTES]
        if line:
            self._log_line(line)

    def _log_line(self, line: bytes) -> None:
        shown = one_line(line[:LOG_LINE_BYTES].decode("utf-8", "backslashreplace"), LOG_LINE_BYTES)
        log.info("tool server %s: %s", self._name, shown)
