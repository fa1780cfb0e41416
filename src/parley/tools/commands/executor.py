"""Starting commands, each under a supervisor of its own.

Knows pipes, deadlines and what to do when a guardian of a command is killed. Does not know what the
output means nor how much of it anybody keeps; it never stops reading. What a command may do is decided
elsewhere, and passed on. How commands are started and how nothing of them is left is the business of
`forkserver.py` and `supervisor.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.os_errors import os_detail
from parley.ports.commands import MARK, Ended, Mount, Output, Restriction, Start
from parley.tools.commands import messages
from parley.tools.commands.messages import (
    ENDED,
    ERROR_NUMBERS,
    FAILED,
    FALLEN,
    GIVES_WAY,
    KILL,
    MESSAGE,
    MOVED,
    READY,
    REPLACEABLE,
    REPLACED,
    START,
    STEPS,
    UNCONFINED,
    UNSEEN,
    UNSTARTED,
)
from parley.tools.commands.sweep import is_stopped, sweep
from parley.tools.errors import CommandReplaced
from parley.tools.open_files import for_programs
from parley.tools.to_the_end import to_the_end
from parley.wire.events import OutputStream
from parley.wire.text import replace_surrogates

__all__ = ["Executor"]

FORK_SERVER: Final = "import sys; sys.path.append(sys.argv[1]); from commands.forkserver import main; main()"
"""A program, which is told where this folder is. What it imports is compiled only once."""
FILES_BYTES: Final = 4 * 1024 * 1024
"""All files of one command: more than the longest command that the system takes."""
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
for a thousand processes; one that needs longer is kept from it by the command."""
LOOK_SECONDS: Final = 0.1
"""How long a guardian may be silent before we look whether somebody has stopped it."""
CLOSE_SECONDS: Final = 0.3
"""How long the fork server may take to end with everything, before it is done without its help: the
server has two seconds for all of its end (docs/protocol.md#life-cycle)."""
DRAIN_SECONDS: Final = 0.5
"""How long the pipes of a command that is dead are read on, when somebody else holds them."""


class Executor:
    """Starts commands, by one fork server that the first of them starts."""

    def __init__(self, *, root: str = "/") -> None:
        """`root` is where it is found out whether systemd can limit what commands use, and where that is asked."""
        self._root = root
        self._servers: list[_ForkServerLink] = []
        """The last one starts commands. Those before it gave way, and look after what they have started."""
        self._running: set[_Running] = set()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._closed = False

    async def start(self, start: Start, *, output: Output) -> Ended:
        mark = _mark(start)
        request = _request(start, mark).packed()
        entry = f"{MARK}={mark}".encode()
        # Where a fork server was lost or gave way before the command was started, another one is asked.
        ended = await self._run(start, request, _Running(output, entry, start.mounts))
        if ended is None:
            ended = await self._run(start, request, running := _Running(output, entry, start.mounts))
            if ended is None:
                raise running.why_not or CommandNotStarted("the process that starts commands has ended")
        return ended

    async def _run(self, start: Start, request: bytes, running: _Running) -> Ended | None:
        """Run it to its end; None if nothing of it has run, through no fault of its own."""
        self._running.add(running)
        try:
            async with self._starts:
                await self._start(running, request)
            await asyncio.wait([running.ended], timeout=start.timeout_seconds)
            ended_at = asyncio.get_running_loop().time()
        finally:
            timed_out = not running.ended.done()
            try:
                if not running.all_over:
                    await to_the_end(asyncio.create_task(running.end()))
            finally:
                self._running.discard(running)
                running.close()
        if running.refused:
            return None
        if running.why_not is not None:
            raise running.why_not
        if running.output_failed is not None:
            raise running.output_failed
        return _ended(running.status, timed_out=timed_out, seconds=ended_at - running.started_at)

    async def close(self) -> None:
        """Kill all that runs, and run nothing more."""
        self._closed = True
        for running in self._running:
            running.stop()
        await to_the_end(asyncio.gather(*(server.close() for server in self._servers)))

    async def _start(self, running: _Running, request: bytes) -> None:
        """Have it started; everything else is up to the supervisor."""
        try:
            async with asyncio.timeout(START_SECONDS):
                running.open(request)
                # A fork server may have been killed without our having noticed: then a new one is asked.
                if not (running.ask(self._live_server()) or running.ask(self._live_server())):
                    raise CommandNotStarted("the process that starts commands has ended")
                await running.begin()
        except TimeoutError:
            raise CommandNotStarted("the process that starts commands does not answer") from None
        except OSError as error:
            raise CommandNotStarted(os_detail(error)) from error

    def _live_server(self) -> _ForkServerLink:
        if self._closed:
            raise CommandNotStarted("Server is shutting down")
        self._servers = [server for server in self._servers if not server.lost.done()]
        if not self._servers or self._servers[-1].gives_way:
            try:
                self._servers.append(_ForkServerLink(self._root))
            except OSError as error:
                why = f"the process that starts commands cannot be started: {os_detail(error)}"
                raise CommandNotStarted(why) from error
        return self._servers[-1]


