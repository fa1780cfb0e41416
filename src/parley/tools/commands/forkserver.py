"""The fork server: the process that forks a supervisor for each command. On Linux, the fork server forks one
supervisor in advance.

The fork server is a separate program with an empty environment. It imports only the standard library and a few
modules of Parley. It holds no secrets, reads no output and enforces no deadlines. If a supervisor dies before its
command has ended, the command's processes become children of the fork server. The fork server kills them, and only
then closes its copy of the control socket, which connects the supervisor to the executor. Therefore, when the
executor sees that the control socket is closed, these processes are dead.

In this process, the packages `parley` and `parley.tools` are empty (`fork_server_link.PROGRAM`), because importing
them would take most of the startup time.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import socket
import sys

from .children import Children
from .messages import FAILED, START
from .restrict import prctl, prewarm
from .scope import enter
from .supervisor import send, supervise

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from typing import Final, NoReturn

__all__ = ["main"]

DESCRIPTORS: Final = 3
"""The number of descriptors that a supervisor gets: control socket, stdout and stderr."""
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> None:
    """Run the fork server, which starts commands for the executor, until the executor closes its socket or SIGTERM
    arrives.

    The last three arguments of the program are the descriptor of the socket, a command's limit on open files, and
    the directory below which the files of systemd are looked up.
    """
    descriptor, open_files = map(int, sys.argv[-3:-1])
    executor = socket.socket(fileno=descriptor)
    executor.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides how an interrupt affects commands
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # exit statuses are lost if this signal is ignored
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    enter(sys.argv[-1])
    gc.disable()
    gc.freeze()  # a collection would write to pages that are shared with the supervisors
    _ForkServer(executor, open_files).serve()


class _ForkServer:
    """Forks supervisors, and kills the processes of supervisors that died."""

    def __init__(self, executor: socket.socket, open_files: int) -> None:
        self._executor = executor
        self._open_files = open_files
        self._children = Children(signal.SIGCHLD, signal.SIGTERM)
        self._controls: dict[int, int] = {}
        """The control sockets of supervisors that have a command, keyed by the process id of the supervisor. Each
        supervisor has its own copy of its control socket.
        """
        self._orphaned: list[int] = []
        """The control sockets of dead supervisors. Processes of their commands may still be running."""
        self._spare: _Spare | None = None

    def serve(self) -> None:
        """Start the commands that the executor requests. After the executor has closed its socket or SIGTERM has
        arrived, kill all started processes and return.
        """
        poller = select.poll()
        poller.register(self._executor, select.POLLIN)
        poller.register(self._children, select.POLLIN)
        ending = False
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            ending |= self._children.received_sigterm()
            if not ending and self._executor.fileno() in ready:
                ending = not self._accept()
                if not ending:
                    self._fork_spare()
            if ending and self._executor.fileno() in ready:
                poller.unregister(self._executor)
            self._reap()
            if ending:
                if not self._children.kill():
                    return
            elif self._orphaned and not self._children.kill(spare=self._supervisors()):
                for control in self._orphaned:
                    os.close(control)
                self._orphaned.clear()

    def _supervisors(self) -> set[int]:
        return {*self._controls, *(() if self._spare is None else (self._spare.pid,))}

    def _reap(self) -> None:
        for pid, status in self._children.reap():
            control = self._controls.pop(pid, None)
            if control is not None and status:
                self._orphaned.append(control)
            elif control is not None:
                os.close(control)
            elif self._spare is not None and self._spare.pid == pid:
                self._spare.close()
                self._spare = None

    def _accept(self) -> bool:
        """Start the command that the executor requests, and return True. Return False if the executor has closed
        its socket.
        """
        try:
            message, descriptors = _received(self._executor)
        except ConnectionError:
            return False
        if len(descriptors) == DESCRIPTORS:
            self._start(*descriptors)
        else:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(message)

    def _start(self, control: int, stdout: int, stderr: int) -> None:
        """Pass the descriptors of a command to the spare supervisor, or to a new supervisor if there is no spare
        supervisor.
        """
        supervisor, self._spare = self._spare, None
        try:
            supervisor = supervisor or self._forked(control, stdout, stderr)
        except OSError as error:
            with socket.socket(fileno=control) as executor:
                send(executor, FAILED, error.errno or errno.EAGAIN)
        else:
            self._controls[supervisor.pid] = control
            supervisor.begin(control, stdout, stderr)
        os.close(stdout)
        os.close(stderr)

    def _fork_spare(self) -> None:
        """On Linux, fork the next supervisor before it is needed. This halves the time to start a command."""
        if sys.platform == "linux" and self._spare is None:
            try:
                self._spare = self._forked()
            except OSError:
                pass  # if forking fails again, the next command reports the error

    def _forked(self, *descriptors: int) -> _Spare:
        """Fork a supervisor that waits for a command, and return it. `descriptors` are open descriptors of the fork
        server that the supervisor does not need. The supervisor closes its copies of them.

        Raises:
            OSError: the process cannot be forked.
        """
        fork_server = os.getpid()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if not pid:
                unused = (ours.detach(), *descriptors, *self._controls.values(), *self._orphaned)
                self._become_supervisor(fork_server, theirs, unused)
        return _Spare(pid, ours)

    def _become_supervisor(self, fork_server: int, channel: socket.socket, unused: tuple[int, ...]) -> NoReturn:
        try:
            self._children.close()
            self._executor.close()
            for descriptor in unused:
                os.close(descriptor)
            children = Children(signal.SIGCHLD, signal.SIGTERM)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            _limit_open_files(self._open_files)
            prewarm()
            _, descriptors = _received(channel)
            channel.close()
            if len(descriptors) == DESCRIPTORS and os.getppid() == fork_server:
                supervise(children, *descriptors)
                os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)


class _Spare:
    """A supervisor that is waiting for a command."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel

    def begin(self, *descriptors: int) -> None:
        """Send the descriptors of a command to the supervisor. If the supervisor is dead, do nothing."""
        try:
            socket.send_fds(self._channel, [START], descriptors)
        except OSError:
            pass  # the supervisor is dead; `_reap` handles that
        self._channel.close()

    def close(self) -> None:
        self._channel.close()


def _received(sender: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and the descriptors that came with it. The message is empty if the sender has closed
    its socket.
    """
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    message, descriptors, _, _ = socket.recv_fds(sender, len(START), DESCRIPTORS, flags)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return message, descriptors


def _limit_open_files(count: int) -> None:
    """Set this process's limit on open files to `count`, the limit that the server had when it was started. The
    command inherits this limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
    except ValueError:
        pass  # the hard limit is already lower than this value
