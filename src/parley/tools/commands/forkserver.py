"""The process that starts commands, by forking a supervisor for each of them.

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
from .restrict import prctl
from .scope import enter
from .supervisor import WAKERS, send, supervise

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from typing import Final

__all__ = ["main"]

DESCRIPTORS: Final = 3
"""Those of a supervisor: control, stdout, stderr."""
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
                    send(self._server, FALLEN, number)
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
                send(self._server, GIVES_WAY, number)
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
            send(self._server, GIVES_WAY, number)
            executor = socket.socket(fileno=descriptors[0])
            send(executor, FAILED, error.errno or errno.EAGAIN)
            executor.detach()
            return
        if pid:
            self._supervisors[pid] = number
            return
        try:
            self._children.close()
            self._server.close()
            children = Children(*WAKERS)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
            if os.getppid() == us:
                supervise(us, children, *descriptors)
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
