"""Runs the program of a tool server as a child process with pipes, and ends it together with its process group.

This module transfers bytes; `program_carrier.py` splits them into messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from parley.common.os_errors import os_detail
from parley.common.secret_values import SecretValues
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
"""The names of the environment variables that a program inherits from Parley."""

LEAVE_SECONDS: Final = 0.5
"""The maximum time, in seconds, that a program may take to exit after its input was closed. In MCP, a client ends a
server by closing the server's input.
"""

TERM_SECONDS: Final = 0.5
"""The maximum time, in seconds, that a program may take to exit after SIGTERM. Together with `LEAVE_SECONDS`, this
is less than the two seconds that Parley has to stop (docs/protocol.md#lifecycle).
"""

KILL_SECONDS: Final = 2.0
"""The maximum time, in seconds, that a killed process may take to end. Only a process that is stuck in the kernel
takes longer.
"""

READ_BYTES: Final = 256 * 1024

LOG_LINE_BYTES: Final = 1000
"""The maximum number of bytes of a line on stderr that are logged."""

KEPT_LINE_BYTES: Final = 4 * LOG_LINE_BYTES
"""The maximum number of bytes of a line in which secrets are redacted. This is more than `LOG_LINE_BYTES`, so that
a secret at the end of the logged part is complete.
"""

PidfdOpen = Callable[[int], int]

_PIDFD_OPEN: Final[PidfdOpen | None] = getattr(os, "pidfd_open", None)
"""The function `os.pidfd_open`; None if the system lacks it. If it is None, a thread waits for the end of a program
instead.
"""


def environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in INHERITED if name in environ} | dict(extra)


class Program:
    """The program of a tool server: a child process in its own process group. The caller of `start` must call
    `stop`.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, secrets: SecretValues) -> None:
        self._process, self._name, self._secrets = process, name, secrets
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
        secrets: Iterable[str] = (),
        pidfd_open: PidfdOpen | None = _PIDFD_OPEN,
    ) -> Program:
        """Run `argv` in the directory `cwd`, and return the running program. The program is looked up in the PATH
        of `env`. `name` is the program's name in the log. `secrets` are the values that are redacted in the
        lines of the log. `pidfd_open` is None if the system does not have this
        function.

        Raises:
            NotStarted: the program was not found, or the operating system could not start it. Nothing is left
                running.
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
            of_directory = error.filename == cwd and error.filename != argv[0]
            what = f"cannot start in {cwd}" if of_directory else f"cannot run {argv[0]}"
            raise NotStarted(f"{what}: {os_detail(error)}") from None
        except ValueError as error:
            raise NotStarted(str(error)) from None
        limit_program(process.pid)
        program = cls(process, name, SecretValues({}, secrets))
        try:
            program._watch(pidfd_open)
            await program._open_pipes()
        except BaseException as error:
            await program._abandon()
            if isinstance(error, OSError):
                raise NotStarted(os_detail(error)) from error
            if isinstance(error, RuntimeError):  # this means that no thread can be started
                raise NotStarted(str(error)) from error
            raise
        return program

    async def read(self) -> bytes:
        """Return the next part of the program's output; empty at the end."""
        return await self._output.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        """Write to the program's input. Return when the pipe can take more data.

        Raises:
            ConnectionError: the program has closed its input.
        """
        self._input.write(data)
        await self._input.drain()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the program has ended. Return False if it has not ended after `seconds`. If `seconds` is None,
        there is no time limit.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def how_it_ended(self) -> str:
        """Return how the program ended, as text for people that explains why the program sent no response: it
        closed its output, or ended with an exit code or a signal.
        """
        try:
            code = self._exit_code()
        except ChildProcessError:  # other code has already reaped the process
            return "the program ended before it answered"
        if code is None:
            return "the program closed its output before it answered"
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"the program ended before it answered ({how})"

    async def stop(self) -> None:
        """End the program. Close its input; if it does not exit within `LEAVE_SECONDS`, send SIGTERM to its process
        group. Finally, send SIGKILL, so that no process of the group remains.

        If this method is cancelled, SIGKILL is sent immediately.
        """
        discard = asyncio.create_task(self._discard())  # a full pipe would prevent the program from exiting
        try:
            if not self._input.transport.is_closing():
                self._input.transport.abort()
            if not await self.wait(LEAVE_SECONDS):
                self._signal(signal.SIGTERM)
                await self.wait(TERM_SECONDS)
        finally:
            # The signal is sent before the program is reaped, because no other process can have its id until then.
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
            with suppress(ChildProcessError):  # other code has already reaped the process
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
            # kill the process group at once, because the process was reaped and its id may be reused
            self._signal_group(signal.SIGKILL)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note_end)

    def _exit_code(self) -> int | None:
        """Return the exit code without reaping the process.

        The exit code is None while the process is running. If a signal ended the process, the exit code is the
        negative number of the signal.
        """
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
        with suppress(ProcessLookupError, PermissionError):  # the program has ended, or runs as another user
            os.killpg(self._process.pid, number)

    async def _abandon(self) -> None:
        """Kill a program that has not been used yet, and close its pipes. A cancellation of the task does not
        interrupt this cleanup.
        """
        self._signal(signal.SIGKILL)
        try:
            await run_to_completion(self._loop.run_in_executor(None, self._process.wait, KILL_SECONDS))
        # the process is stuck in the kernel, or no thread can be started
        except (subprocess.TimeoutExpired, RuntimeError):
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
            # the process is stuck in the kernel; `Popen` must not warn about this
            self._process.returncode = -signal.SIGKILL

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
            line += first[:KEPT_LINE_BYTES]
            for following in rest:
                self._log_line(line)
                line = following[:KEPT_LINE_BYTES]
            line = line[:KEPT_LINE_BYTES]
        if line:
            self._log_line(line)

    def _log_line(self, line: bytes) -> None:
        text = self._secrets.redact(line[:KEPT_LINE_BYTES].decode("utf-8", "backslashreplace"))
        shown = one_line(text, LOG_LINE_BYTES)
        log.info("tool server %s: %s", self._name, shown)
