"""The process that starts commands, by forking a supervisor for each of them, one ahead of time.

Run as a program of its own, with an empty environment and the standard library alone. Knows no
secret, reads no output and keeps no time: `executor.py` does that. What a supervisor has to see to is
said in `supervisor.py`; what falls to nobody else falls to the fork server.

A command runs as the same user and can turn against both. One that is stopped is woken when its own
parent dies; a fork server that a command has hampered starts no more, looks after what runs, and
lets the executor take another one.

It and what it imports are loaded by their place among one another, for in that process there is no
package around them, whose import would take longer than all the rest.
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
from .messages import FAILED, FALLEN, GIVES_WAY, KILL, MESSAGE
from .restrict import prctl, rehearse
from .scope import enter
from .supervisor import WAKERS, send, supervise

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from typing import Final, NoReturn

__all__ = ["main"]

DESCRIPTORS: Final = 3
"""Those of a supervisor: control, stdout, stderr."""
BEGIN: Final = b"b"
"""To a supervisor that waits, with its descriptors."""
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
LIMITS: Final = tuple({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def main() -> None:
    """Serve the socket whose descriptor is the first of the last three arguments, until it is closed.

    The second is how many files a command may open, unless it asks for more; the last is where the files of
    the system are.
    """
    descriptor, open_files = map(int, sys.argv[-3:-1])
    server = socket.socket(fileno=descriptor)
    server.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the server, which tells us what it means for us
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody is told how a child ended
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, most))
    except ValueError:
        pass  # by now nobody may open so many
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # if we are stopped then, we see that the socket is closed
    enter(sys.argv[-1])
    gc.disable()
    gc.freeze()  # no collection writes to pages that are shared with the supervisors
    _ForkServer(server).serve()


class _ForkServer:
    """Forks supervisors, and kills what they leave when they are killed themselves."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._children = Children(signal.SIGCHLD, signal.SIGTERM)
        self._inherited = _inherited(os.getpid())
        self._gives_way = False
        self._supervisors: dict[int, int] = {}
        """The number of each, by its process; 0 before it has one."""
        self._waiting: _Waiting | None = None

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
                if not ending:
                    self._have_one_wait()
            if ending and self._server.fileno() in ready:
                poller.unregister(self._server)
            fallen += self._reap()
            if ending:
                if not self._children.kill():
                    return
            # Nothing falls to us but what a supervisor left that did not come to its own end.
            elif fallen and not self._children.kill(spare=self._supervisors):
                for number in fallen:
                    send(self._server, FALLEN, number)
                fallen.clear()

    def _reap(self) -> list[int]:
        """The numbers of supervisors that were killed."""
        fallen: list[int] = []
        for pid, status in self._children.reap():
            number = self._supervisors.pop(pid, 0)
            if number and status:
                fallen.append(number)
            elif self._waiting is not None and self._waiting.pid == pid:
                self._waiting.close()
                self._waiting = None
        return fallen

    def _obey(self) -> bool:
        """Do what the next message says; False if that is to end."""
        try:
            message, descriptors = _received(self._server, MESSAGE.size)
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
            if self._gives_way or len(descriptors) < DESCRIPTORS:  # somebody took away what we may open
                self._give_way(number)
            else:
                self._start(number, descriptors)
            return True
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _give_way(self, number: int) -> None:
        self._gives_way = True
        send(self._server, GIVES_WAY, number)

    def _start(self, number: int, descriptors: list[int]) -> None:
        """Give a command to the supervisor that waits, or to a new one where there is none that could be used."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self._is_unchanged(waiting.pid):
            waiting.close()
            os.kill(waiting.pid, signal.SIGKILL)
            waiting = None
        if waiting is None and not self._is_unchanged(os.getpid()):
            self._give_way(number)
            return
        try:
            waiting = waiting or self._forked(*descriptors)
        except OSError as error:
            self._give_way(number)
            executor = socket.socket(fileno=descriptors[0])
            send(executor, FAILED, error.errno or errno.EAGAIN)
            executor.detach()
            return
        self._supervisors[waiting.pid] = number
        waiting.begin(descriptors)

    def _have_one_wait(self) -> None:
        """Fork the next supervisor while nobody waits for it: that takes half of the time of a start."""
        if sys.platform == "linux" and self._waiting is None and not self._gives_way:
            try:
                self._waiting = self._forked()
            except OSError:
                pass  # if it lasts, the next command is told

    def _is_unchanged(self, pid: int) -> bool:
        """Whether a command would inherit from a process what it is to inherit."""
        try:
            return _inherited(pid) == self._inherited
        except OSError:
            return False

    def _forked(self, *open_here: int) -> _Waiting:
        """A supervisor without a command, and without these descriptors."""
        us = os.getpid()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if not pid:
                self._be_supervisor(us, theirs, unused=(ours.detach(), *open_here))
        self._supervisors[pid] = 0
        return _Waiting(pid, ours)

    def _be_supervisor(self, fork_server: int, told: socket.socket, *, unused: tuple[int, ...]) -> NoReturn:
        try:
            self._children.close()
            self._server.close()
            for descriptor in unused:
                os.close(descriptor)
            children = Children(*WAKERS)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
            rehearse()
            _, descriptors = _received(told, len(BEGIN))
            told.close()
            children.told_to_end()  # whatever a command before this one has told us is forgotten
            if len(descriptors) == DESCRIPTORS and os.getppid() == fork_server:
                supervise(fork_server, children, *descriptors)
                os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)


class _Waiting:
    """A supervisor that is there before its command."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel

    def begin(self, descriptors: list[int]) -> None:
        """Give it what it needs; if it is dead, that is seen when it is reaped."""
        try:
            socket.send_fds(self._channel, [BEGIN], descriptors)
            os.kill(self.pid, signal.SIGCONT)  # a command that ran before may have stopped it
        except OSError:
            pass
        self._channel.close()

    def close(self) -> None:
        self._channel.close()


def _received(sender: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """The next message, and the descriptors that it came with."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    message, descriptors, _, _ = socket.recv_fds(sender, size, DESCRIPTORS, flags)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return message, descriptors


def _inherited(pid: int) -> tuple[object, ...]:
    """What commands inherit from a process, and one of them can change for all that follow."""
    priority = os.getpriority(os.PRIO_PROCESS, pid)
    if sys.platform != "linux":
        return *map(resource.getrlimit, LIMITS), priority
    limits = (resource.prlimit(pid, each) for each in LIMITS)
    return *limits, priority, os.sched_getscheduler(pid), os.sched_getaffinity(pid)
