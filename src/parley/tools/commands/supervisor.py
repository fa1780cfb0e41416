"""The supervisor: the process that starts one command, and kills its remaining processes when the command ends.

This module imports only the standard library, because the fork server loads it. The supervisor is a subreaper: a
process of the command whose parent has ended becomes a child of the supervisor. When all of the command's processes
are dead, the supervisor reports the end of the command to the executor. The supervisor kills these processes as
soon as the executor closes its end of the control socket or the fork server dies. The supervisor reads the reports
of bubblewrap without waiting, so that a process that keeps the pipe open does not delay the supervisor.
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

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

__all__ = ["send", "supervise"]

OOM_SCORE: Final = 500
"""The OOM score adjustment of commands. If memory runs out, the kernel kills commands before other processes of the
user. The highest value is 1000.
"""
DEFAULT_SIGNALS: Final = tuple(int(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""The signals that are reset to their default action when a command starts."""
DIRECTORY, PROGRAM = range(len(REPLACEABLE))
FIRST_FILE: Final = 3
"""The first descriptor after stdin, stdout and stderr."""
REPORT_BYTES: Final = 64 * 1024
"""The maximum number of bytes in one read of bubblewrap's reports. This is the capacity of a pipe. Bubblewrap
writes only a few hundred bytes.
"""


def supervise(children: Children, control: int, stdout: int, stderr: int) -> None:
    """Run the command that is requested over the socket `control`, with the descriptors `stdout` and `stderr` for
    its output. Return when all of its processes are dead and its end has been reported.
    """
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
    """Send a report with the given kind and number (see `messages.py`) to the executor. If the executor has closed
    the socket, discard the report.
    """
    try:
        to.send(MESSAGE.pack(kind, number, time.monotonic_ns()))
    except OSError:
        pass  # the poll on this socket detects that it is closed


def _read_request(executor: socket.socket) -> Request | None:
    """Return the requested command; None if the executor closed the socket before the request was complete."""
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
    """Open the descriptors that are passed to the program.

    The first result is the pipe of bubblewrap's reports; None if the command is started without bubblewrap. The
    second result is the bubblewrap process whose mounts must be checked; None if no mounts must be checked. The
    third result is a list of the descriptors to pass, in order.

    In the program, `dup2` gives these descriptors consecutive numbers from `FIRST_FILE` on. The returned
    descriptors have higher numbers, so that `dup2` does not overwrite a descriptor before it is copied.
    """
    passed = [_file_of(content) for content in request.files]
    reports: int | None = None
    held: HeldLauncher | None = None
    if request.reports:
        reports, theirs = os.pipe()
        os.set_blocking(reports, False)
        passed.append(theirs)
        if request.mounts:
            # A datagram socket has no end of file: if the supervisor dies, bubblewrap waits until it is killed.
            ours, gate = socket.socketpair(type=socket.SOCK_DGRAM)
            held = HeldLauncher(reports, ours, request.mounts, max_processes=request.max_processes)
            passed.append(gate.detach())
    above = FIRST_FILE + len(passed)
    return reports, held, [_moved_above(descriptor, above) for descriptor in passed]


def _file_of(content: bytes) -> int:
    """Return the descriptor of an unnamed file with the given content, positioned at the start of the file."""
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
    """Start the program of `request` in the supervisor's session, in a new process group. Return its process id.

    `places` lists the descriptors that the program gets, each with its number in the program. The program inherits
    the supervisor's stdin, which is empty.
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
    """Start the first executable file with the program's name, and return its process id. `start` starts the
    program at a path and returns its process id.

    Raises:
        _Replaced: the file is not the approved one.
        PermissionError: files with this name exist, but none is executable.
        FileNotFoundError: there is no file with this name.
    """
    refused: OSError | None = None
    for program in candidates(request.argv[0], request.env.get(b"PATH", DEFAULT_PATH)):
        try:
            if request.approved is not None:
                _refuse_other_program(request.approved[PROGRAM], program)
            return start(program)
        except PermissionError as error:
            refused = error  # a later directory of PATH may have an executable file
        except (FileNotFoundError, NotADirectoryError):
            if b"/" in request.argv[0]:
                raise
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _Replaced(Exception):
    """Raised when the working directory or the program is not the approved one."""

    def __init__(self, index: int) -> None:
        super().__init__(REPLACEABLE[index])
        self.index = index


def _refuse_other_directory(request: Request) -> None:
    """Check that the current directory is the approved one, if a directory was approved. A later replacement of the
    path does not affect the current directory.

    Raises:
        _Replaced: the current directory is not the approved one.
    """
    if request.approved is not None and identity(os.stat(b".")) != request.approved[DIRECTORY]:
        raise _Replaced(DIRECTORY)


def _refuse_other_program(approved: tuple[int, int], program: bytes) -> None:
    """Check that the program file is the approved one.

    Raises:
        _Replaced: the file is not the approved one.
        PermissionError: the file is not executable, so it cannot be the approved one.
        FileNotFoundError: the file does not exist.
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
    """Wait until all processes of the command are dead. Return the wait status of the command, and whether the
    command ended before its processes were killed. `first` is the process id of the command or of bubblewrap.

    The processes are killed when the command ends, when the executor closes the control socket, when the fork
    server dies (SIGTERM), or when the check of bubblewrap's mounts fails. When a process is killed, its children
    become children of the supervisor before the kernel reports the death, so no wake-up is missed.
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
        if executor.fileno() in ready:  # the executor sends nothing after the request, so it has closed its end
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
    """Return the text that bubblewrap has written to the pipe `reports` and that has not been read yet.

    The read does not wait for more text, because bubblewrap is dead and another process may keep the pipe open.
    """
    try:
        return os.read(reports, REPORT_BYTES)
    except BlockingIOError:
        return b""


def _launched_result(text: bytes, status: int, by_itself: bool) -> tuple[bytes, int]:
    """Return the supervisor's last report about a command that was started with bubblewrap: its kind and its number
    (see `messages.py`). `text` contains all reports that bubblewrap has written.

    Bubblewrap writes `{ "child-pid": 4711 }` first, and `{ "exit-code": 0 }` only if the command has run. If
    bubblewrap was killed between the two messages, it is unknown whether the command was started. `status` is the
    wait status of bubblewrap. `by_itself` is False if the supervisor killed bubblewrap.
    """
    code = text.rpartition(b'"exit-code":')[2].partition(b"}")[0].strip()
    if code.isdigit():
        return ENDED, (int(code) & 0xFF) << 8
    killed = os.WIFSIGNALED(status)
    if killed and (not by_itself or b'"child-pid":' in text):
        return ENDED, status
    return UNSTARTED, status
