"""The process above one command: it starts the command, and sees to it that nothing of it is left.

Needs the standard library alone. Whatever the command starts falls to its supervisor when its own
parent ends. The supervisor tells the executor how the command ended only when all of that is dead,
and ends everything as soon as the executor closes its end of the control socket.

What it is told about a launcher, by the launcher, it reads before the command runs and when all is over:
nobody who holds that pipe can delay it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import time

from .children import Children, kill_group
from .messages import (
    ENDED,
    ERROR_NUMBERS,
    FAILED,
    MESSAGE,
    READY,
    REPLACEABLE,
    REPLACED,
    REQUEST_SIZE,
    UNCONFINED,
    UNSTARTED,
    Request,
)
from .mounts import Held
from .programs import DEFAULT_PATH, candidates, identity, runnable
from .restrict import StepFailed, restricted

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

__all__ = ["WAKERS", "send", "supervise"]

WAKERS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT)
"""The signals that a supervisor is woken by."""
OOM_SCORE: Final = 500
"""Out of memory, a command goes before everything else of the user; 1000 would be the most."""
DEFAULT_SIGNALS: Final = tuple(int(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""What a command is to have no handler for, and not to ignore either."""
DIRECTORY, PROGRAM = range(len(REPLACEABLE))
FIRST_FILE: Final = 3
"""The descriptor behind the standard ones."""
REPORT_BYTES: Final = 64 * 1024
"""All that a pipe holds; a launcher says a few hundred bytes."""


def supervise(fork_server: int, children: Children, control: int, stdout: int, stderr: int) -> None:
    """Run one command; return when all that it started is dead and the executor knows."""
    executor = socket.socket(fileno=control)
    request = _read_request(executor)
    if request is None:
        send(executor, FAILED, errno.ECANCELED)
        return
    try:
        os.setsid()
        send(executor, READY, os.getpid())
        _raise_oom_score()
        os.chdir(request.cwd)
        _refuse_other_directory(request)
        reports, held, passed = _open_passed(request)
        places = [(stdout, 1), (stderr, 2), *((each, place) for place, each in enumerate(passed, FIRST_FILE))]
        first = _spawn(request, places)
    except StepFailed as failed:
        send(executor, UNCONFINED, failed.step * ERROR_NUMBERS + failed.number)
        return
    except _Replaced as replaced:
        send(executor, REPLACED, replaced.index)
        return
    except OSError as error:
        send(executor, FAILED, error.errno or errno.EINVAL)
        return
    for descriptor in (stdout, stderr, *passed):
        os.close(descriptor)
    status, of_itself = _wait_for_all(first, fork_server, children, executor, held)
    if held is not None and held.refused is not None:
        send(executor, *held.refused)
    elif reports is None:
        send(executor, ENDED, status)
    else:
        words = (b"" if held is None else held.said) + _last_words(reports)
        send(executor, *_end_of_launched(words, status, of_itself))


def send(to: socket.socket, kind: bytes, number: int) -> None:
    """Say something, whether or not anybody listens."""
    try:
        to.send(MESSAGE.pack(kind, number, time.monotonic_ns()))
    except OSError:
        pass  # nobody is there any more, and that is seen where it is read


def _read_request(executor: socket.socket) -> Request | None:
    """The command; None if the executor gave up before it had sent it all."""
    size = _read(executor, REQUEST_SIZE.size)
    if size is None:
        return None
    data = _read(executor, REQUEST_SIZE.unpack(size)[0])
    return None if data is None else Request.unpacked(data)


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


# --- the start ---------------------------------------------------------------------------


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


def _open_passed(request: Request) -> tuple[int | None, Held | None, list[int]]:
    """Where a launcher's words are read, if it is one; what holds it, if it is to wait; and what is passed to the
    program, in order.

    All are above the places that they will have there, so that none is overwritten on the way.
    """
    passed = [_file_of(content) for content in request.files]
    reports: int | None = None
    held: Held | None = None
    if request.reports:
        reports, theirs = os.pipe()
        os.set_blocking(reports, False)
        passed.append(theirs)
        if request.mounts:
            # Datagrams, which know no end: where nobody is left who could let it go on, it waits for ever.
            ours, gate = socket.socketpair(type=socket.SOCK_DGRAM)
            held = Held(reports, ours, request.mounts)
            passed.append(gate.detach())
    above = FIRST_FILE + len(passed)
    return reports, held, [_moved(descriptor, above) for descriptor in passed]


