"""The process that starts commands, and the supervisor that it forks for each of them.

Run as a program of its own, with an empty environment and the standard library alone. Knows no
secret, reads no output and keeps no time: `executor.py` does that. A supervisor has one command, and
sees to it that nothing of it is left: whatever the command starts falls to its supervisor when its
own parent ends, and what falls to nobody else falls to the fork server.

A command runs as the same user and can turn against both. One that is stopped is woken when its own
parent dies; a fork server that a command has hampered starts no more, looks after what runs, and
lets the executor take another one.

Between the executor and the fork server, and from a supervisor to the executor, go messages of one
size. A command itself travels over the control socket of its supervisor, which ends everything as
soon as the executor closes its end of it.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from typing import Final

    Prctl = Callable[[int, int], None]

__all__ = [
    "ENDED",
    "FAILED",
    "FALLEN",
    "GIVES_WAY",
    "KILL",
    "MESSAGE",
    "READY",
    "START",
    "main",
    "pack_request",
]

MESSAGE: Final = struct.Struct("=cqq")
"""A kind, a number, and when it was said, in nanoseconds of the monotonic clock, which all processes
share. All of one size, so that one read is one message."""

START: Final = b"S"
"""To the fork server, with three descriptors (control, stdout, stderr): fork a supervisor, under this number."""
KILL: Final = b"K"
"""To the fork server: the supervisor with this number does not answer; kill it and what it leaves."""
FALLEN: Final = b"X"
"""From the fork server: the supervisor with this number was killed, and what it left is dead."""
GIVES_WAY: Final = b"W"
"""From the fork server: there is no supervisor with this number, and none will be forked any more."""
READY: Final = b"r"
"""From a supervisor: the command is about to run, in this session. Said before it can do anything."""
FAILED: Final = b"f"
"""From a supervisor: the command could not be started, for this error number."""
ENDED: Final = b"e"
"""From a supervisor: the command ended with this wait status, and all that it started is dead."""

HEADER: Final = struct.Struct("=QQ")
"""In front of a request: how many bytes follow, and how many of its parts are words of the command."""

DESCRIPTORS: Final = 3
OOM_SCORE: Final = 500
"""Out of memory, a command goes before everything else of the user; 1000 would be the most."""
DEFAULT_PATH: Final = b"/bin:/usr/bin"
"""Where a program is looked for when the command's environment has no PATH."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36

