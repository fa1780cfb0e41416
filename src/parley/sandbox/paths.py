"""Functions that examine paths and files, for all modules of this package. The functions change no files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from parley.common.paths import is_below
from parley.errors import SandboxUnavailable
from parley.wire.text import quoted

__all__ = [
    "belongs_to_another",
    "depth",
    "innermost",
    "is_of_another_user",
    "mode_of",
    "open_directory",
    "parents",
    "real_cwd",
    "real_path",
    "sorted_by_depth",
    "status_of",
]

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH
"""Flags for opening a directory. Opening a directory with these flags does not require permission to list it."""


def parents(path: str) -> Iterator[str]:
    """Yield all directories that contain a path, the nearest first."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def depth(path: str) -> tuple[int, str]:
    """Return a sort key by which a directory comes before everything in it."""
    return len([part for part in path.split("/") if part]), path


def sorted_by_depth(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(paths), key=depth))


def innermost(path: str, folders: Iterable[str]) -> str | None:
    """Return the deepest of the `folders` that equals or contains `path`; None if there is no such folder."""
    return max((folder for folder in folders if is_below(path, folder)), key=depth, default=None)


def real_path(path: str) -> str | None:
    """Return the path with all symbolic links resolved; None if the path does not exist or the server cannot reach
    it.
    """
    if not os.path.lexists(path):  # this is cheaper than `realpath`, which examines each directory of the path
        return None
    try:
        return os.path.realpath(path, strict=True)
    except (OSError, ValueError):
        return None


def status_of(path: str) -> os.stat_result:
    """Return the status of a file or directory.

    Raises:
        SandboxUnavailable: the file does not exist or cannot be examined.
    """
    try:
        return os.stat(path)
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(path)} cannot be examined: {error.strerror}") from None


def mode_of(path: str) -> int | None:
    """Return the mode of a file without following a symbolic link; None if the file does not exist.

    Raises:
        SandboxUnavailable: the file cannot be examined.
    """
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(path)} cannot be examined: {error.strerror}") from None


def belongs_to_another(found: os.stat_result, folder: os.stat_result) -> bool:
    """Return whether another user created a file in a directory that all users may write to. `found` is the status
    of the file, and `folder` is the status of the directory.
    """
    return bool(folder.st_mode & stat.S_IWOTH) and found.st_uid != os.geteuid()


def is_of_another_user(path: str, folder: os.stat_result) -> bool:
    """Return whether another user created the file at a path in a directory that all users may write to. `folder`
    is the status of the directory. Return False if the file cannot be examined.
    """
    try:
        return bool(folder.st_mode & stat.S_IWOTH) and belongs_to_another(os.lstat(path), folder)
    except OSError:
        return False


def open_directory(path: str) -> int:
    """Return a descriptor of a directory without following any symbolic link in the path.

    Raises:
        OSError: the directory does not exist, or a part of the path is a symbolic link.
    """
    folder = os.open("/", _DIRECTORY)
    for part in filter(None, path.split("/")):
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def real_cwd(cwd: str) -> str | None:
    """Return the working directory of a command with symbolic links resolved. Return None if the path contains a
    NUL. Starting the command then reports the error.

    Raises:
        SandboxUnavailable: the directory cannot be examined.
    """
    try:
        return os.path.realpath(cwd)
    except ValueError:
        return None
    except OSError as error:
        raise SandboxUnavailable(
            f"the working directory {quoted(cwd)} cannot be examined: {error.strerror}"
        ) from None
