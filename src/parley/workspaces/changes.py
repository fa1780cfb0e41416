"""Finds the files of a worktree that the next commit contains.

Git must never run in a repository that a command of the model has created inside the worktree, because the
configuration of such a repository can name programs. `git add`, `git status` and `git diff` would run Git in the
repository; `git ls-files` and `git update-index` do not. This module removes such repositories from the list of
files.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from msgspec import Struct

__all__ = ["LIST", "Changes", "changes_in"]

LIST: Final = ("ls-files", "-z", "-t", "--modified", "--deleted", "--others", "--exclude-standard")
"""The arguments of the Git command that lists the changed, deleted and untracked files of a worktree. `changes_in`
parses its output.
"""

_MISSING: Final = (FileNotFoundError, NotADirectoryError)


class Changes(Struct, frozen=True, kw_only=True):
    """The differences between a worktree and its index."""

    paths: tuple[str, ...]
    """The changed, new and deleted files, relative to the worktree."""
    replaced: tuple[str, ...]
    """The directories that have replaced files or submodules of the index, relative to the worktree."""
    nested: tuple[str, ...]
    """The Git repositories inside the worktree, as paths relative to the worktree. Their files are not
    committed.
    """
    unreadable: tuple[str, ...]
    """The files that Git cannot read or store, such as files without read permission and named pipes, relative to
    the worktree.
    """

    @property
    def is_empty(self) -> bool:
        return not (self.paths or self.replaced or self.nested or self.unreadable)


def changes_in(worktree: str, listed: str) -> Changes:
    """Return the changes in a worktree. `listed` is the output of Git with the arguments `LIST`."""
    paths: dict[str, None] = {}
    replaced, nested, unreadable = [], [], []
    for row in filter(None, listed.split("\0")):
        path = row.partition(" ")[2]
        if path.endswith("/"):
            nested.append(path.rstrip("/"))
            continue
        try:
            found = os.lstat(os.path.join(worktree, path))
        except _MISSING:
            paths[path] = None
            continue
        except OSError:
            unreadable.append(path)
            continue
        if _passes_link(worktree, path):
            continue  # a symbolic link has replaced a parent directory; the list contains this symbolic link
        if stat.S_ISDIR(found.st_mode):
            replaced.append(path)
        elif stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and _is_readable(found)):
            paths[path] = None
        else:
            unreadable.append(path)
    return Changes(
        paths=tuple(paths),
        replaced=tuple(dict.fromkeys(replaced)),
        nested=tuple(nested),
        unreadable=tuple(dict.fromkeys(unreadable)),
    )


def _is_readable(found: os.stat_result) -> bool:
    """Return whether the permissions of a file allow Git to read it. `found` is the status of the file. Because Git
    runs in the sandbox, even root needs the read permission.
    """
    return bool(found.st_mode & (stat.S_IRUSR if found.st_uid == os.geteuid() else stat.S_IRGRP | stat.S_IROTH))


def _passes_link(worktree: str, path: str) -> bool:
    while path := os.path.dirname(path):
        if os.path.islink(os.path.join(worktree, path)):
            return True
    return False
