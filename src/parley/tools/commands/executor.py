"""Running commands, each under a supervisor of its own.

Knows pipes, deadlines and what to do when a guardian of a command is killed. Does not know what the
output means nor how much of it anybody keeps; it never stops reading. How commands are started and
how nothing of them is left is the business of `forkserver.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Final

from parley.errors import CommandNotStarted
from parley.ports.commands import Command, Ended
from parley.tools.commands import forkserver
from parley.tools.commands.forkserver import ENDED, FAILED, FALLEN, KILL, MESSAGE, READY, START
from parley.tools.commands.sweep import sweep
from parley.wire.events import OutputStream

__all__ = ["Executor"]

READ_BYTES: Final = 64 * 1024
"""All that a pipe holds."""
STARTS_AT_ONCE: Final = 16
"""Requests that no supervisor has answered yet. Few enough for the fork server's socket and for the
limit of descriptors on their way, and more than can be forked at the same time."""
START_SECONDS: Final = 10.0
"""How long a supervisor may take to be ready. The first one includes the start of the fork server,
on a computer with other work to do."""
KILL_SECONDS: Final = 2.0
"""How long a guardian may take to kill all of a command. It needs milliseconds, and less than a second
for a thousand processes; one that needs longer was stopped by the command."""
DRAIN_SECONDS: Final = 0.5
"""How long the pipes of a command that is dead are read on, when somebody else holds them."""


class Executor:
    """Runs commands, by one fork server that the first of them starts."""

    def __init__(self) -> None:
        self._server: _ForkServer | None = None
        self._running: set[_Running] = set()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._closed = False

    async def run(self, command: Command, *, output: Callable[[OutputStream, bytes], None]) -> Ended:
        request = _request(command)
        loop = asyncio.get_running_loop()
        running = _Running(output)
        self._running.add(running)
        try:
            async with self._starts:
                started_at = loop.time()  # not when we hear of it: a short command is over by then
                await self._start(running, request)
            await asyncio.wait([running.ended], timeout=command.timeout_seconds)
            ended_at = loop.time()
        finally:
            timed_out = not running.ended.done()
            try:
                if not running.all_over:
                    await _whatever_happens(running.end())
            finally:
                self._running.discard(running)
                running.close()
        if running.failed is not None:
            raise CommandNotStarted(_os_error(running.failed))
        if running.output_failed is not None:
            raise running.output_failed
        return _ended(running.status, timed_out=timed_out, seconds=ended_at - started_at)

    async def close(self) -> None:
        """Kill all that runs, and run nothing more."""
        self._closed = True
        for running in self._running:
            running.stop()
        if self._server is not None:
            await _whatever_happens(self._server.close())

    async def _start(self, running: _Running, request: bytes) -> None:
        """Have it started; everything else is up to the supervisor."""
        try:
            async with asyncio.timeout(START_SECONDS):
                running.open()
                # A fork server may have been killed without our having noticed: then a new one is asked.
                if running.ask(self._live_server()) or running.ask(self._live_server()):
                    await running.send(request)
                    await asyncio.wait([running.ready, running.ended], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise CommandNotStarted("the process that starts commands does not answer") from None
        except OSError as error:
            raise CommandNotStarted(_os_error(error.errno or 0)) from error
        if not running.ready.done() and running.failed is None:
            raise CommandNotStarted("the process that starts commands has ended")

    def _live_server(self) -> _ForkServer:
        if self._closed:
            raise CommandNotStarted("Server is shutting down")
        if self._server is None or self._server.lost.done():
            try:
                self._server = _ForkServer()
            except OSError as error:
                why = _os_error(error.errno or 0)
                raise CommandNotStarted(f"the process that starts commands cannot be started: {why}") from error
        return self._server


def _request(command: Command) -> bytes:
    if not command.argv:
        raise CommandNotStarted("command args are empty")
    for name in command.env:
        if not name or "=" in name:
            raise CommandNotStarted(f"{name!r} cannot be the name of a variable")
    argv = [_as_bytes(word, "a word of the command") for word in command.argv]
    cwd = _as_bytes(command.cwd, "the working directory")
    env = [_as_bytes(f"{name}={value}", f"the variable {name!r}") for name, value in command.env.items()]
    return forkserver.pack_request(argv, cwd, env)


def _as_bytes(text: str, what: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise CommandNotStarted(f"{what} holds a character that cannot be encoded") from None
    if b"\0" in data:
        raise CommandNotStarted(f"{what} holds a NUL character")
    return data


def _os_error(number: int) -> str:
    return f"{os.strerror(number)} (os error {number})"


def _ended(status: int | None, *, timed_out: bool, seconds: float) -> Ended:
    """What became of a command; without a status its supervisor was killed, and it with it."""
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Ended(exit_code=code, seconds=seconds)
    if timed_out:
        return Ended(timed_out=True, seconds=seconds)
    return Ended(signal=-code, seconds=seconds)


def _shut(connection: socket.socket) -> None:
    """Let the other side know that there is no more to come, and go on listening to it."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it is gone already


