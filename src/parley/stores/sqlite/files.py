"""The files of a home: checks the file system of the home, detects lost database files, and writes files
atomically.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
from contextlib import suppress
from secrets import token_hex
from typing import Final, Self

from parley.common.guarded_files import identity_of
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
"""File systems that several computers share, or a computer and its virtual machines. They are refused, because
processes on different computers do not see each other's locks and shared memory. Other FUSE file systems are
usually local, and are allowed.
"""


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
    """Return the type of the file system on a device; None if the device is not listed.

    `mounts` is the text of /proc/self/mountinfo.
    """
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split(" ")[2:3] == [f"{major}:{minor}"]:
            return source.split(" ")[0]
    return None


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power failure. Do nothing if the directory is not readable."""
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
    """Return the text of /proc/self/mountinfo; empty if it cannot be read."""
    if sys.platform != "linux":
        return ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# --- the database ------------------------------------------------------------------------


class DatabaseFiles:
    """The database, its log and its shared memory, each identified by device and inode.

    They are used to detect that a file was removed or replaced. Without this check, SQLite would continue to write
    to the old file, which no other process reads.
    """

    def __init__(self, home: str) -> None:
        """Record the identities of the files. Raises OSError if one of them does not exist."""
        paths = [(name, os.path.join(home, name)) for name in (DATABASE, LOG, SHARED_MEMORY)]
        self._files = [(name, path, *identity_of(os.stat(path))) for name, path in paths]
        self._log = [one for one in self._files if one[0] == LOG]

    def changed(self, *, has_written: bool, only_log: bool = False) -> list[str]:
        """Return the names of the database files that were removed or replaced. If `only_log` is true, check only
        the log.

        If `has_written` is true, this process has written, and an empty log counts as removed.
        """
        changed: list[str] = []
        for name, path, device, inode in (
            self._log if only_log else self._files
        ):  # called for each read and write, so no helper functions
            try:
                found = os.stat(path)
            except OSError:
                changed.append(name)
                continue
            is_emptied = not found.st_size and has_written and name == LOG
            if found.st_ino != inode or found.st_dev != device or is_emptied:
                changed.append(name)
        return changed


def file_states(home: str) -> list[tuple[int, int] | None]:
    """Return the size and the modification time of each of the three database files; None for a file that does not
    exist.

    They are used to detect writes by other processes.
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
"""Suffixes of the files that SQLite may create beside a database file."""

_LEFTOVER: Final = re.compile(rf"(\.parley-[0-9a-f]{{16}}\.part)(?:{'|'.join(_SUFFIXES)})")

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""The errno values of file systems without hard links."""


class AtomicFile:
    """A context manager for a file that appears at `path` only when it is complete.

    The block writes to a temporary file `name` in the same directory and then calls `commit`. The temporary file is
    removed at the end of the block. The writer holds a lock on the temporary file, so that the next writer in that
    directory can recognise and remove the files of a killed process.

    Raises:
        OSError: the directory is not writable.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self.name = ""

    def __enter__(self) -> Self:
        directory = directory_of(self._path)
        with suppress(PermissionError):  # a directory can be writable but not readable
            for name in {match[1] for one in os.listdir(directory) if (match := _LEFTOVER.fullmatch(one))}:
                _remove_if_abandoned(os.path.join(directory, name))
        while self._fd < 0:
            self.name = os.path.join(os.path.dirname(self._path), f".parley-{token_hex(8)}.part")
            self._fd = os.open(self.name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # on a file system without locks, leftovers are never removed
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
            FileExistsError: the path exists, and `overwrite` is false.
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
        _remove(name)  # removes the files that SQLite created beside it
        return
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(name)
    except OSError:
        pass  # a running process holds the lock
    finally:
        os.close(fd)


def _remove(name: str) -> None:
    """Remove a temporary file and the files that SQLite created beside it."""
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(name + suffix)
