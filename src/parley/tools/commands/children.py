"""The children of one process: to be told when they end, to find them all, to kill them.

Needs the standard library alone. Knows nothing of commands: the fork server and the supervisors use it.
"""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Final

__all__ = ["Children", "kill_group"]

PLAIN_ATTEMPTS: Final = 3
"""Enough for everything that does not fork on and on."""
LIST_BYTES: Final = 64 * 1024


class Children:
    """All of this process. A signal that wakes it is to have no other meaning."""

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
        is_told = False
        try:
            while signals := os.read(self._woken, select.PIPE_BUF):
                is_told |= signal.SIGTERM in signals
        except BlockingIOError:
            pass
        return is_told

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
            kill_group(group)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # not a child, and dead by now
    except PermissionError:
        return False
    return True


def kill_group(group: int) -> None:
    """Kill all of a group in one instant, in which none of them can fork."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # none is left, or none is ours to kill