async def _whatever_happens(work: Coroutine[None, None, None]) -> None:
    """Do it to its end, also when we are cancelled meanwhile; it must be bounded by itself."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


# --- one command -------------------------------------------------------------------------


class _Running:
    """One command: its pipes, and the control socket on which its supervisor reports."""

    def __init__(self, output: Callable[[OutputStream, bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._control: socket.socket | None = None
        self._given_away = ExitStack()
        self._to_pass: list[int] = []
        self._streams: dict[int, OutputStream] = {}
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._server: _ForkServer | None = None
        self._number = 0
        self._session: int | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done when the command is about to run."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when there will be no more reports."""
        self.status: int | None = None
        """The wait status of the command, if its supervisor lived to report it."""
        self.failed: int | None = None
        """The number of the error for which it could not be started."""
        self.output_failed: Exception | None = None
        self._confirmed = False

    @property
    def all_over(self) -> bool:
        """Whether there is nothing left to kill, to read or to wait for."""
        return self._server is None or (self._confirmed and self._silent.done())

    def open(self) -> None:
        """Make the pipes and the control socket."""
        self._control, theirs = socket.socketpair()
        self._given_away.callback(theirs.close)
        self._control.setblocking(False)
        self._to_pass.append(theirs.fileno())
        self._loop.add_reader(self._control.fileno(), self._report)
        for stream in ("stdout", "stderr"):
            self._open_pipe(stream)

    def _open_pipe(self, stream: OutputStream) -> None:
        ours, theirs = os.pipe()
        self._given_away.callback(os.close, theirs)
        self._to_pass.append(theirs)
        self._streams[ours] = stream
        os.set_blocking(ours, False)
        self._loop.add_reader(ours, self._read, ours)

    def ask(self, server: _ForkServer) -> bool:
        """Give the other ends to the fork server; False if it is gone."""
        number = server.start(self._to_pass)
        if number is None:
            return False
        self._server, self._number = server, number
        self._given_away.close()
        return True

    async def send(self, request: bytes) -> None:
        assert self._control is not None
        try:
            await self._loop.sock_sendall(self._control, request)
        except ConnectionError:
            pass  # the supervisor is gone, or said already why it will not do: that is read

    async def end(self) -> None:
        """Kill what is left of it, and read what is left in the pipes. Bounded, whatever it does."""
        assert self._control is not None
        assert self._server is not None
        if not self.ended.done():
            self.stop()
            await asyncio.wait([self.ended], timeout=KILL_SECONDS)
        if not self.ended.done():
            self._server.kill(self._number)
            await asyncio.wait([self.ended], timeout=KILL_SECONDS)
        if not self._confirmed:
            await self._server.bury(self._number, self._session)
        await asyncio.wait([self._silent], timeout=DRAIN_SECONDS)
        for descriptor in list(self._streams):
            self._read(descriptor)  # the loop may have been too busy to come to it

    def close(self) -> None:
        """Let go of every descriptor; nothing is read any more."""
        self._given_away.close()
        if self._server is not None:
            self._server.forget(self._number)
        for descriptor in list(self._streams):
            self._close_pipe(descriptor)
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    def stop(self) -> None:
        """Tell the supervisor to kill everything, and to report when that is done."""
        if self._control is not None:
            _shut(self._control)

    def _report(self) -> None:
        """Take what the supervisor says; called when there is something."""
        assert self._control is not None
        try:
            data = self._control.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind, number = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (b"", 0)
        if kind == READY:
            self._session = number
            self.ready.set_result(None)
            return
        if kind == FAILED:
            self.failed = number
        elif kind == ENDED:
            self.status = number
        self._confirmed = bool(kind)
        self._loop.remove_reader(self._control.fileno())
        self.ended.set_result(None)

    def _read(self, descriptor: int) -> None:
        """Take what the command said; called when there is something."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(descriptor)
        elif self.output_failed is None:
            try:
                self._output(self._streams[descriptor], data)
            except Exception as error:
                self.output_failed = error
                self.stop()

    def _close_pipe(self, descriptor: int) -> None:
        del self._streams[descriptor]
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        if not self._streams and not self._silent.done():
            self._silent.set_result(None)


# --- the fork server, seen from here -------------------------------------------------------


class _ForkServer:
    """The process that forks supervisors; gone when `lost` is done."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._fallen: dict[int, asyncio.Future[None]] = {}
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._socket.setblocking(False)
                self._loop.add_reader(self._socket, self._read)
                self._process = subprocess.Popen(
                    (sys.executable, "-I", "-S", forkserver.__file__, str(theirs.fileno())),
                    cwd="/",
                    env={},
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            raise

    def start(self, descriptors: list[int]) -> int | None:
        """Have a supervisor forked that is given these; its number, or None if the fork server is gone."""
        self._requests += 1
        try:
            socket.send_fds(self._socket, [MESSAGE.pack(START, self._requests)], descriptors)
        except ConnectionError:
            self._lose()
            return None
        self._fallen[self._requests] = self._loop.create_future()
        return self._requests

    def forget(self, number: int) -> None:
        """A command is over, and so is its supervisor."""
        self._fallen.pop(number, None)

    def kill(self, number: int) -> None:
        """Have a supervisor killed that does not answer, and all that it leaves."""
        if not self.lost.done():
            try:
                self._socket.send(MESSAGE.pack(KILL, number))
            except OSError:
                pass  # it is gone or does not read: that is found out by waiting for its answer

    async def bury(self, number: int, session: int | None) -> None:
        """Return when all is dead that a killed supervisor left."""
        if not self.lost.done():
            fallen = self._fallen[number]
            await asyncio.wait([fallen, self.lost], timeout=KILL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not fallen.done() and not self.lost.done():
                await self._abandon()
        if self.lost.done() and session is not None:
            await self._loop.run_in_executor(None, lambda: sweep(sessions=(session,)))

    async def close(self) -> None:
        """End it, and with it everything that it started."""
        if not self.lost.done():
            _shut(self._socket)
            await asyncio.wait([self.lost], timeout=KILL_SECONDS)
        if not self.lost.done():
            await self._abandon()

    async def _abandon(self) -> None:
        """Kill one that does not answer, after all that is below it."""
        await self._loop.run_in_executor(None, lambda: sweep(below=self._process.pid))
        self._lose()

    def _read(self) -> None:
        try:
            data = self._socket.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind, number = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (b"", 0)
        if kind != FALLEN:
            self._lose()
        elif number in self._fallen:
            self._fallen[number].set_result(None)

    def _lose(self) -> None:
        """See that it is dead, and tell everybody."""
        if not self.lost.done():
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._process.kill()
            self._process.wait()
            self.lost.set_result(None)
