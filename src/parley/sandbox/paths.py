"""Functions about paths and files that the modules of this package share. They change nothing."""

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
    "is_below_any",
    "is_of_another_user",
    "mode_of",
    "open_directory",
    "parents",
    "real_path",
    "sorted_by_depth",
    "status_of",
]

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH
"""A descriptor for these flags needs no right to list the directory."""


def parents(path: str) -> Iterator[str]:
    """Yield all directories that a path lies in, the nearest first."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def depth(path: str) -> tuple[int, str]:
    """Return a sort key: a directory comes before everything in it."""
    return len([part for part in path.split("/") if part]), path


def sorted_by_depth(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(paths), key=depth))


def is_below_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def innermost(path: str, folders: Iterable[str]) -> str | None:
    """Return the deepest of the folders that a path is or lies in."""
    return max((folder for folder in folders if is_below(path, folder)), key=depth, default=None)


def real_path(path: str) -> str | None:
    """Return the path with all links resolved; None if it does not exist or the server cannot reach it."""
    if not os.path.lexists(path):  # cheaper than `realpath`, which looks at each directory on the way
        return None
    try:
        return os.path.realpath(path, strict=True)
    except (OSError, ValueError):
        return None


def status_of(path: str) -> os.stat_result:
    """Return the status of a file that must exist.

    Raises:
        SandboxUnavailable: the system refuses.
    """
    try:
        return os.stat(path)
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(path)} cannot be examined: {error.strerror}") from None


def mode_of(path: str) -> int | None:
    """Return the mode of a file, not following a link; None if it does not exist.

    Raises:
        SandboxUnavailable: the system refuses.
    """
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(path)} cannot be examined: {error.strerror}") from None


def belongs_to_another(found: os.stat_result, folder: os.stat_result) -> bool:
    """Return whether another user created a file in a directory to which all users may write."""
    return bool(folder.st_mode & stat.S_IWOTH) and found.st_uid != os.geteuid()


def is_of_another_user(path: str, folder: os.stat_result) -> bool:
    """Return whether another user created the file in `folder`, which everyone may write to; False if the file
    cannot be examined.
    """
    try:
        return bool(folder.st_mode & stat.S_IWOTH) and belongs_to_another(os.lstat(path), folder)
    except OSError:
        return False


def open_directory(path: str) -> int:
    """Return a descriptor of a directory. No link in the path is followed.

    Raises:
        OSError: it does not exist, or a part of the path is a link.
    """
    folder = os.open("/", _DIRECTORY)
    for part in filter(None, path.split("/")):
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder
