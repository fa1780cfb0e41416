"""Directories by descriptor, each reached from the root without following a link, and files in them.

What is done by such a descriptor happens in the directory that was looked at, whatever is moved
or linked in its place meanwhile. Knows directories; what is done in them is the caller's affair.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Self

__all__ = ["Folders", "LinkInTheWay", "read_regular"]

_OPEN_AT_ONCE: Final = 128
"""Descriptors held; a directory beyond that is reached anew, and must be the same as before."""

_LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class LinkInTheWay(OSError):
    """A symbolic link stands where a directory was expected."""

    def __init__(self, path: str) -> None:
        super().__init__(0, f"{path} is a symbolic link")


class Folders:
    """Directories that were reached, by their absolute paths. Close it to let go of them."""

    def __init__(self) -> None:
        self._root = os.open("/", _LOOK)
        self._held: OrderedDict[str, int] = OrderedDict()
        self._seen: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._root, *self._held.values()):
            os.close(descriptor)

    def open(self, path: str) -> int:
        """The descriptor of a directory, good until the next call.

        Raises:
            LinkInTheWay: some part of the path is a symbolic link.
            OSError: it is not there (`filename` says which part), or not a directory, or no longer the same.
        """
        return self._reach(path, lambda parent, name, _: os.open(name, _LOOK, dir_fd=parent))

    def make(self, path: str, *, made: Callable[[str], None]) -> int:
        """Like `open`, and creates what is missing, saying so each time.

        Raises:
            LinkInTheWay, OSError: as above, or it could not be made.
        """

        def open_or_make(parent: int, name: str, whole: str) -> int:
            try:
                return os.open(name, _LOOK, dir_fd=parent)
            except FileNotFoundError:
                os.mkdir(name, dir_fd=parent)
                made(whole)
                return os.open(name, _LOOK, dir_fd=parent)

        return self._reach(path, open_or_make)

    def _reach(self, path: str, enter: Callable[[int, str, str], int]) -> int:
        reached, missing = path, list[str]()
        while reached.strip("/") and reached not in self._held:
            reached, _, name = reached.rpartition("/")
            missing.append(name)
        folder = self._held.get(reached, self._root)
        if reached in self._held:
            self._held.move_to_end(reached)
        while missing:
            name = missing.pop()
            reached = f"{reached}/{name}"
            try:
                folder = self._hold(reached, enter(folder, name, reached))
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(name, folder):
                    raise LinkInTheWay(reached) from None
                raise OSError(error.errno, error.strerror, reached) from None
        return folder

    def _hold(self, path: str, descriptor: int) -> int:
        found = os.fstat(descriptor)
        identity = found.st_dev, found.st_ino
        if self._seen.setdefault(path, identity) != identity:
            os.close(descriptor)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        self._held[path] = descriptor
        if len(self._held) > _OPEN_AT_ONCE:
            os.close(self._held.popitem(last=False)[1])
        return descriptor


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def read_regular(folder: int, name: str, *, at_most: int) -> bytes | None:
    """The content of a regular file; None: it is larger, grows meanwhile, or is something else.

    Raises:
        OSError: it is not there, or a link, or must not be read.
    """
    # Not to wait for whoever may hold the other end, should it have become a pipe meanwhile.
    descriptor = os.open(name, _READ, dir_fd=folder)
    with open(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            return None
        content = file.read(found.st_size + 1)
        return content if content is not None and len(content) <= found.st_size else None
