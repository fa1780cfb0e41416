"""The transport to a server that is a child process.

The transport starts the program, splits its stdout into lines, and stops the program. Reading never pauses, so the
program never waits for the client.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import IO, Final, cast

from parley.wire.framing import LineFramer

__all__ = ["ServerProcess"]

_STDIN: Final = 0
_STDOUT: Final = 1

END_GRACE_SECONDS: Final = 0.5
"""The maximum number of seconds between the exit of the process and the end of its output, in either order. After
this time, the transport reports the end of the server to the client, even if one of the two events has not
happened. A child of the program can hold the pipe open, and a program can continue to run after it has closed its
output.
"""


class ServerProcess(asyncio.SubprocessProtocol):
    """A transport that runs the server as a child process. `connect` uses this transport by default."""

    exit_grace_seconds: float = 3.0
    """The maximum time in seconds that the program may take to exit after its stdin was closed. A Parley server
    exits within 2 seconds.
    """
    terminate_grace_seconds: float = 2.0
    """The maximum time in seconds that the program may take to exit after SIGTERM. After this time, the program is
    killed.
    """

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-P", "-m", "parley", "mcp"),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        stderr: int | IO[bytes] | None = None,
        new_session: bool = False,
    ) -> None:
        """Create a transport. `command` is the program with its arguments. `env` is its complete environment, and
        `cwd` is its working directory; None means the environment or the directory of this process. `stderr` has
        the same meaning as in `subprocess.Popen`; the program writes its log to stderr.

        If `new_session` is True, the program does not get signals from the terminal, such as the SIGINT that Ctrl-C
        sends.
        """
        self.command, self.env, self.cwd, self.stderr = command, env, cwd, stderr
        self.new_session = new_session
        # The size of a server's messages is not limited, because the snapshot of a long conversation is one line.
        self._framer = LineFramer(limit=sys.maxsize)
        self._stdin_open = True
        self._exited = asyncio.Event()
        self._released = asyncio.Event()
        self._grace: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()

    # --- the transport -------------------------------------------------------------------

    async def start(self, *, on_message: Callable[[bytes], None], on_end: Callable[[int | None], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *self.command,
            env=self.env,
            cwd=self.cwd,
            stderr=self.stderr,
            start_new_session=self.new_session,
        )

    def send(self, data: bytes) -> None:
        self._stdin.write(data)

    async def close(self) -> None:
        """Close the program's stdin and wait until the program exits. Send SIGTERM and then SIGKILL if the program
        does not exit in time.

        If the call is cancelled, the program is killed immediately.
        """
        try:
            self.close_stdin()
            for grace_seconds, enforce in (
                (self.exit_grace_seconds, self.terminate),
                (self.terminate_grace_seconds, self.kill),
            ):
                try:
                    async with asyncio.timeout(grace_seconds):
                        await self._exited.wait()
                    break
                except TimeoutError:
                    enforce()
            await self._exited.wait()
            await self._ended.wait()
        finally:
            self._release()
        await self._released.wait()

    # --- the process ---------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process: None while it is running, negative if a signal ended it."""
        return self._transport.get_returncode()

    def close_stdin(self) -> None:
        """Close the program's stdin. The program can still read all data that was sent before."""
        self._stdin.close()

    def send_signal(self, number: int) -> None:
        """Send a signal. Do nothing if the process has exited."""
        if not self._exited.is_set():
            try:
                self._transport.send_signal(number)
            except ProcessLookupError:
                pass  # the process has exited, but the event loop has not been notified yet

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until the process has exited, and return its exit code."""
        await self._exited.wait()
        exit_code = self.exit_code
        assert exit_code is not None
        return exit_code

    def _release(self) -> None:
        self._end()
        if self._stdin_open:
            self._stdin.abort()  # a grandchild may hold the pipe open and never read the remaining bytes
        self._transport.close()

    # --- callbacks of the event loop -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_STDIN))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDOUT:
            self._deliver(self._framer.feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDOUT:
            self._deliver(self._framer.end())
            self._end_soon()
        elif fd == _STDIN:
            self._stdin_open = False

    def process_exited(self) -> None:
        self._exited.set()
        self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._released.set()

    def _deliver(self, lines: Sequence[object]) -> None:
        on_message = self._on_message
        for line in lines:
            if isinstance(line, bytes):
                on_message(line)

    def _end_soon(self) -> None:
        """Report the end of the server to the client when the server's process has exited and its output has ended.
        If only one of these events has happened, report the end after `END_GRACE_SECONDS` at the latest.
        """
        if self._grace is not None:
            self._end()
        elif not self._ended.is_set():
            self._grace = asyncio.get_running_loop().call_later(END_GRACE_SECONDS, self._end)

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            if self._grace is not None:
                self._grace.cancel()
            self._on_end(self.exit_code)
