"""Reads, compares and restores the entries of a snapshot: files, symbolic links and directories. Each directory is
opened relative to the descriptor of its parent directory.

No symbolic link in the path of an entry is followed. `snapshot` decides which files are protected.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from parley.common.guarded_files import DirFds, Identity, identity_of

__all__ = [
    "ABSENT",
    "Absent",
    "Directory",
    "Entry",
    "File",
    "Link",
    "create",
    "is_same",
    "move_aside",
    "names_in",
    "read_entry",
    "set_mode",
    "with_mode",
]

_MOVED_ASIDE: Final = ".refused-"
"""The name prefix of a file that was moved aside. Git and coding agents do not read files with this prefix."""

_MAX_NAME_BYTES: Final = 255
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Absent(Struct, frozen=True):
    """The entry of a path at which no file or directory exists."""


class File(Struct, frozen=True, kw_only=True):
    mode: int
    content: bytes | None
    """The content; None if the file cannot be read or exceeds the size limit that was passed to `read_entry`."""
    links: int
    """The number of hard links to the file."""
    owner: tuple[int, int]
    """The user id and group id of the file."""
    has_writer: bool
    """True if a process has the file open for writing; False if no process does, or if the file system does not
    report it.
    """


class Link(Struct, frozen=True):
    target: str


class Directory(Struct, frozen=True, kw_only=True):
    mode: int
    identity: Identity | None
    """The identity of the directory, which shows whether the directory was replaced. None if the snapshot contains
    all files in the directory: another directory with the same entries then counts as unchanged, and a missing
    directory is created again.
    """
    names: frozenset[str] | None = None
    """The names of the protected entries. None if the entries were not listed: commands may then add entries."""
    data: frozenset[str] = frozenset()
    """The names of the entries that are not protected."""


class Special(Struct, frozen=True):
    """A pipe, a socket or a device."""

    kind: int
    device: int


Entry = Absent | File | Link | Directory | Special

ABSENT: Final = Absent()


def read_entry(folders: DirFds, path: str, *, at_most: int) -> Entry:
    """Return the entry at a path. The content of a file with more than `at_most` bytes is None.

    Raises:
        OSError: the directory that contains the path cannot be opened, or is a symbolic link.
    """
    folder, name = os.path.split(path)
    try:
        parent = folders.open(folder)
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return ABSENT
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return Link(os.readlink(name, dir_fd=parent))
    if stat.S_ISDIR(found.st_mode):
        return Directory(mode=mode, identity=identity_of(found))
    if not stat.S_ISREG(found.st_mode):
        return Special(stat.S_IFMT(found.st_mode), found.st_rdev)
    content, has_writer = _content(name, parent, at_most)
    owner = (found.st_uid, found.st_gid)
    return File(mode=mode, content=content, links=found.st_nlink, owner=owner, has_writer=has_writer)


def _content(name: str, folder: int, at_most: int) -> tuple[bytes | None, bool]:
    """Return the content of a regular file, and whether a process has the file open for writing.

    The returned content is None if the file has more than `at_most` bytes or cannot be read.

    The content is read after the check for writers, so that it includes the changes of a writer that closed the
    file before the check.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        return None, False
    try:
        has_writer = _has_writer(descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            return None, has_writer
        content = b""
        while len(content) <= found.st_size and (piece := os.read(descriptor, found.st_size + 1 - len(content))):
            content += piece
        return (content if len(content) <= found.st_size else None), has_writer
    finally:
        os.close(descriptor)


def _has_writer(descriptor: int) -> bool:
    """Return whether a process has this file open for writing; False if the file system does not report it.

    The kernel grants a read lease only on a file that no process has open for writing.
    """
    try:
        # If a process opens the file while the lease is held, the kernel sends a signal. The default signal, SIGIO,
        # would end the server, so SIGURG is used.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        pass  # the file system has no leases, or the file belongs to another user
    return False


def names_in(folders: DirFds, path: str, *, at_most: int) -> frozenset[str] | None:
    """Return the names of the entries in a directory; None if there are more than `at_most` entries."""
    names: set[str] = set()
    descriptor = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=folders.open(path))
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(names) == at_most:
                    return None
                names.add(entry.name)
    finally:
        os.close(descriptor)
    return frozenset(names)


def is_same(before: Entry, now: Entry) -> bool:
    if isinstance(before, File) and isinstance(now, File):
        # The file could be changed later through a new hard link, or by a process that has it open for writing.
        can_change = now.links > before.links or now.has_writer > before.has_writer
        return (before.mode, before.content) == (now.mode, now.content) and not can_change
    if isinstance(before, Directory) and isinstance(now, Directory):
        return before.mode == now.mode and before.identity in (None, now.identity)
    return before == now


def with_mode(entry: Entry, mode: int) -> Entry:
    return replace(entry, mode=mode) if isinstance(entry, Directory) else entry


def create(path: str, entry: Entry) -> bool:
    """Create a file, symbolic link or directory from the data in `entry`. Return False if the entry does not
    contain the necessary data.

    An existing file or symbolic link is replaced atomically.
    """
    folder, name = os.path.split(path)
    new = f".new-{os.urandom(8).hex()}"
    with DirFds() as folders:
        parent = folders.open(folder)
        match entry:
            case Directory(identity=None):
                os.mkdir(name, mode=0o700, dir_fd=parent)
                return True
            case File(content=bytes(content), mode=mode, owner=owner):
                descriptor = os.open(new, _CREATE, mode=0o600, dir_fd=parent)
                try:
                    with open(descriptor, "wb") as file:
                        file.write(content)
                        file.flush()
                        found = os.fstat(descriptor)
                        if (found.st_uid, found.st_gid) != owner:
                            os.fchown(descriptor, *owner)
                        os.fchmod(descriptor, mode)
                        os.fsync(descriptor)
                    os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
                except BaseException:
                    os.unlink(new, dir_fd=parent)
                    raise
                return True
            case Link(target):
                os.symlink(target, new, dir_fd=parent)
                os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
                return True
            case _:
                return False


def set_mode(path: str, entry: Entry) -> None:
    """Set the mode of a directory. Do nothing for a file or symbolic link, because `create` sets its mode."""
    if not isinstance(entry, Directory):
        return
    folder, name = os.path.split(path)
    with DirFds() as folders:
        _change_mode(name, folders.open(folder), entry.mode)


def _change_mode(name: str, parent: int, mode: int) -> None:
    descriptor = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def move_aside(path: str, target: str) -> str:
    """Move a file or directory into the directory `target` under a new name, and return its new path."""
    folder, name = os.path.split(path)
    new = os.fsdecode(os.fsencode(f"{_MOVED_ASIDE}{os.urandom(4).hex()}-{name}")[:_MAX_NAME_BYTES])
    with DirFds() as sources, DirFds() as targets:
        source, destination = sources.open(folder), targets.open(target)
        try:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=destination)
        except PermissionError:  # moving a directory needs the right to write to the directory itself
            if not stat.S_ISDIR(os.lstat(name, dir_fd=source).st_mode):
                raise
            _change_mode(name, source, stat.S_IRWXU)
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=destination)
    return os.path.join(target, new)
