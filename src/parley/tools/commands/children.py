"""The children of the current process: waits for them, finds them all and kills them.

Uses the standard library alone, because the fork server and the supervisors load it. Knows nothing of commands.
"""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False  # as in `typing`, whose import would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Final

__all__ = ["Children", "kill_group"]

PLAIN_ATTEMPTS: Final = 3
"""How often children are killed without stopping them first. Only processes that fork without end need more
attempts.
"""
LIST_BYTES: Final = 64 * 1024


class Children:
    """All children of the current process, and the signals that wake it."""

    def __init__(self, *wakers: signal.Signals) -> None:
        """Replace the handlers of the signals `wakers`, which must have no other purpose."""
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in wakers:
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
        """Return True if SIGTERM has arrived, and discard all signals received so far."""
        is_told = False
        try:
            while signals := os.read(self._woken, select.PIPE_BUF):
                is_told |= signal.SIGTERM in signals
        except BlockingIOError:
            pass
        return is_told

    def reap(self) -> list[tuple[int, int]]:
        """Return the children that have ended since the last call, with their wait statuses."""
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
        """Kill all children except `spare`, and their process groups; return False if there was no child to kill.

        A process that changed its user cannot be killed and does not count. On systems that do not list children,
        the processes in `known` are killed. Call this method after `reap`, and again whenever a child has ended,
        until it returns False: the children of a killed process become children of the current process.
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
        """Stop these processes and all of their descendants; return all that were stopped.

        Used if processes fork faster than they are killed. A stopped process cannot fork, and still counts towards
        a limit of processes. Each process is stopped before its children are listed. Children whose parent ends
        meanwhile are missed, and the next attempt finds them.
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
                pass  # it has ended, or runs as another user
        return found

    def _pids(self) -> list[int]:
        """Return all children. Only reaping removes a child, so none is missed while the list is read."""
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
    """Kill a process and its process group; return False if it runs as another user."""
    try:
        if (group := os.getpgid(pid)) != os.getpgrp():
            kill_group(group)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # a descendant that has ended meanwhile
    except PermissionError:
        return False
    return True


def kill_group(group: int) -> None:
    """Kill a process group atomically, so that none of its processes can fork in between."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # none is left, or all run as another user
