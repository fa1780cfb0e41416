"""One command as the server sees it: its output pipes and the control socket of its supervisor.

Reads output without pause and passes it on without keeping it. `executor.py` enforces deadlines.
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
"""The capacity of a pipe."""
KILL_SECONDS: Final = 2.0
"""How long a supervisor may take to kill all processes of its command. It needs milliseconds, and less than a
second for a thousand processes."""
DRAIN_SECONDS: Final = 0.5
"""How long the output of a dead command is read if another process holds its pipes open."""


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
        """When the command was about to run, by the clock of the event loop."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the supervisor has sent its last report, or the control socket is closed: all processes of
        the command are dead then."""
        self.status: int | None = None
        """The wait status of the command, if its supervisor reported one."""
        self.start_error: CommandNotStarted | None = None
        self.output_error: Exception | None = None
        """What `output` raised."""

    @property
    def was_ready(self) -> bool:
        """True if the supervisor has received the whole command."""
        return self._ready.done()

    @property
    def finished(self) -> bool:
        """True if there is nothing left to kill or to read."""
        return not self._requested or (self.ended.done() and self._drained.done())

    async def begin(self, fork_server: ForkServerLink, request: bytes) -> None:
        """Send the command to a supervisor; return when it is about to run, or when it is known that it will not
        run.
        """
        with ExitStack() as passed:
            descriptors = self._open(passed)
            assert self._control is not None
            # As much as the socket holds is in it before the supervisor looks, so that it need not wait for us.
            sent = self._control.send(request)
            if not fork_server.start(descriptors):
                self._end()
                return
            self._requested = True
        try:
            await self._loop.sock_sendall(self._control, request[sent:])
        except ConnectionError:
            pass  # the supervisor is gone or has refused already; its report is read below
        await asyncio.wait([self._ready, self.ended], return_when=asyncio.FIRST_COMPLETED)

    def _open(self, passed: ExitStack) -> list[int]:
        """Create the control socket and the pipes; return the supervisor's ends, which the stack `passed`
        closes.
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
        """Kill the command and read the rest of its output. Takes a few seconds at most."""
        if not self.ended.done():
            self.stop()
            await asyncio.wait([self.ended], timeout=KILL_SECONDS)
        if not self.ended.done() and self._supervisor is not None:
            # It is stopped or stuck. Its processes become children of the fork server, which kills them.
            with suppress(OSError):
                os.kill(self._supervisor, signal.SIGKILL)
            await asyncio.wait([self.ended], timeout=KILL_SECONDS)
        await asyncio.wait([self._drained], timeout=DRAIN_SECONDS)
        for descriptor in list(self._streams):
            self._read(descriptor)  # the event loop may have been too busy to call it

    def stop(self) -> None:
        """Tell the supervisor to kill all processes of the command and to report when that is done."""
        if self._control is not None:
            with suppress(OSError):  # the supervisor is gone
                self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close all descriptors; nothing more is read."""
        for descriptor in list(self._streams):
            self._close_pipe(descriptor)
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    def _read_report(self) -> None:
        """Handle the next report of the supervisor."""
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
        """Pass on the output that the command has written to a pipe."""
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
