"""A tool server's program: started, spoken to over pipes, and ended with all that it started.

Knows processes and bytes. What the bytes mean is none of its business.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from parley.tools.servers.failures import NotStarted, one_line, system_error

__all__ = ["Program", "environment"]

logger: Final = logging.getLogger(__name__)

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
"""All that a program is given of our environment."""

LEAVE_SECONDS: Final = 0.7
"""How long a program may take to end by itself once its input is closed, as the protocol asks."""

TERM_SECONDS: Final = 0.7
"""How long it may go on after SIGTERM: time to save something, not to argue. Both together leave room in
the two seconds in which Parley itself has to end (docs/protocol.md#life-cycle)."""

KILL_SECONDS: Final = 2.0
"""How long the system may take to end what was killed; only a process stuck in the kernel needs longer."""

PIPE_SECONDS: Final = 0.5
"""How long output that a program left behind is read after its end. Whatever else holds the pipe
open will never answer."""

READ_BYTES: Final = 256 * 1024

LOG_LINE_BYTES: Final = 1000
"""How much of one line on stderr is logged."""


def environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in INHERITED if name in environ} | dict(extra)


class Program:
    """A child in a process group of its own. `stop` must be called."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process, self._name = process, name
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._note_end)

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str], *, name: str) -> Program:
        """Run `argv`, found by the PATH of its own environment; `name` is who it is in the log.

        Raises:
            NotStarted: there is nothing to run, or the system refused.
        """
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as the program was found
                list(argv),
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise NotStarted(system_error(error)) from None
        except ValueError as error:
            raise NotStarted(str(error)) from None
        program = cls(process, name)
        await program._open_pipes()
        return program

    async def read(self) -> bytes:
        """What it said since the last call, or says next; nothing once it will say no more."""
        return await self._output.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        """Say `data`; return once the pipe has room again.

        Raises:
            ConnectionError: nobody reads any more.
        """
        self._input.write(data)
        await self._input.drain()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; whether that came in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def how_it_ended(self) -> str:
        """In words; it stays to be collected."""
        try:
            status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # somebody else has collected it
            return "the program ended before it answered"
        if status is None:
            return "the program closed its output before it answered"
        how = "exit code" if status.si_code == os.CLD_EXITED else "signal"
        return f"the program ended before it answered ({how} {status.si_status})"

    async def stop(self) -> None:
        """Close its input, then ask it to end, then end it and everything in its group.

        Cancelling ends them at once.
        """
        discard = asyncio.create_task(self._discard())  # a full pipe must not keep it from ending
        try:
            if not self._input.transport.is_closing():
                self._input.transport.abort()
            if not await self.wait(LEAVE_SECONDS):
                self._signal(signal.SIGTERM)
                await self.wait(TERM_SECONDS)
        finally:
            # Before it is collected: until then nobody else can have its number.
            self._signal(signal.SIGKILL)
            try:
                if not await self.wait(KILL_SECONDS):
                    logger.warning("tool server %s: process %d cannot be ended", self._name, self._process.pid)
            finally:
                discard.cancel()
                self._log.cancel()
                self._release()
        await asyncio.gather(discard, self._log, return_exceptions=True)

    async def _open_pipes(self) -> None:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: protocol, stdin)
        self._input = asyncio.StreamWriter(transport, protocol, None, loop)
        self._output, self._output_pipe = await _reader(stdout)
        errors, self._error_pipe = await _reader(stderr)
        self._log = asyncio.create_task(self._log_errors(errors))

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._ended.set()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # gone, or no longer ours to end
                os.killpg(self._process.pid, number)

    def _release(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        for pipe in (self._input.transport, self._output_pipe, self._error_pipe):
            pipe.close()
        if self._process.poll() is None:
            self._process.returncode = -signal.SIGKILL  # stuck in the kernel: nobody will wait for it

    async def _discard(self) -> None:
        while await self._output.read(READ_BYTES):
            pass

    async def _log_errors(self, errors: asyncio.StreamReader) -> None:
        line = b""
        while data := await errors.read(READ_BYTES):
            if not logger.isEnabledFor(logging.INFO):
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
        logger.info("tool server %s: %s", self._name, shown)


async def _reader(pipe: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=READ_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport
