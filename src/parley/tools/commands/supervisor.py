"""The supervisor: the process that starts one command and kills all processes that the command leaves.

Uses the standard library alone. The supervisor is a subreaper: when the parent of a process of the command ends,
the process becomes a child of the supervisor. When all of these processes are dead, it reports the end of the
command to the executor. It kills all of them as soon as the executor closes its end of the control socket or the
fork server dies.

Reports of a launcher are read without waiting, so that a process that holds the pipe open delays nothing.
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
from .mounts import HeldLauncher
from .programs import DEFAULT_PATH, candidates, identity, runnable
from .restrict import StepFailed, restricted

TYPE_CHECKING = False  # as in `typing`, whose import would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

__all__ = ["send", "supervise"]

OOM_SCORE: Final = 500
"""If memory runs out, the kernel kills commands before other processes of the user. The highest score is 1000."""
DEFAULT_SIGNALS: Final = tuple(int(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""The signals that have their default action when a command starts."""
DIRECTORY, PROGRAM = range(len(REPLACEABLE))
FIRST_FILE: Final = 3
"""The descriptor after the standard ones."""
REPORT_BYTES: Final = 64 * 1024
"""The capacity of a pipe; a launcher writes a few hundred bytes."""


def supervise(children: Children, control: int, stdout: int, stderr: int) -> None:
    """Run one command; return when all of its processes are dead and the end is reported."""
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
    status, by_itself = _wait_for_all(first, children, executor, held)
    if held is not None and held.refused is not None:
        send(executor, *held.refused)
    elif reports is None:
        send(executor, ENDED, status)
    else:
        text = (b"" if held is None else held.reported) + _rest_of(reports)
        send(executor, *_launched_result(text, status, by_itself))


def send(to: socket.socket, kind: bytes, number: int) -> None:
    """Send a report, or drop it if the receiver is gone."""
    try:
        to.send(MESSAGE.pack(kind, number, time.monotonic_ns()))
    except OSError:
        pass  # the poll on this socket notices it


def _read_request(executor: socket.socket) -> Request | None:
    """Return the command, or None if the executor closed the socket before it was complete."""
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
        return  # the system has no OOM scores
    try:
        if int(os.read(file, 16)) < OOM_SCORE:
            os.write(file, str(OOM_SCORE).encode())
    finally:
        os.close(file)


def _open_passed(request: Request) -> tuple[int | None, HeldLauncher | None, list[int]]:
    """Return the pipe of a launcher's reports, the launcher that waits for its mounts to be checked, and the
    descriptors for the program in order.

    All descriptors are above the numbers that they get in the program, so that none is overwritten by `dup2`.
    """
    passed = [_file_of(content) for content in request.files]
    reports: int | None = None
    held: HeldLauncher | None = None
    if request.reports:
        reports, theirs = os.pipe()
        os.set_blocking(reports, False)
        passed.append(theirs)
        if request.mounts:
            # A datagram socket has no end of file: if the supervisor dies, the launcher waits for ever.
            ours, gate = socket.socketpair(type=socket.SOCK_DGRAM)
            held = HeldLauncher(reports, ours, request.mounts)
            passed.append(gate.detach())
    above = FIRST_FILE + len(passed)
    return reports, held, [_moved_above(descriptor, above) for descriptor in passed]


def _file_of(content: bytes) -> int:
    """Return a descriptor of an unnamed file with this content, positioned at its start."""
    file = os.memfd_create("parley")
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _moved_above(descriptor: int, above: int) -> int:
    if descriptor >= above:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def _spawn(request: Request, places: Sequence[tuple[int, int]]) -> int:
    """Start the program in this session, in a new process group, and return its process id.

    `places` maps the descriptors that the program gets to their numbers in it. It inherits our stdin, which is
    empty.
    """
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, place) for descriptor, place in places]

    def start() -> int:
        return _start_first_found(
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


def _start_first_found(request: Request, start: Callable[[bytes], int]) -> int:
    """Start the first executable program of that name. If a program was approved, it must be that one."""
    refused: OSError | None = None
    for program in candidates(request.argv[0], request.env.get(b"PATH", DEFAULT_PATH)):
        try:
            if request.approved is not None:
                _refuse_other_program(request.approved[PROGRAM], program)
            return start(program)
        except PermissionError as error:
            refused = error  # a later directory of PATH may have an executable one
        except (FileNotFoundError, NotADirectoryError):
            if b"/" in request.argv[0]:
                raise
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _Replaced(Exception):
    """The working directory or the program is not the approved one."""

    def __init__(self, index: int) -> None:
        super().__init__(REPLACEABLE[index])
        self.index = index


def _refuse_other_directory(request: Request) -> None:
    """Raise `_Replaced` unless the current directory is the approved one. Renaming it later changes nothing."""
    if request.approved is not None and identity(os.stat(b".")) != request.approved[DIRECTORY]:
        raise _Replaced(DIRECTORY)


def _refuse_other_program(approved: tuple[int, int], program: bytes) -> None:
    """Raise `_Replaced` unless the program is the approved one.

    Raises:
        PermissionError, FileNotFoundError: it is not executable, so that the approval cannot have covered it.
    """
    found = runnable(program)
    if found is None:
        os.stat(program)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if found != approved:
        raise _Replaced(PROGRAM)


# --- the end -----------------------------------------------------------------------------


def _wait_for_all(
    first: int, children: Children, executor: socket.socket, held: HeldLauncher | None
) -> tuple[int, bool]:
    """Return the command's wait status when all of its processes are dead, and whether it ended by itself.

    Kills all of them when the command ends, when the executor closes the control socket, when the fork server dies
    (SIGTERM), or when a held launcher is refused. The kernel makes the children of a killed process ours before it
    reports its death, so that no wake-up is missed.
    """
    poller = select.poll()
    poller.register(executor, select.POLLIN)
    poller.register(children, select.POLLIN)
    status: int | None = None
    ending = by_itself = False
    while True:
        pause = held.pause_milliseconds if held is not None and held.waits and not ending else None
        ready = [each for each, _ in poller.poll(pause)]
        ending |= children.received_sigterm()
        if executor.fileno() in ready:  # the executor sends nothing after the request: it has closed its end
            ending = True
            poller.unregister(executor)
        for pid, its_status in children.reap():
            if pid == first:
                status, by_itself, ending = its_status, not ending, True
                kill_group(first)
        if held is not None and held.waits and not ending:
            held.check()
            ending = held.refused is not None
        if ending and not children.kill(known=() if status is not None else (first,)):
            return (signal.SIGKILL, False) if status is None else (status, by_itself)


def _rest_of(reports: int) -> bytes:
    """Return the text that a launcher has written. The launcher is dead, but another process may hold its end of
    the pipe open.
    """
    try:
        return os.read(reports, REPORT_BYTES)
    except BlockingIOError:
        return b""


def _launched_result(text: bytes, status: int, by_itself: bool) -> tuple[bytes, int]:
    """Return the report about a command that had a launcher, from the text that the launcher has written.

    The launcher writes `{ "child-pid": 4711 }`, and `{ "exit-code": 0 }` only if the command has run. A launcher
    that was killed between the two may or may not have started the command.
    """
    code = text.rpartition(b'"exit-code":')[2].partition(b"}")[0].strip()
    if code.isdigit():
        return ENDED, (int(code) & 0xFF) << 8
    killed = os.WIFSIGNALED(status)
    if killed and (not by_itself or b'"child-pid":' in text):
        return ENDED, status
    return UNSTARTED, status
