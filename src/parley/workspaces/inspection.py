"""Finds files in a worktree that would block Git, before Git runs in the worktree.

Git opens `.gitignore` and `.gitattributes` in each directory, and files in `.git` of each nested repository. If one
of these files is a named pipe, Git waits until another process opens the pipe for writing. This module only lists
names and types, and opens no file.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from parley.wire.text import quoted
from parley.workspaces.git import GitFailed

__all__ = ["MAX_CONTROL_BYTES", "UnsafeWorktree", "nested_repositories"]

MAX_CONTROL_BYTES: Final = 10 * 1024 * 1024
"""The maximum size of a file that controls Git, in bytes. The size is limited because Git reads the whole file into
memory.
"""
MAX_ENTRIES: Final = 2_000_000
"""The maximum number of files and directories in a worktree. For a larger worktree, `nested_repositories` raises
`UnsafeWorktree`.
"""

_CONTROL_FILES: Final = frozenset((".gitignore", ".gitattributes", ".gitmodules"))
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnsafeWorktree(GitFailed):
    """Raised when Git must not run in a worktree because of the files that the worktree contains."""


def nested_repositories(worktree: str) -> tuple[str, ...]:
    """Return the directories inside a worktree that Git may regard as repositories, because they contain `.git`.
    Their paths are relative to the worktree.

    Raises:
        UnsafeWorktree: a file that controls Git is not a regular file or is too large, or there are too many files.
    """
    nested: list[str] = []
    folders, entries = [""], 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(worktree, folder)) as found:
                for entry in found:
                    entries += 1
                    path = os.path.join(folder, entry.name)
                    if entry.name == ".git":
                        if folder and _may_be_repository(entry):
                            nested.append(folder)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    elif entry.name in _CONTROL_FILES:
                        _check_control_file(worktree, path)
        except OSError:
            continue  # Git cannot read this directory either
        if entries > MAX_ENTRIES:
            raise UnsafeWorktree(f"the worktree contains more than {MAX_ENTRIES:,} files and directories")
    return tuple(sorted(nested))


def _may_be_repository(entry: os.DirEntry[str]) -> bool:
    """Return whether Git may regard a directory as a repository because it contains `entry`, a file or directory
    named `.git`.

    A directory `.git` that does not contain `HEAD` does not make its parent directory a repository.
    """
    return not entry.is_dir() or os.path.lexists(os.path.join(entry.path, "HEAD"))


def _check_control_file(worktree: str, path: str) -> None:
    # Git 2.32 and newer do not follow symbolic links with these names. Older versions do.
    try:
        found = os.stat(os.path.join(worktree, path))
    except OSError:
        return  # Git cannot open this file either
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None and stat.S_ISREG(found.st_mode) and found.st_size > MAX_CONTROL_BYTES:
        kind = f"larger than {MAX_CONTROL_BYTES:,} bytes"
    if kind is not None:
        raise UnsafeWorktree(f"{quoted(path)} in the worktree is {kind}, and Git would read it: remove this file")