PLAIN_ATTEMPTS: Final = 3
"""Enough for everything that does not fork on and on."""
LIST_BYTES: Final = 64 * 1024
DEFAULT_SIGNALS: Final = tuple(int(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""What a command is to have no handler for, and not to ignore either."""
LIMITS: Final = tuple({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def pack_request(argv: Sequence[bytes], cwd: bytes, env: Sequence[bytes]) -> bytes:
    """A command as its supervisor reads it. No part may hold a NUL."""
    body = b"\0".join((*argv, cwd, *env))
    return HEADER.pack(len(body), len(argv)) + body


def _unpack_request(body: bytes, words: int) -> tuple[list[bytes], bytes, dict[bytes, bytes]]:
    parts = body.split(b"\0")
    pairs = (entry.partition(b"=") for entry in parts[words + 1 :])
    return parts[:words], parts[words], {name: value for name, _, value in pairs}


# --- the fork server ---------------------------------------------------------------------


def main() -> None:
    """Serve the socket whose descriptor is the first argument, until it is closed.

    The second is how many files a command may open, unless it asks for more.
    """
    descriptor, open_files = map(int, sys.argv[1:])
    server = socket.socket(fileno=descriptor)
    server.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the server, which tells us what it means for us
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, most))
    except ValueError:
        pass  # by now nobody may open so many
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # if we are stopped then, we see that the socket is closed
    gc.disable()
    gc.freeze()  # no collection writes to pages that are shared with the supervisors
    _ForkServer(server, prctl).serve()


class _ForkServer:
    """Forks supervisors, and kills what they leave when they are killed themselves."""

    def __init__(self, server: socket.socket, prctl: Prctl) -> None:
        self._server = server
        self._prctl = prctl
        self._children = _Children(signal.SIGCHLD, signal.SIGTERM)
        self._inherited = _inherited()
        self._gives_way = False
        self._supervisors: dict[int, int] = {}
        """The number of each, by its process."""

    def serve(self) -> None:
        """Return when there is nobody left to serve, and nothing left of what was started."""
        poller = select.poll()
        poller.register(self._server, select.POLLIN)
        poller.register(self._children, select.POLLIN)
        ending = False
        fallen: list[int] = []
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            ending |= self._children.told_to_end()
            if not ending and self._server.fileno() in ready:
                ending = not self._obey()
            if ending and self._server.fileno() in ready:
                poller.unregister(self._server)
            fallen += self._reap()
            if ending:
                if not self._children.kill():
                    return
            # Nothing falls to us but what a supervisor left that did not come to its own end.
            elif fallen and not self._children.kill(spare=self._supervisors):
                for number in fallen:
                    _send(self._server, FALLEN, number)
                fallen.clear()

    def _reap(self) -> list[int]:
        """The numbers of supervisors that were killed."""
        ended = [(self._supervisors.pop(pid, 0), status) for pid, status in self._children.reap()]
        return [number for number, status in ended if number and status]

    def _obey(self) -> bool:
        """Do what the next message says; False if that is to end."""
        try:
            flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            message, descriptors, _, _ = socket.recv_fds(self._server, MESSAGE.size, DESCRIPTORS, flags)
        except ConnectionError:
            return False
        try:
            if len(message) < MESSAGE.size:
                return False
            kind, number, _ = MESSAGE.unpack(message)
            if kind == KILL:
                for pid in [pid for pid, its in self._supervisors.items() if its == number]:
                    os.kill(pid, signal.SIGKILL)
                return True
            # Somebody took away what we may open, or changed what we would pass on to the command.
            if len(descriptors) < DESCRIPTORS or _inherited() != self._inherited:
                self._gives_way = True
            if self._gives_way:
                _send(self._server, GIVES_WAY, number)
            else:
                self._fork(number, descriptors)
            return True
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, number: int, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        us = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._gives_way = True
            _send(self._server, GIVES_WAY, number)
            executor = socket.socket(fileno=descriptors[0])
            _send(executor, FAILED, error.errno or errno.EAGAIN)
            executor.detach()
            return
        if pid:
            self._supervisors[pid] = number
            return
        try:
            self._children.close()
            self._server.close()
            children = _Children(signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT)
            self._prctl(PR_SET_CHILD_SUBREAPER, 1)
            self._prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
            if os.getppid() == us:
                _supervise(us, children, *descriptors)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)


def _inherited() -> tuple[object, ...]:
    """What commands inherit from us, and one of them can change for all that follow."""
    here = 0
    return (
        *map(resource.getrlimit, LIMITS),
        os.getpriority(os.PRIO_PROCESS, here),
        *((os.sched_getscheduler(here), os.sched_getaffinity(here)) if sys.platform == "linux" else ()),
    )


# --- a supervisor ------------------------------------------------------------------------


def _supervise(fork_server: int, children: _Children, control: int, stdout: int, stderr: int) -> None:
    """Run one command; return when all that it started is dead and the executor knows."""
    executor = socket.socket(fileno=control)
    request = _read_request(executor)
    try:
        if request is None:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        argv, cwd, env = request
        os.setsid()
        _send(executor, READY, os.getpid())
        _raise_oom_score()
        os.chdir(cwd)
        first = _spawn(argv, env, stdout, stderr)
    except OSError as error:
        _send(executor, FAILED, error.errno or errno.EINVAL)
        return
    os.close(stdout)
    os.close(stderr)
    _send(executor, ENDED, _wait_for_all(first, fork_server, children, executor))


def _wait_for_all(first: int, fork_server: int, children: _Children, executor: socket.socket) -> int:
    """The wait status of the command, once it and all that it started are dead.

    When the command ends, is to end, or has nobody left to report to, everything is killed; also
    when the fork server is dead, for then nobody takes over what we would leave. Those
    whose parent is killed fall to us before we are told of its death, so that no wake-up is missed.
    """
    poller = select.poll()
    poller.register(executor, select.POLLIN)
    poller.register(children, select.POLLIN)
    status: int | None = None
    ending = False
    while True:
        ready = [descriptor for descriptor, _ in poller.poll()]
        ending |= children.told_to_end() or os.getppid() != fork_server
        if executor.fileno() in ready:  # nothing is ever sent behind the request: it was closed
            ending = True
            poller.unregister(executor)
        for pid, its_status in children.reap():
            if pid == first:
                status, ending = its_status, True
                _kill_group(first)
        if ending and not children.kill(known=() if status is not None else (first,)):
            return signal.SIGKILL if status is None else status


def _read_request(executor: socket.socket) -> tuple[list[bytes], bytes, dict[bytes, bytes]] | None:
    """The command; None if the executor gave up before it had sent it all."""
    header = _read(executor, HEADER.size)
    if header is None:
        return None
    size, words = HEADER.unpack(header)
    body = _read(executor, size)
    return None if body is None else _unpack_request(body, words)


def _read(executor: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            piece = executor.recv(size - len(data))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def _spawn(argv: list[bytes], env: dict[bytes, bytes], stdout: int, stderr: int) -> int:
    """Start the program in our session and a process group of its own; stdin is ours, which is empty."""
    refused: OSError | None = None
    for program in _places(argv[0], env.get(b"PATH", DEFAULT_PATH)):
        try:
            return os.posix_spawn(
                program,
                argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)],
                setpgroup=0,
                setsigmask=(),
                setsigdef=DEFAULT_SIGNALS,
            )
        except PermissionError as error:
            refused = error  # the next one of that name may do
        except (FileNotFoundError, NotADirectoryError):
            if b"/" in argv[0]:
                raise
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _places(name: bytes, path: bytes) -> Iterator[bytes]:
    """Where the program may be: in the directories of the command's own PATH, unless it names one itself."""
    if b"/" in name:
        yield name
    elif name:
        for directory in path.split(b":"):
            place = os.path.join(directory or b".", name)
            if os.access(place, os.F_OK):
                yield place


def _raise_oom_score() -> None:
    try:
        file = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    except OSError:
        return  # not on this system
    try:
        if int(os.read(file, 16)) < OOM_SCORE:
            os.write(file, str(OOM_SCORE).encode())
    finally:
        os.close(file)


# --- processes ---------------------------------------------------------------------------


class _Children:
    """The children of this process: to be told when they end, to find them all, to kill them."""

    def __init__(self, *wakers: signal.Signals) -> None:
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in wakers:
            signal.signal(number, lambda _number, _frame: None)
        # Opened once: a command may take away what its supervisor may open.
        self._list = _open_list_of_children()
        self._childless = False
        self._attempts = 0

    def close(self) -> None:
        for descriptor in (self._woken, self._wake, self._list):
            if descriptor is not None:
                os.close(descriptor)

    def fileno(self) -> int:
        """Readable when a child has ended, or when we are told to."""
        return self._woken

    def told_to_end(self) -> bool:
        """Whether there was a signal that says so; forgets all signals so far."""
        try:
            return signal.SIGTERM in os.read(self._woken, select.PIPE_BUF)
        except BlockingIOError:
            return False

    def reap(self) -> list[tuple[int, int]]:
        """Those that have ended, each with its wait status."""
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return ended
            if not pid:
                self._childless = False
                return ended
            ended.append((pid, status))

    def kill(self, *, spare: Container[int] = (), known: Sequence[int] = ()) -> bool:
        """Kill all but some, each with its process group; whether there was one that can be killed.

        A program that changed its user cannot. Where the system does not tell who our children
        are, those that are known are killed. To be called after `reap`, and again whenever a child
        has ended, until it finds none: those below a killed one are our children then.
        """
        if self._childless:
            return False
        self._attempts += 1
        found = [pid for pid in self._pids() or known if pid not in spare]
        if self._attempts > PLAIN_ATTEMPTS:
            found = self._stop_all_below(found)
        killed = [_kill(pid) for pid in found]
        if not any(killed):
            self._attempts = 0
            return False
        return True

    def _stop_all_below(self, children: Sequence[int]) -> list[int]:
        """Stop these, and all that descend from them; returns all of them.

        They fork faster than they are killed. One that is stopped forks no more, and still counts
        where the number of processes is limited. As each is stopped before its children are looked
        for, none is missed but those whose parent ends meanwhile: they are found at the next attempt.
        """
        found: list[int] = []
        waiting = list(children)
        while waiting:
            pid = waiting.pop()
            try:
                os.kill(pid, signal.SIGSTOP)
                found.append(pid)
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                        waiting += map(int, file.read().split())
            except OSError:
                pass  # it ended, or is not ours to stop
        return found

    def _pids(self) -> list[int]:
        """All children. Only reaping takes one off this list, so that none is missed while it is read."""
        if self._list is None:
            return []
        os.lseek(self._list, 0, os.SEEK_SET)
        text = b""
        while piece := os.read(self._list, LIST_BYTES):
            text += piece
        return [int(pid) for pid in text.split()]


def _open_list_of_children() -> int | None:
    try:
        return os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    except OSError:
        return None  # not on this system


def _kill(pid: int) -> bool:
    """Kill a process and its process group; False if it is not ours to kill."""
    try:
        if (group := os.getpgid(pid)) != os.getpgrp():
            _kill_group(group)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # not a child, and dead by now
    except PermissionError:
        return False
    return True


def _kill_group(group: int) -> None:
    """Kill all of a group in one instant, in which none of them can fork."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # none is left, or none is ours to kill


# --- messages and the system -------------------------------------------------------------


def _send(to: socket.socket, kind: bytes, number: int) -> None:
    try:
        to.send(MESSAGE.pack(kind, number, time.monotonic_ns()))
    except OSError:
        pass  # nobody is there any more, and that is seen where it is read


def _prctl() -> Prctl:
    """Where there is no `prctl`, what leaves its process group is not found again."""
    if sys.platform != "linux":
        return lambda option, argument: None
    import ctypes

    library = ctypes.CDLL(None)

    def call(option: int, argument: int) -> None:
        library.prctl(option, ctypes.c_ulong(argument), 0, 0, 0)

    return call


if __name__ == "__main__":
    main()
