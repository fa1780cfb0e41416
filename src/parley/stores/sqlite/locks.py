"""Locks between the processes of a home. The kernel releases the locks of a process when the process exits, even if
the process is killed.

A process holds the `WriteLock` for one transaction or checkpoint, and other processes wait for it. A process holds
a lease lock for as long as it holds the lease of the conversation; another process that tries to acquire the lease
does not wait, but gets an error. Child processes do not inherit the locks.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from types import TracebackType
from typing import Final, Protocol

from parley.stores.sqlite.lock_holders import holder_of

__all__ = [
    "WRITE_LOCK",
    "ByteRangeLocks",
    "LeaseLocks",
    "LockFiles",
    "WriteLock",
    "open_lease_locks",
    "write_lock_holder",
]

GATE_LOCK: Final = "gate.lock"
WRITE_LOCK: Final = "write.lock"
OWNERS_LOCK: Final = "owners.lock"
OWNERS_DIRECTORY: Final = "owners"

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o600


class WriteLock:
    """The lock that a process holds while it writes to, checkpoints, opens or closes the database.

    The object is a context manager. A process first acquires a second lock, the gate, and releases the gate when it
    has acquired the write lock. A process that has just released the write lock can therefore acquire it again only
    after the processes that are already waiting. No process starves.
    """

    def __init__(self, home: str) -> None:
        self._path = os.path.join(home, WRITE_LOCK)
        self._gate = os.open(os.path.join(home, GATE_LOCK), _FLAGS, _MODE)
        try:
            self._lock = os.open(self._path, _FLAGS, _MODE)
        except OSError:
            os.close(self._gate)
            raise
        self._pid = b"%-10d\n" % os.getpid()
        self.waiting_since: float | None = None
        """The time at which a thread began to wait for the lock, in seconds on the monotonic clock; None if no
        thread of this process is waiting.
        """

    def __enter__(self) -> None:
        self._wait_for(self._gate)
        try:
            self._wait_for(self._lock)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            self.waiting_since = None
        if os.pread(self._lock, len(self._pid), 0) != self._pid:
            try:
                os.pwrite(self._lock, self._pid, 0)
            except OSError:
                pass  # the PID is only a hint for people, and the disk may be full

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._gate)
        os.close(self._lock)

    def _wait_for(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.waiting_since = self.waiting_since or time.monotonic()
            fcntl.flock(fd, fcntl.LOCK_EX)


def write_lock_holder(home: str) -> str | None:
    """Return a description of another process that holds the write lock of a home, or the lock that a process
    acquires before the write lock (the gate of `WriteLock`). Return None if no such process is found.
    """
    return holder_of(os.path.join(home, WRITE_LOCK)) or holder_of(os.path.join(home, GATE_LOCK))


class LeaseLocks(Protocol):
    """The lease locks of a home, one for each conversation. A lock is identified by the row number of its
    conversation.
    """

    def try_acquire(self, row: int) -> bool:
        """Acquire the lock of the given row without waiting, and return True. Return False if another process or
        this object already holds the lock.
        """
        ...

    def release(self, row: int) -> None:
        """Release the lock of the given row. Do nothing if this object does not hold the lock."""
        ...

    def is_held(self, row: int) -> bool:
        """Return whether this object or another process holds the lock of the given row."""
        ...

    def close(self) -> None:
        """Release all locks of this object, and close its files."""
        ...


def open_lease_locks(home: str) -> LeaseLocks:
    """Open the lease locks of a home, without acquiring any: `ByteRangeLocks` on Linux, `LockFiles` on other
    systems.
    """
    return ByteRangeLocks(home) if sys.platform == "linux" else LockFiles(home)


class ByteRangeLocks:
    """Locks on single bytes of one file, one byte for each row number.

    The locks belong to the open file and not to the process. Two objects in one process therefore exclude each
    other, and closing another descriptor of the file releases nothing. Only Linux has such locks (`F_OFD_SETLK`).
    """

    def __init__(self, home: str) -> None:
        self._fd = os.open(os.path.join(home, OWNERS_LOCK), _FLAGS, _MODE)
        self._rows: set[int] = set()

    def try_acquire(self, row: int) -> bool:
        if row in self._rows:
            return False
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _byte(fcntl.F_WRLCK, row))
        except (BlockingIOError, PermissionError):
            return False
        self._rows.add(row)
        return True

    def release(self, row: int) -> None:
        if row in self._rows:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _byte(fcntl.F_UNLCK, row))
            self._rows.discard(row)

    def is_held(self, row: int) -> bool:
        if row in self._rows:
            return True
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _byte(fcntl.F_WRLCK, row))
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        self._rows.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_FLOCK: Final = struct.Struct("@hhqqi4x")
"""The structure `struct flock` on 64-bit Linux: type, whence, start, length and pid."""


def _byte(kind: int, row: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, row, 1, 0)


class LockFiles:
    """Locks on whole files, one file for each row number. These locks are used on systems other than Linux, where
    locks on bytes belong to the process.
    """

    def __init__(self, home: str) -> None:
        self._directory = os.path.join(home, OWNERS_DIRECTORY)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        self._files: dict[int, int] = {}

    def try_acquire(self, row: int) -> bool:
        if row in self._files:
            return False
        fd = os.open(self._path(row), _FLAGS, _MODE)
        if not _tried(fd, fcntl.LOCK_EX):
            os.close(fd)
            return False
        self._files[row] = fd
        return True

    def release(self, row: int) -> None:
        if (fd := self._files.pop(row, None)) is not None:
            os.close(fd)

    def is_held(self, row: int) -> bool:
        if row in self._files:
            return True
        try:
            fd = os.open(self._path(row), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _tried(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def close(self) -> None:
        for row in list(self._files):
            self.release(row)

    def _path(self, row: int) -> str:
        return os.path.join(self._directory, f"{row}.lock")


def _tried(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