def _mark(start: Start) -> str:
    """Another one for each start, unless there is a launcher that passes on the one it has."""
    return (start.env.get(MARK) if start.reports else None) or os.urandom(8).hex()


def _request(start: Start, mark: str) -> messages.Request:
    if not start.argv:
        raise CommandNotStarted("command args are empty")
    for name in start.env:
        if not name or "=" in name:
            raise CommandNotStarted(f"{name!r} cannot be the name of a variable")
    if sum(map(len, start.files)) > FILES_BYTES:
        raise CommandNotStarted(f"the files of the command have more than {FILES_BYTES} bytes")
    others = [(name, value) for name, value in start.env.items() if name != MARK]
    return messages.Request(
        argv=tuple(_as_bytes(word, "a word of the command") for word in start.argv),
        cwd=_as_bytes(start.cwd, "the working directory"),
        env=dict(_variable(name, value) for name, value in (*others, (MARK, mark))),
        files=start.files,
        reports=start.reports,
        mounts=tuple(map(_laid, start.mounts)),
        restriction=None if start.restriction is None else _restriction(start.restriction),
        approved=None if start.approved is None else (start.approved.directory, start.approved.program),
    )


def _variable(name: str, value: str) -> tuple[bytes, bytes]:
    what = f"the variable {name!r}"
    return _as_bytes(name, what), _as_bytes(value, what)


def _restriction(its: Restriction) -> messages.Restriction:
    return messages.Restriction(
        files=its.handled_files,
        network=its.handled_network,
        scoped=its.scoped,
        rules=tuple((_as_bytes(rule.path, "a path of a rule"), rule.rights) for rule in its.rules),
        seccomp=its.seccomp,
    )


def _laid(its: Mount) -> messages.Laid:
    what = "a place of a mount"
    return _as_bytes(its.place, what), None if its.source is None else _as_bytes(its.source, what), its.writable


def _as_bytes(text: str, what: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise CommandNotStarted(f"{what} holds a character that cannot be encoded") from None
    if b"\0" in data:
        raise CommandNotStarted(f"{what} holds a NUL character")
    return data


def _ended(status: int | None, *, timed_out: bool, seconds: float) -> Ended:
    """What became of a command; without a status its supervisor was killed, and it with it."""
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Ended(exit_code=code, seconds=seconds)
    if timed_out:
        return Ended(timed_out=True, seconds=seconds)
    return Ended(signal=-code, seconds=seconds)


def _unconfined(number: int) -> SandboxUnavailable:
    step, error = divmod(number, ERROR_NUMBERS)
    return SandboxUnavailable(f"{STEPS[step]} failed: {os_detail(OSError(error, os.strerror(error)))}")


def _moved(mount: Mount) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"{replace_surrogates(mount.place)} is not what it was any more: another has taken its place"
    )


def _unseen(number: int) -> SandboxUnavailable:
    return SandboxUnavailable(f"looking at its mounts failed: {os_detail(OSError(number, os.strerror(number)))}")


def _unstarted(status: int) -> SandboxUnavailable:
    code = os.waitstatus_to_exitcode(status)
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    return SandboxUnavailable(f"the launcher {how} and has not started the command")


