"""Checks that a clone contains no file that makes Git run programs, and adds objects of a worktree to the clone.

The server writes the configuration of a clone, and Git writes objects and refs. Any other file in a clone was
created by a command of a model.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from parley.workspaces.git import GitFailed

__all__ = ["CONFIG", "add_objects", "check_clone", "check_worktree", "read_small_file", "write_new_file"]

CONFIG: Final = b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
"""The complete configuration of a clone. All other settings are in environment variables."""

_DIRECTORIES: Final = ("objects", "refs", "objects/info", "objects/pack")
_ALLOWED: Final = {
    "": {"HEAD", "config", "objects", "refs", "worktrees", "packed-refs", "info", "logs", "gc.log", "gc.pid"},
    "info": {"refs"},
    "objects/info": {"packs", "commit-graph", "commit-graphs"},
}
"""Maps each directory of a clone to the names that it may contain. The server creates some of these files and
directories, and `git gc` creates the others.
"""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_PIECE_BYTES: Final = 1024 * 1024
_SMALL_BYTES: Final = 1000


def check_clone(clone: str) -> None:
    """Check that a clone is a directory of this user with the configuration that the server has written, and
    without other files that control Git.

    Raises:
        GitFailed: the clone was changed. The message names the file.
        OSError: the clone cannot be read.
    """
    name = os.path.basename(clone)
    with _opened(clone) as top:
        found = os.fstat(top)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise GitFailed(f"the clone {name} was changed: other users can write to it")
        for directory in _DIRECTORIES:
            if not stat.S_ISDIR(os.lstat(directory, dir_fd=top).st_mode):
                raise GitFailed(f"the clone {name} was changed: {directory} is not a directory")
        for directory, allowed in _ALLOWED.items():
            for one in _names_in(top, directory):
                path = os.path.join(directory, one)
                if stat.S_ISLNK(os.lstat(path, dir_fd=top).st_mode) or not (
                    one in allowed or one.endswith(".lock")
                ):
                    raise GitFailed(f"the clone {name} was changed: Parley did not create {path}")
        config = os.open("config", _FILE, dir_fd=top)
        try:
            if not stat.S_ISREG(os.fstat(config).st_mode) or os.read(config, len(CONFIG) + 1) != CONFIG:
                raise GitFailed(f"the clone {name} was changed: Parley did not write its file config")
        finally:
            os.close(config)


def check_worktree(path: str) -> None:
    """Check that a worktree is a directory of this user, and that neither the worktree nor its parent directory is
    a symbolic link.

    Raises:
        GitFailed: the worktree was replaced.
        OSError: the worktree cannot be read.
    """
    parent, name = os.path.split(path)
    try:
        with _opened(parent) as folder:
            worktree = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                is_own = os.fstat(worktree).st_uid == os.geteuid()
            finally:
                os.close(worktree)
    except NotADirectoryError:
        is_own = False
    if not is_own:
        raise GitFailed("the worktree was replaced: it is not a directory that Parley created")


def add_objects(source: str, clone: str) -> None:
    """Move the objects in the directory `source` into a clone. Each object is moved only if its content matches its
    name.

    Raises:
        GitFailed: an object does not match its name.
        OSError: an object cannot be read or moved.
    """
    with _opened(source) as private, _opened(os.path.join(clone, "objects")) as objects:
        for directory in os.listdir(private):
            if re.fullmatch("[0-9a-f]{2}", directory) is None:
                continue
            with _opened(directory, private) as folder:
                names = [one for one in os.listdir(folder) if re.fullmatch("[0-9a-f]{38}|[0-9a-f]{62}", one)]
                if not names:
                    continue
                try:
                    os.mkdir(directory, 0o755, dir_fd=objects)
                except FileExistsError:
                    pass
                with _opened(directory, objects) as target:
                    for name in names:
                        if not _matches(folder, name, directory + name):
                            raise GitFailed(f"the object {directory}{name} does not match its name")
                        os.rename(name, name, src_dir_fd=folder, dst_dir_fd=target)


def read_small_file(path: str) -> bytes | None:
    """Return the first 1,000 bytes of a file; None if there is no regular file at the path.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        descriptor = os.open(path, _FILE)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    try:
        return os.read(descriptor, _SMALL_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def write_new_file(folder: str, name: str, content: bytes) -> None:
    """Write the file `name` in the directory `folder`, completely or not at all. If the file exists, replace it."""
    with _opened(folder) as descriptor:
        partial = f"{name}.parley"
        try:
            os.unlink(partial, dir_fd=descriptor)
        except FileNotFoundError:
            pass
        made = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=descriptor)
        with open(made, "wb") as file:
            file.write(content)
        os.rename(partial, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


@contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int]:
    """Yield the descriptor of a directory, and close the descriptor after the `with` block. The directory must not
    be a symbolic link. If `folder` is given, `path` is relative to the directory with this descriptor.
    """
    descriptor = os.open(path, _DIRECTORY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names_in(top: int, directory: str) -> list[str]:
    if not directory:
        return os.listdir(top)
    try:
        with _opened(directory, top) as folder:
            return os.listdir(folder)
    except FileNotFoundError:
        return []


def _matches(folder: int, name: str, wanted: str) -> bool:
    digest = hashlib.sha1(usedforsecurity=False) if len(wanted) == 40 else hashlib.sha256()
    with open(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return False
        unpacked = zlib.decompressobj()
        try:
            while piece := file.read(_PIECE_BYTES):
                while piece:
                    digest.update(unpacked.decompress(piece, _PIECE_BYTES))
                    piece = unpacked.unconsumed_tail
        except zlib.error:
            return False
        digest.update(unpacked.flush())
        return unpacked.eof and not unpacked.unused_data and digest.hexdigest() == wanted
