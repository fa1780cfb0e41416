"""Checks the file system of a home, detects lost database files, and writes files atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import time
from contextlib import suppress
from secrets import token_hex
from typing import Final, Self

from parley.common.guarded_files import Identity, identity_of
from parley.common.os_errors import os_detail
from parley.errors import BadHome

__all__ = [
    "DATABASE",
    "LOG",
    "NETWORK_FILE_SYSTEMS",
    "SHARED_MEMORY",
    "AtomicFile",
    "DatabaseFiles",
    "directory_of",
    "file_states",
    "file_system",
    "log_bytes",
    "prepare_home",
    "sync_directory",
]

DATABASE: Final = "parley.db"
LOG: Final = f"{DATABASE}-wal"
SHARED_MEMORY: Final = f"{DATABASE}-shm"

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.curlftpfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    }
)
"""File systems that are shared between several computers, or between a computer and its virtual machines. A home on
such a file system is refused with `BadHome`, because processes on different computers do not see each other's locks
and shared memory. FUSE file systems that are not listed here are usually local, and can be used.
"""


def log_bytes(home: str) -> int:
    """Return the size of the write-ahead log of a home, in bytes.

    Raises:
        OSError: the home has no write-ahead log.
    """
    return os.path.getsize(os.path.join(home, LOG))


# --- the directory -----------------------------------------------------------------------


def prepare_home(home: str) -> None:
    """Create the home if it does not exist.

    Raises:
        BadHome: the home cannot be created, or is on a network file system.
    """
    try:
        is_new = not os.path.isdir(home)
        os.makedirs(home, mode=0o700, exist_ok=True)
        if is_new:
            sync_directory(os.path.dirname(os.path.abspath(home)))
        device = os.stat(home).st_dev
    except OSError as error:
        raise BadHome(home, f"the home cannot be created: {os_detail(error)}") from error
    found = file_system(_mounts(), os.major(device), os.minor(device))
    if found in NETWORK_FILE_SYSTEMS:
        raise BadHome(
            home,
            f"conversations cannot be stored on a network file system ({found}); set PARLEY_HOME to a local one",
        )


def file_system(mounts: str, major: int, minor: int) -> str | None:
    """Return the type of the file system on the device with the numbers `major` and `minor`; None if the device is
    not listed in `mounts`.

    `mounts` is the content of /proc/self/mountinfo.
    """
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split(" ")[2:3] == [f"{major}:{minor}"]:
            return source.split(" ")[0]
    return None


def sync_directory(path: str) -> None:
    """Sync the directory `path` to the disk, so that the names of its files survive a power failure. Do nothing if
    the directory is not readable.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def directory_of(path: str) -> str:
    """Return the directory part of a path, or `.` for a bare name."""
    return os.path.dirname(path) or os.curdir


def _mounts() -> str:
    """Return the content of /proc/self/mountinfo; empty if the file cannot be read."""
    if sys.platform != "linux":
        return ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# --- the database ------------------------------------------------------------------------

SECOND_NS: Final = 1_000_000_000
SETTLING_NS: Final = SECOND_NS // 10
"""The time, in nanoseconds, within which two changes of a directory may result in the same modification time. It is
longer than a tick of the kernel's clock.
"""
COARSE_SETTLING_NS: Final = 3 * SECOND_NS
"""The time, in nanoseconds, that replaces `SETTLING_NS` on a file system that records modification times only in
whole seconds. Within this time, two changes of a directory may result in the same modification time.
"""