def _shut(connection: socket.socket) -> None:
    """Let the other side know that there is no more to come, and go on listening to it."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it is gone already


async def _hear(guardian: int | None, *said: asyncio.Future[None], seconds: float = KILL_SECONDS) -> None:
    """Wait for one of these from a guardian that was just woken; not when it is stopped again."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        timeout = min(left, LOOK_SECONDS)
        done, _ = await asyncio.wait(said, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if done or (guardian is not None and is_stopped(guardian)):
            return


# --- one command -------------------------------------------------------------------------


class _Running:
    """One command: its pipes, and the control socket on which its supervisor reports."""

    def __init__(self, output: Output, mark: bytes, mounts: tuple[Mount, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._mark = mark
        self._mounts = mounts
        self._control: socket.socket | None = None
        self._given_away = ExitStack()
        self._to_pass: list[int] = []
        self._unsent = b""
        self._streams: dict[int, OutputStream] = {}
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._server: _ForkServerLink | None = None
        self._number = 0
        self._session: int | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.started_at = 0.0
        """When the command was about to run, by the clock of the loop."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when there will be no more reports."""
        self.status: int | None = None
        """The wait status of the command, if its supervisor lived to report it."""
        self.why_not: CommandNotStarted | None = None
        """Why it could not be started."""
        self.output_failed: Exception | None = None
        self._confirmed = False

    @property
    def all_over(self) -> bool:
        """Whether there is nothing left to kill, to read or to wait for."""
        return self._server is None or (self._confirmed and self._silent.done())

    @property
    def refused(self) -> bool:
        """Whether nothing of it has run, for a reason that another fork server may not have."""
        return not self._ready.done() and (
            self.why_not is None or (self._server is not None and self._server.gives_way)
        )

    def open(self, request: bytes) -> None:
        """Make the pipes and the control socket. What that holds of the command is there before anybody is asked:
        who reads it may run in our place, and not wait for us."""
        self._control, theirs = socket.socketpair()
        self._given_away.callback(theirs.close)
        self._control.setblocking(False)
        self._unsent = request[self._control.send(request) :]
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

    def ask(self, server: _ForkServerLink) -> bool:
        """Give the other ends to the fork server; False if it is gone."""
        number = server.start(self._to_pass)
        if number is None:
            return False
        self._server, self._number = server, number
        self._given_away.close()
        return True

    async def begin(self) -> None:
        """Hand over the rest of the command; return when it is about to run, or when it will not."""
        assert self._control is not None
        assert self._server is not None
        with self._server.kept_awake():
            try:
                await self._loop.sock_sendall(self._control, self._unsent)
            except ConnectionError:
                pass  # the supervisor is gone, or said already why it will not do: that is read
            await asyncio.wait([self._ready, self.ended], return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            self._server.listen()

    async def end(self) -> None:
        """Kill what is left of it, and read what is left in the pipes. Bounded, whatever it does."""
        assert self._control is not None
        assert self._server is not None
        if not self.ended.done():
            self.stop()
            await _hear(self._session, self.ended)
        if not self.ended.done():
            self._server.kill(self._number)
            await self._server.hear(self.ended)
        if not self._confirmed:
            await self._server.bury(self._number, self._session, self._mark)
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
        if self._session is not None and not self.ended.done():
            with suppress(OSError):  # it is dead, and we have not heard of it yet
                os.kill(self._session, signal.SIGCONT)

    def _report(self) -> None:
        """Take what the supervisor says; called when there is something."""
        assert self._control is not None
        try:
            data = self._control.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind, number, said_at = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (b"", 0, 0)
        if kind == READY:
            self._session, self.started_at = number, said_at / 1e9
            self._ready.set_result(None)
            return
        if kind == FAILED:
            self.why_not = CommandNotStarted(os_detail(OSError(number, os.strerror(number))))
        elif kind == REPLACED:
            self.why_not = CommandReplaced(REPLACEABLE[number])
        elif kind == UNCONFINED:
            self.why_not = _unconfined(number)
        elif kind == MOVED:
            self.why_not = _moved(self._mounts[number])
        elif kind == UNSEEN:
            self.why_not = _unseen(number)
        elif kind == UNSTARTED:
            self.why_not = _unstarted(number)
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


class _ForkServerLink:
    """The process that forks supervisors; gone when `lost` is done, and to be replaced when it gives way."""

    def __init__(self, root: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._fallen: dict[int, asyncio.Future[None]] = {}
        self.gives_way = False
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._collected: asyncio.Future[None] = self._loop.create_future()
        """Done when it is dead, which follows on `lost` unless it hangs in the kernel."""
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._socket.setblocking(False)
                self._loop.add_reader(self._socket, self._read)
                self._process = subprocess.Popen(
                    (
                        *(sys.executable, "-I", "-S", "-c", FORK_SERVER, str(Path(__file__).parent.parent)),
                        *(str(theirs.fileno()), str(for_programs()), root),
                    ),
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

    def wake(self) -> None:
        """Let it go on, if somebody has stopped it."""
        if not self.lost.done():
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def kept_awake(self) -> Iterator[None]:
        """Let it go on meanwhile, however often somebody stops it."""
        again: asyncio.TimerHandle | None = None

        def wake() -> None:
            nonlocal again
            self.wake()
            again = self._loop.call_later(LOOK_SECONDS, wake)

        wake()
        try:
            yield
        finally:
            if again is not None:
                again.cancel()

    async def hear(self, *said: asyncio.Future[None], seconds: float = KILL_SECONDS) -> None:
        """Wake it, and wait for one of these."""
        self.wake()
        await _hear(self._process.pid, *said, self.lost, seconds=seconds)

    def start(self, descriptors: list[int]) -> int | None:
        """Have a supervisor forked that is given these; its number, or None if the fork server is gone."""
        self._requests += 1
        try:
            socket.send_fds(self._socket, [MESSAGE.pack(START, self._requests, 0)], descriptors)
        except ConnectionError:
            self._lose()
            return None
        self._fallen[self._requests] = self._loop.create_future()
        return self._requests

    def forget(self, number: int) -> None:
        """A command is over, and so is its supervisor."""
        self._fallen.pop(number, None)
        if self.gives_way and not self._fallen and not self.lost.done():
            _shut(self._socket)  # it has nothing left to look after
            self.wake()

    def kill(self, number: int) -> None:
        """Have a supervisor killed that does not answer, and all that it leaves."""
        if not self.lost.done():
            try:
                self._socket.send(MESSAGE.pack(KILL, number, 0))
            except OSError:
                pass  # it is gone or does not read: that is found out by waiting for its answer

    async def bury(self, number: int, session: int | None, mark: bytes) -> None:
        """Return when all is dead that a killed supervisor left."""
        if not self.lost.done():
            fallen = self._fallen[number]
            await self.hear(fallen)
            if not fallen.done() and not self.lost.done():
                await self._abandon()
        if self.lost.done():
            await self._be_collected(KILL_SECONDS)
            if session is not None:
                await self._loop.run_in_executor(None, lambda: sweep(sessions=(session,), marks=(mark,)))

    async def close(self) -> None:
        """End it, and with it everything that it started."""
        if not self.lost.done():
            _shut(self._socket)
            await self.hear(seconds=CLOSE_SECONDS)
        if not self.lost.done():
            await self._abandon(CLOSE_SECONDS)
        await self._be_collected(CLOSE_SECONDS)

    async def _abandon(self, seconds: float = KILL_SECONDS) -> None:
        """Kill one that does not answer, after all that is below it."""
        await self._loop.run_in_executor(None, lambda: sweep(below=self._process.pid, patience_seconds=seconds))
        self._lose()

    def listen(self) -> None:
        """Take all that it has said so far."""
        while not self.lost.done() and self._read():
            pass

    def _read(self) -> bool:
        """Take what it says next; False if it has not said it yet."""
        try:
            data = self._socket.recv(MESSAGE.size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        kind, number, _ = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (b"", 0, 0)
        if kind not in (FALLEN, GIVES_WAY):
            self._lose()
            return True
        self.gives_way |= kind == GIVES_WAY
        if number in self._fallen:
            self._fallen[number].set_result(None)
        return True

    def _lose(self) -> None:
        """Kill it, and tell everybody."""
        if not self.lost.done():
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._process.kill()
            self.lost.set_result(None)
            if self._process.poll() is not None:
                self._collected.set_result(None)
            else:  # dying takes a moment, or for ever: nobody else is to wait for that
                threading.Thread(target=self._collect, name="collect-fork-server", daemon=True).start()

    def _collect(self) -> None:
        self._process.wait()
        try:
            self._loop.call_soon_threadsafe(self._collected.set_result, None)
        except RuntimeError:
            pass  # the loop is closed: nobody wants to know any more

    async def _be_collected(self, seconds: float) -> None:
        """Return when it is dead, or when that takes too long."""
        await asyncio.wait([self._collected], timeout=seconds)