def _file_of(content: bytes) -> int:
    """A file without a name, to be read from its beginning."""
    file = os.memfd_create("parley")
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _moved(descriptor: int, above: int) -> int:
    if descriptor >= above:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def _spawn(request: Request, places: Sequence[tuple[int, int]]) -> int:
    """Start the program in our session and a process group of its own.

    It has each of these descriptors in its place, and as stdin ours, which is empty.
    """
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, place) for descriptor, place in places]

    def start() -> int:
        return _first_that_will_do(
            request,
            lambda program: os.posix_spawn(
                program,
                request.argv,
                request.env,
                file_actions=actions,
                setpgroup=0,
                setsigmask=(),
                setsigdef=DEFAULT_SIGNALS,
            ),
        )

    return start() if request.restriction is None else restricted(request.restriction, start)


def _first_that_will_do(request: Request, start: Callable[[bytes], int]) -> int:
    """Start the first program of that name that may be run. It must be the one that was approved, if one was."""
    refused: OSError | None = None
    for program in candidates(request.argv[0], request.env.get(b"PATH", DEFAULT_PATH)):
        try:
            if request.approved is not None:
                _refuse_other_program(request.approved[PROGRAM], program)
            return start(program)
        except PermissionError as error:
            refused = error  # the next one of that name may do
        except (FileNotFoundError, NotADirectoryError):
            if b"/" in request.argv[0]:
                raise
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _Replaced(Exception):
    """Something is not what was approved."""

    def __init__(self, index: int) -> None:
        super().__init__(REPLACEABLE[index])
        self.index = index


def _refuse_other_directory(request: Request) -> None:
    """See that we are in the directory that was approved: from here on it is the current one, whatever its name."""
    if request.approved is not None and identity(os.stat(b".")) != request.approved[DIRECTORY]:
        raise _Replaced(DIRECTORY)


def _refuse_other_program(approved: tuple[int, int], program: bytes) -> None:
    """See that a program is the one that was approved.

    Raises:
        PermissionError, FileNotFoundError: it may not be run, and so could not be meant.
    """
    found = runnable(program)
    if found is None:
        os.stat(program)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if found != approved:
        raise _Replaced(PROGRAM)


# --- the end -----------------------------------------------------------------------------


def _wait_for_all(
    first: int, fork_server: int, children: Children, executor: socket.socket, held: Held | None
) -> tuple[int, bool]:
    """The wait status of the command, once it and all that it started are dead; whether it ended of itself.

    When the command ends, is to end, or has nobody left to report to, everything is killed; also
    when the fork server is dead, for then nobody takes over what we would leave, or when a launcher is
    refused that was held. Those
    whose parent is killed fall to us before we are told of its death, so that no wake-up is missed.
    """
    poller = select.poll()
    poller.register(executor, select.POLLIN)
    poller.register(children, select.POLLIN)
    status: int | None = None
    ending = of_itself = False
    while True:
        pause = held.pause_milliseconds if held is not None and held.waits and not ending else None
        ready = [each for each, _ in poller.poll(pause)]
        ending |= children.told_to_end() or os.getppid() != fork_server
        if executor.fileno() in ready:  # nothing is ever sent behind the request: it was closed
            ending = True
            poller.unregister(executor)
        for pid, its_status in children.reap():
            if pid == first:
                status, of_itself, ending = its_status, not ending, True
                kill_group(first)
        if held is not None and held.waits and not ending:
            held.look()
            ending = held.refused is not None
        if ending and not children.kill(known=() if status is not None else (first,)):
            return (signal.SIGKILL, False) if status is None else (status, of_itself)


def _last_words(reports: int) -> bytes:
    """What a launcher has said; it is dead, but somebody else may hold the pipe."""
    try:
        return os.read(reports, REPORT_BYTES)
    except BlockingIOError:
        return b""


def _end_of_launched(words: bytes, status: int, of_itself: bool) -> tuple[bytes, int]:
    """How a command ended that had a launcher, as a message, by what that said.

    Its words are `{ "child-pid": 4711 }`, and then `{ "exit-code": 0 }` only if the command has run. A
    launcher that was killed between the two may or may not have started it.
    """
    code = words.rpartition(b'"exit-code":')[2].partition(b"}")[0].strip()
    if code.isdigit():
        return ENDED, (int(code) & 0xFF) << 8
    killed = os.WIFSIGNALED(status)
    if killed and (not of_itself or b'"child-pid":' in words):
        return ENDED, status
    return UNSTARTED, status
