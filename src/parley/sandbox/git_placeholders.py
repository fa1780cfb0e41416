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

from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.errors import SandboxUnavailable
from parley.sandbox.places import Places, depth, is_anothers, opened
from parley.wire.text import quoted

__all__ = ["Vacancy", "fill", "leave_all"]

_ATTEMPTS: Final = 1000
"""Each fails only if somebody removes the directory in that very moment."""


class _CannotStand(SandboxUnavailable):
    """Nothing can stand there; so nothing may be written beside it either."""


class Vacancy:
    """An empty directory that one command uses, from `taken` until `leave`."""

    def __init__(self, path: str, folder: int, descriptor: int) -> None:
        self.path = path
        self._name = os.path.basename(path)
        self._folder = folder
        self._descriptor = descriptor

    @classmethod
    def taken(cls, path: str, folder: int | None = None) -> Vacancy | None:
        """Make it, or share it; None where nobody can make anything. The directory that it is in may be known.

        Raises:
            SandboxUnavailable: it cannot be made by us, but maybe by the command.
        """
        held: int | None = None
        try:
            held = opened(os.path.dirname(path)) if folder is None else os.dup(folder)
            for _ in range(_ATTEMPTS):
                if (descriptor := _shared(os.path.basename(path), held)) is not None:
                    vacancy, held = cls(path, held, descriptor), None
                    return vacancy
            raise _locked(path, held)
        except OSError as error:
            if error.errno == errno.EROFS:
                return None
            if error.errno == errno.EACCES and held is not None:
                if os.fstat(held).st_uid != os.geteuid():
                    return None
                raise _CannotStand(f"{quoted(path)} cannot be made: {os_detail(error)}") from None
            raise SandboxUnavailable(f"{quoted(path)} cannot be protected: {os_detail(error)}") from None
        finally:
            if held is not None:
                os.close(held)

    def leave(self) -> None:
        """Remove it, unless somebody else uses it or has put something into it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(self._name, self._folder, self._descriptor):
                os.rmdir(self._name, dir_fd=self._folder)
        except OSError:
            pass  # it is in use, or a repository by now
        finally:
            os.close(self._descriptor)
            os.close(self._folder)


def fill(places: Places, taken: list[Vacancy]) -> Places:
    """Take all vacancies, each of which is added to the list; returns what can be held with them.

    In a root of the user's own where nothing can be made the command could allow itself to: it is not to be
    written to. So it is where another user keeps the vacancy locked.

    Raises:
        SandboxUnavailable: one cannot be taken.
    """
    shut = set[str]()
    for path in places.vacant:
        try:
            if (vacancy := Vacancy.taken(path)) is not None:
                taken.append(vacancy)
        except _CannotStand:
            shut.add(os.path.dirname(path))
    left = replace(
        places,
        roots=tuple(root for root in places.roots if root not in shut),
        vacant=tuple(each.path for each in taken),
    )
    inner = tuple(root for root in places.roots if root in shut and left.is_writable(root))
    return replace(left, protected=tuple(sorted(left.protected + inner, key=depth)))


def leave_all(vacancies: Iterable[Vacancy]) -> None:
    for each in vacancies:
        each.leave()


def _shared(name: str, folder: int) -> int | None:
    """The directory, locked against removal; None if it is being removed just now."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _is(name, folder, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is(name: str, folder: int, descriptor: int) -> bool:
    try:
        found = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _locked(path: str, folder: int) -> SandboxUnavailable:
    what = f"{quoted(path)} cannot be protected: others keep it locked"
    try:
        found = os.lstat(os.path.basename(path), dir_fd=folder)
    except FileNotFoundError:
        return SandboxUnavailable(what)
    return _CannotStand(what) if is_anothers(found, os.fstat(folder)) else SandboxUnavailable(what)
