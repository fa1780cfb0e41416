"""Waits for, lists and kills the children of the current process.

This module imports only the standard library, because the fork server and the supervisors load it.
"""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Final

__all__ = ["Children", "kill_group"]

PLAIN_ATTEMPTS: Final = 3
"""The number of attempts to kill the children without stopping them first. Further attempts stop all processes
before killing them, which is necessary only if the processes keep forking.
"""
LIST_BYTES: Final = 64 * 1024


class Children:
    """All children of the current process, and a pipe that becomes readable when a signal arrives."""

    def __init__(self, *wake_signals: signal.Signals) -> None:
        """Install handlers for `wake_signals`, so that these signals make the pipe readable. The process must not
        use these signals for anything else.
        """
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in wake_signals:
            signal.signal(number, lambda _number, _frame: None)
        self._list = _open_list_of_children()
        self._childless = False
        self._attempts = 0

    def close(self) -> None:
        for descriptor in (self._woken, self._wake, self._list):
            if descriptor is not None:
                os.close(descriptor)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a child has ended or a signal has arrived."""
        return self._woken

    def received_sigterm(self) -> bool:
        """Return whether SIGTERM has arrived since the last call, and discard all signals received so far."""
        has_sigterm = False
        try:
            while signals := os.read(self._woken, select.PIPE_BUF):
                has_sigterm |= signal.SIGTERM in signals
        except BlockingIOError:
            pass
        return has_sigterm

    def reap(self) -> list[tuple[int, int]]:
        """Return the process ids and wait statuses of the children that have ended since the last call."""
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
        """Kill all children except those in `spare`, and the process groups of the killed children. Return False if
        there was no child to kill.

        A process that has changed its user cannot be killed and does not count as a child. On systems without a
        list of children in `/proc`, only the processes in `known` are killed. The children of a killed process
        become children of the current process. Therefore, whenever a child has ended, call `reap` and then this
        method, until this method returns False.
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
        """Stop the processes `children` and all of their descendants with SIGSTOP. Return the ids of the stopped
        processes.

        Stopping is necessary if processes fork faster than they can be killed. A stopped process cannot fork, but
        still counts towards a limit on processes. Each process is stopped before its children are listed. If a
        process ends before its children are listed, they are missed until the next attempt.
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
                pass  # the process has ended, or runs as another user
        return found

    def _pids(self) -> list[int]:
        """Return the process ids of all children. A child is removed from the list only when it is reaped, so no
        child is missed while the list is being read.
        """
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
        return None  # the kernel does not list children


def _kill(pid: int) -> bool:
    """Kill a process and its process group. Return False if the process runs as another user."""
    try:
        if (group := os.getpgid(pid)) != os.getpgrp():
            kill_group(group)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # a descendant has ended in the meantime
    except PermissionError:
        return False
    return True


def kill_group(group: int) -> None:
    """Kill all processes of a process group with one signal, so that none of them can fork in the meantime."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # no process is left, or all run as another user
