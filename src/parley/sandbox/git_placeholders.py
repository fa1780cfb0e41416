"""Manages placeholders, which are empty `.git` directories that exist while commands are running.

A read-only mount on the placeholder keeps a command from creating a Git directory in a writable root. The
placeholder is needed because a mount can cover only an existing directory.

The last command that uses a placeholder removes it. A placeholder in use is locked (`flock`), so that several
servers can share the placeholder. The kernel releases the locks of a killed process, so the next command can remove
a placeholder of a killed server.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.errors import SandboxUnavailable
from parley.sandbox.paths import belongs_to_another, open_directory, sorted_by_depth
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.wire.text import quoted

__all__ = ["GitPlaceholder", "add_placeholders", "release_all"]

_ATTEMPTS: Final = 500
"""The maximum number of attempts to lock a placeholder. An attempt fails if another process is removing the
directory at the same time, or keeps it locked.
"""
_PAUSE_SECONDS: Final = 0.001
"""The pause between two attempts to lock a placeholder, in seconds. All pauses together give a process on a
busy computer enough time to remove its placeholder.
"""


class _CannotCreate(SandboxUnavailable):
    """Raised when the server cannot create or lock the placeholder of a root. The root then becomes read-only for
    commands.
    """


class GitPlaceholder:
    """A placeholder that one command uses, from `acquire` until `release`."""

    def __init__(self, path: str, folder: int, descriptor: int) -> None:
        self.path = path
        self._name = os.path.basename(path)
        self._folder = folder
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: str, *, pause: Callable[[float], None] = time.sleep) -> GitPlaceholder | None:
        """Create a placeholder, or share an existing one, and return it. Return None if neither the server nor a
        command can create a directory at `path`. `pause` is called between two attempts, with the number of seconds
        to wait.

        Raises:
            SandboxUnavailable: the server cannot create or lock the placeholder, but a command might be able to
                create a `.git`.
        """
        folder: int | None = None
        try:
            folder = open_directory(os.path.dirname(path))
            for _ in range(_ATTEMPTS):
                if (descriptor := _lock_shared(os.path.basename(path), folder)) is not None:
                    placeholder, folder = cls(path, folder, descriptor), None
                    return placeholder
                pause(_PAUSE_SECONDS)
            raise _locked(path, folder)
        except OSError as error:
            if error.errno == errno.EROFS:
                return None
            if error.errno == errno.EACCES and folder is not None:
                if os.fstat(folder).st_uid != os.geteuid():
                    return None
                raise _CannotCreate(f"{quoted(path)} cannot be created: {os_detail(error)}") from None
            raise SandboxUnavailable(f"{quoted(path)} cannot be protected: {os_detail(error)}") from None
        finally:
            if folder is not None:
                os.close(folder)

    def release(self) -> None:
        """Stop using the placeholder. Remove it, unless another command uses it or it is not empty."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(self._name, self._folder, self._descriptor):
                os.rmdir(self._name, dir_fd=self._folder)
        except OSError:
            pass  # another command uses the directory, or it has become a repository
        finally:
            os.close(self._descriptor)
            os.close(self._folder)


def add_placeholders(policy: ResolvedPolicy, acquired: list[GitPlaceholder]) -> ResolvedPolicy:
    """Acquire a placeholder for each missing `.git`, add it to `acquired`, and return the resulting policy.

    A root becomes read-only if it belongs to the user but its mode does not allow the server to create a
    placeholder. In a writable root, a command could change the mode and then create a `.git`. A root also becomes
    read-only if another user keeps its placeholder locked.

    Raises:
        SandboxUnavailable: a placeholder cannot be acquired for another reason, such as a file system error.
    """
    closed = set[str]()
    for path in policy.missing_git:
        try:
            if (placeholder := GitPlaceholder.acquire(path)) is not None:
                acquired.append(placeholder)
        except _CannotCreate:
            closed.add(os.path.dirname(path))
    left = replace(
        policy,
        roots=tuple(root for root in policy.roots if root not in closed),
        missing_git=tuple(each.path for each in acquired),
    )
    inner = tuple(root for root in policy.roots if root in closed and left.is_writable(root))
    return replace(left, protected=sorted_by_depth(left.protected + inner))


def release_all(placeholders: Iterable[GitPlaceholder]) -> None:
    for each in placeholders:
        each.release()


def _lock_shared(name: str, folder: int) -> int | None:
    """Lock a directory for shared use, and return its descriptor. Create the directory if it is missing.

    Return None if another process is removing the directory or keeps it locked exclusively.
    """
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
        if _is_same(name, folder, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_same(name: str, folder: int, descriptor: int) -> bool:
    """Return whether `name` in the directory `folder` still refers to the directory that `descriptor` has open."""
    try:
        found = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _locked(path: str, folder: int) -> SandboxUnavailable:
    what = f"{quoted(path)} cannot be protected: another process keeps it locked"
    try:
        found = os.lstat(os.path.basename(path), dir_fd=folder)
    except FileNotFoundError:
        return SandboxUnavailable(what)
    return _CannotCreate(what) if belongs_to_another(found, os.fstat(folder)) else SandboxUnavailable(what)
