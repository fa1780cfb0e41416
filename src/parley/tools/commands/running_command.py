"""A running command: its output pipes, and the socket that connects the executor with its supervisor.

The output is read continuously and passed to a callback. This module does not store the output. `executor.py`
enforces the timeout of the command.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import ExitStack, suppress
from typing import Final

from parley.errors import CommandNotStarted
from parley.ports.commands import Mount, Output
from parley.tools.commands.fork_server_link import ForkServerLink
from parley.tools.commands.messages import ENDED, MESSAGE, READY
from parley.tools.commands.outcome import start_error
from parley.wire.events import OutputStream

__all__ = ["RunningCommand"]

READ_BYTES: Final = 64 * 1024
"""The maximum number of bytes in one read of a command's output. The number equals the capacity of a pipe."""
KILL_SECONDS: Final = 2.0
"""The maximum time, in seconds, that a supervisor may take to kill all processes of its command. A supervisor
usually needs milliseconds, and less than a second for a thousand processes.
"""
DRAIN_SECONDS: Final = 0.5
"""The maximum time, in seconds, for which output is read after all processes of the command are dead. The time is
limited because another process may keep the pipes open.
"""


class RunningCommand:
    """The pipes and the control socket of one command."""

    def __init__(self, output: Output, mounts: tuple[Mount, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._mounts = mounts
        self._control: socket.socket | None = None
        self._requested = False
        self._supervisor: int | None = None
        self._streams: dict[int, OutputStream] = {}
        self._drained: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.started_at = 0.0
        """The time at which the supervisor was about to run the command, in seconds of the event loop's clock; 0
        before that time.
        """
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """A future that is done when the supervisor has sent its last report, or when the control socket is closed.
        All processes of the command are then dead.
        """
        self.status: int | None = None
        """The wait status of the command; None if its supervisor did not report it."""
        self.start_error: CommandNotStarted | None = None
        self.output_error: Exception | None = None
        """The exception that the callback `output` raised; None if the callback raised no exception."""

    @property
    def was_ready(self) -> bool:
        """True if the supervisor has reported that it was about to run the command."""
        return self._ready.done()

    @property
    def finished(self) -> bool:
        """True if all processes of the command are dead and all of its output has been read."""
        return not self._requested or (self.ended.done() and self._drained.done())

    async def begin(self, fork_server: ForkServerLink, request: bytes) -> None:
        """Send the encoded command `request` to a supervisor. Return when the command is about to run, or when it
        is certain that the command will not run.
        """
        with ExitStack() as passed:
            descriptors = self._open(passed)
            assert self._control is not None
            # The request is sent before the supervisor reads, so that the supervisor does not wait for the first
            # bytes.
            sent = self._control.send(request)
            if not fork_server.start(descriptors):
                self._end()
                return
            self._requested = True
        try:
            await self._loop.sock_sendall(self._control, request[sent:])
        except ConnectionError:
            pass  # the supervisor has ended or has rejected the command; its report is read below
        await asyncio.wait([self._ready, self.ended], return_when=asyncio.FIRST_COMPLETED)

    def _open(self, passed: ExitStack) -> list[int]:
        """Create the control socket and the pipes. Return the descriptors for the supervisor: its end of the
        socket, and the write ends of the pipes. The exit stack `passed` closes these descriptors.
        """
        self._control, theirs = socket.socketpair()
        passed.enter_context(theirs)
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read_report)
        descriptors = [theirs.fileno()]
        streams: tuple[OutputStream, ...] = ("stdout", "stderr")
        for stream in streams:
            ours, pipe = os.pipe()
            passed.callback(os.close, pipe)
            descriptors.append(pipe)
            self._streams[ours] = stream
            os.set_blocking(ours, False)
            self._loop.add_reader(ours, self._read, ours)
        return descriptors

    async def end(self) -> None:
        """Kill all processes of the command, and read the output that is still in its pipes. This takes a few
        seconds at most.
        """
        if not self.ended.done():
            self.stop()
            await asyncio.wait([self.ended], timeout=KILL_SECONDS)
        if not self.ended.done() and self._supervisor is not None:
            # The supervisor is stopped or stuck. The fork server inherits its processes and kills them.
            with suppress(OSError):
                os.kill(self._supervisor, signal.SIGKILL)
            await asyncio.wait([self.ended], timeout=KILL_SECONDS)
        await asyncio.wait([self._drained], timeout=DRAIN_SECONDS)
        for descriptor in list(self._streams):
            self._read(descriptor)  # the event loop may have been too busy to read the pipe earlier

    def stop(self) -> None:
        """Ask the supervisor to kill all processes of the command, and to report when they are dead."""
        if self._control is not None:
            with suppress(OSError):  # the supervisor has ended
                self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close all descriptors. No more output and no more reports are read."""
        for descriptor in list(self._streams):
            self._close_pipe(descriptor)
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    def _read_report(self) -> None:
        """Read the next report from the supervisor and store its content. After a final report, or at the end of
        the control socket, read no more reports.
        """
        assert self._control is not None
        try:
            data = self._control.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind, number, sent_at = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (b"", 0, 0)
        if kind == READY:
            self._supervisor, self.started_at = number, sent_at / 1e9
            self._ready.set_result(None)
            return
        if kind == ENDED:
            self.status = number
        else:
            self.start_error = start_error(kind, number, self._mounts)
        self._end()

    def _end(self) -> None:
        assert self._control is not None
        self._loop.remove_reader(self._control.fileno())
        self.ended.set_result(None)

    def _read(self, descriptor: int) -> None:
        """Read the output that the command has written to a pipe, and pass it to the callback `output`. If the
        callback raises an exception, stop the command.
        """
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(descriptor)
        elif self.output_error is None:
            try:
                self._output(self._streams[descriptor], data)
            except Exception as error:
                self.output_error = error
                self.stop()

    def _close_pipe(self, descriptor: int) -> None:
        del self._streams[descriptor]
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        if not self._streams and not self._drained.done():
            self._drained.set_result(None)