class DatabaseFiles:
    """The identities of the three database files: the database, its write-ahead log and its shared memory. The
    identity of a file consists of its device and its inode.

    The identities are used to detect that a file was removed or replaced. Without this check, SQLite would continue
    to write to the old file, which no other process reads.

    The check runs for each read and write, but it examines the files themselves only if the directory has changed.
    On recent Linux kernels, each `stat` of the write-ahead log makes the next write to the log slower, because the
    kernel then records a new modification time for that write.
    """

    def __init__(self, home: str) -> None:
        """Record the identities of the files in `home`.

        Raises:
            OSError: one of the files does not exist.
        """
        self._home = home
        paths = [(name, os.path.join(home, name)) for name in (DATABASE, LOG, SHARED_MEMORY)]
        self._files = [(name, path, identity_of(os.stat(path))) for name, path in paths]
        # SQLite holds no locks on the log file itself, so closing this descriptor releases no locks.
        self._log = os.open(os.path.join(home, LOG), os.O_RDONLY | os.O_CLOEXEC)
        self._unchanged: tuple[int, ...] | None = None
        """The state of the home directory at the last check that found all files in place; None if the next check
        must examine the files.

        The value is also None if the directory changed less than `SETTLING_NS` before the check, because a second
        change could have left the same state.
        """

    def close(self) -> None:
        os.close(self._log)

    def changed(self, *, has_written: bool) -> list[str]:
        """Return the names of the database files that were removed or replaced.

        `has_written` is True if this process has written to the write-ahead log; an empty log then counts as
        removed.
        """
        directory = self._directory()
        if directory is None or directory != self._unchanged:
            if changed := [name for name, path, identity in self._files if not _is_in_place(path, identity)]:
                return changed
            if directory is not None:
                is_coarse = not any(changed_at % SECOND_NS for changed_at in directory[2:])
                settling = COARSE_SETTLING_NS if is_coarse else SETTLING_NS
                is_settled = time.time_ns() - max(directory[2:]) > settling
                self._unchanged = directory if is_settled else None
        return [LOG] if has_written and not os.lseek(self._log, 0, os.SEEK_END) else []

    def _directory(self) -> tuple[int, ...] | None:
        """Return the identity and the change times of the home directory, for comparison; None if the directory
        does not exist.
        """
        try:
            found = os.stat(self._home)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _is_in_place(path: str, identity: Identity) -> bool:
    try:
        return identity_of(os.stat(path)) == identity
    except OSError:
        return False


def file_states(home: str) -> list[tuple[int, int] | None]:
    """Return the size and the modification time of the database, its write-ahead log and its shared memory; None
    for a file that does not exist.

    The sizes and times are used to detect writes by other processes.
    """
    found: list[tuple[int, int] | None] = []
    for name in (DATABASE, LOG, SHARED_MEMORY):
        try:
            status = os.stat(os.path.join(home, name))
        except OSError:
            found.append(None)
        else:
            found.append((status.st_size, status.st_mtime_ns))
    return found


# --- atomic files ------------------------------------------------------------------------

_SUFFIXES: Final = ("", "-journal", "-wal", "-shm")
"""The suffixes of the files of an SQLite database: the database itself, its journal, its write-ahead log and its
shared memory.
"""

_LEFTOVER: Final = re.compile(rf"(\.parley-[0-9a-f]{{16}}\.part)(?:{'|'.join(_SUFFIXES)})")

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""The values of `errno` for an attempt to create a hard link on a file system without hard links."""


class AtomicFile:
    """A context manager for a file that appears at `path` only when it is complete.

    The `with` block writes to the temporary file `name` in the same directory and then calls `commit`. At the end
    of the block, the temporary file is removed. The writer holds a lock on the temporary file, so that the next
    writer in this directory can recognise and remove the temporary files of a killed process.

    Raises:
        OSError: the directory is not writable.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self.name = ""

    def __enter__(self) -> Self:
        directory = directory_of(self._path)
        with suppress(PermissionError):  # the directory may be writable but not readable
            for name in {match[1] for one in os.listdir(directory) if (match := _LEFTOVER.fullmatch(one))}:
                _remove_if_abandoned(os.path.join(directory, name))
        while self._fd < 0:
            self.name = os.path.join(os.path.dirname(self._path), f".parley-{token_hex(8)}.part")
            self._fd = os.open(self.name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # on a file system without locks, files of killed processes are never removed
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            if not os.fstat(self._fd).st_nlink:  # another process removed the file before it was locked
                self._close()
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self.name)
        self._close()

    def commit(self, *, overwrite: bool) -> None:
        """Sync the file and give it its final name.

        Raises:
            FileExistsError: a file exists at `path`, and `overwrite` is false.
            OSError: the file cannot be renamed.
        """
        os.fsync(self._fd)
        if overwrite:
            os.replace(self.name, self._path)
            return
        try:
            os.link(self.name, self._path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self._path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path) from None
            os.rename(self.name, self._path)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def _remove_if_abandoned(name: str) -> None:
    try:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        _remove(name)  # this also removes the files that SQLite created beside the file
        return
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(name)
    except OSError:
        pass  # a running process holds the lock on the file
    finally:
        os.close(fd)


def _remove(name: str) -> None:
    """Remove a temporary file. If SQLite created a database with this name, also remove the other files of the
    database.
    """
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(name + suffix)
