"""A program whose stdin and stdout carry lines.

Starts it, cuts what it says into lines, and makes sure that it ends. Does not know what the
lines mean. Reading never pauses: a program that talks to us never waits for us.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import IO, Final, cast

from parley.wire.framing import LineFramer

__all__ = ["Child"]

_STDIN: Final = 0
_STDOUT: Final = 1

EXIT_GRACE_SECONDS: Final = 3.0
"""How long a program whose stdin was closed may take to exit: a server promises 2 seconds."""

TERMINATE_GRACE_SECONDS: Final = 2.0
"""How long it may take after SIGTERM, before it is killed."""

END_GRACE_SECONDS: Final = 0.5
"""The end of the output and the exit come together, as a rule. How long one waits for the other: a
child of the program may hold the pipe open for ever, and a program may live on without output."""


class Child(asyncio.SubprocessProtocol):
    """A running program. `on_line` gets each line of its stdout, `on_end` is called once when no more can come."""

    def __init__(self, *, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_line, self._on_end = on_line, on_end
        # What the other side may say is not ours to limit: a snapshot of a long conversation is one line.
        self._framer = LineFramer(limit=sys.maxsize)
        self._stdin_open = True
        self._exited = asyncio.Event()
        self._released = asyncio.Event()
        self._grace: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        on_line: Callable[[bytes], None],
        on_end: Callable[[], None],
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> Child:
        """Start `command`; its stderr goes where ours goes, unless told otherwise.

        Raises:
            OSError: it cannot be started.
        """
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(on_line=on_line, on_end=on_end), *command, env=env, cwd=cwd, stderr=stderr
        )
        return child

    # --- what the user of this does ------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._transport.get_returncode()

    @property
    def ended(self) -> bool:
        """Whether nothing more will be read."""
        return self._ended.is_set()

    def write(self, data: bytes) -> None:
        """Hand over `data`. Never waits: what the program does not read is kept in memory."""
        self._stdin.write(data)

    def close_stdin(self) -> None:
        """What was written still arrives; then the program reads the end."""
        self._stdin.close()

    def send_signal(self, number: int) -> None:
        """Signal the program; nothing happens if it has exited."""
        if not self._exited.is_set():
            try:
                self._transport.send_signal(number)
            except ProcessLookupError:
                pass  # it exited just now, and the notice is on its way

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """The exit code, once there is one."""
        await self._exited.wait()
        exit_code = self.exit_code
        assert exit_code is not None
        return exit_code

    async def close(
        self, *, exit_seconds: float = EXIT_GRACE_SECONDS, terminate_seconds: float = TERMINATE_GRACE_SECONDS
    ) -> int:
        """Let the program end, make it end if it does not, and return its exit code.

        Cancelling kills it at once.
        """
        try:
            self.close_stdin()
            for grace_seconds, insist in (
                (exit_seconds, self.terminate),
                (terminate_seconds, self.kill),
            ):
                try:
                    async with asyncio.timeout(grace_seconds):
                        await self._exited.wait()
                    break
                except TimeoutError:
                    insist()
            await self._exited.wait()
            await self._ended.wait()
        finally:
            self._let_go()
        await self._released.wait()
        return await self.wait()

    def _let_go(self) -> None:
        self._end()
        if self._stdin_open:
            self._stdin.abort()  # a grandchild may hold the other end and never read what is left
        self._transport.close()

    # --- what the event loop calls -------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_STDIN))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDOUT:
            self._hand_out(self._framer.feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDOUT:
            self._hand_out(self._framer.end())
            self._half_ended()
        elif fd == _STDIN:
            self._stdin_open = False

    def process_exited(self) -> None:
        self._exited.set()
        self._half_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._released.set()

    def _hand_out(self, lines: Sequence[object]) -> None:
        on_line = self._on_line
        for line in lines:
            if isinstance(line, bytes):
                on_line(line)

    def _half_ended(self) -> None:
        if self._grace is not None:
            self._end()
        elif not self.ended:
            self._grace = asyncio.get_running_loop().call_later(END_GRACE_SECONDS, self._end)

    def _end(self) -> None:
        if not self.ended:
            self._ended.set()
            if self._grace is not None:
                self._grace.cancel()
            self._on_end()
