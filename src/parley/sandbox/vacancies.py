"""A `.git` that is not there, and must not be made: while commands run, an empty directory stands in its place.

Something must be there for a read-only mount to be laid over it. The last of those who use such a
directory removes it. Who uses it is known by locks, which the system takes from a process that is
killed; so servers do not disturb each other, and what a killed one left is removed by the next.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from typing import Final

from parley.errors import CannotConfine, os_detail
from parley.wire.text import sayable

__all__ = ["Vacancy", "leave_all"]

_ATTEMPTS: Final = 1000
"""Each fails only if somebody removes the directory in that very moment."""


class Vacancy:
    """An empty directory that one command uses, from `taken` until `leave`."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def taken(cls, path: str) -> Vacancy | None:
        """Make it, or share it; None where nobody can make anything.

        Raises:
            CannotConfine: it cannot be made by us, but maybe by the command.
        """
        try:
            for _ in range(_ATTEMPTS):
                if (descriptor := _shared(path)) is not None:
                    return cls(path, descriptor)
        except OSError as error:
            if error.errno == errno.EROFS or (error.errno == errno.EACCES and not _is_ours(os.path.dirname(path))):
                return None
            raise CannotConfine(f"{sayable(path)} cannot be protected: {os_detail(error)}") from None
        raise CannotConfine(f"{sayable(path)} cannot be protected: others keep it locked")

    def leave(self) -> None:
        """Remove it, unless somebody else uses it or has put something into it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(self.path, self._descriptor):
                os.rmdir(self.path)
        except OSError:
            pass  # it is in use, or a repository by now
        finally:
            os.close(self._descriptor)


def leave_all(vacancies: Iterable[Vacancy]) -> None:
    for each in vacancies:
        each.leave()


def _shared(path: str) -> int | None:
    """The directory, locked against removal; None if it is being removed just now."""
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _is(path, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is(path: str, descriptor: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _is_ours(folder: str) -> bool:
    """Whether the folder is the user's own, who may allow himself to write there."""
    return os.stat(folder).st_uid == os.geteuid()
