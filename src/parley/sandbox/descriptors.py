"""Directories by descriptors: no link is followed on the way to one, and one that was shut is opened meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

__all__ = [
    "change_mode",
    "entered",
    "found",
    "listed_in",
    "listed_inside",
    "opened_in",
    "opened_inside",
    "opened_up",
    "reached",
]

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REACH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_LOOKING: Final = stat.S_IRUSR | stat.S_IXUSR


def found(name: str, folder: int) -> os.stat_result | None:
    """What the system knows of something in a directory."""
    try:
        return os.lstat(name, dir_fd=folder)
    except OSError:
        return None


def opened_in(name: str, held_open: ExitStack, folder: int) -> int:
    """A directory in another, to be listed."""
    descriptor = os.open(name, _OPEN, dir_fd=folder)
    held_open.callback(os.close, descriptor)
    return descriptor


def opened_inside(path: str, held_open: ExitStack, folder: int) -> int:
    """As `opened_in`, at any depth."""
    for each in filter(None, path.split("/")):
        folder = opened_in(each, held_open, folder)
    return folder


def entered(name: str, held_open: ExitStack, folder: int) -> int:
    """A directory in another, to go on from. For as long as it is held it is not shut."""
    descriptor = os.open(name, _REACH | os.O_DIRECTORY, dir_fd=folder)
    held_open.callback(os.close, descriptor)
    held_open.enter_context(opened_up(descriptor))
    return descriptor


def listed_in(name: str, held_open: ExitStack, folder: int) -> int:
    """A directory in another, to be listed and to go on from. For as long as it is held it is not shut to that."""
    try:
        descriptor = opened_in(name, held_open, folder)
    except PermissionError:
        return opened_in(".", held_open, entered(name, held_open, folder))
    held_open.enter_context(opened_up(descriptor, _LOOKING))
    return descriptor


def listed_inside(path: str, held_open: ExitStack, folder: int) -> int:
    """As `listed_in`, at any depth; of no path at all, the directory itself."""
    for each in path.split("/") if path else ["."]:
        folder = listed_in(each, held_open, folder)
    return folder


@contextmanager
def reached(name: str, folder: int) -> Iterator[int]:
    """A descriptor of whatever is there, which need not be open to us."""
    descriptor = os.open(name, _REACH, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_up(descriptor: int, needed: int = stat.S_IRWXU) -> Iterator[None]:
    """Be let into a directory that may be shut, and that is as it was afterwards."""
    status = os.fstat(descriptor)
    is_shut = stat.S_ISDIR(status.st_mode) and status.st_mode & needed != needed
    if not is_shut or status.st_uid != os.geteuid():
        yield
        return
    mode = stat.S_IMODE(status.st_mode)
    change_mode(descriptor, mode | stat.S_IRWXU)
    try:
        yield
    finally:
        change_mode(descriptor, mode)


def change_mode(descriptor: int, mode: int) -> None:
    """Also of what was not opened to be read."""
    os.chmod(f"/proc/self/fd/{descriptor}", mode)
