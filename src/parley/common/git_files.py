"""Finds the Git directories of a project. As in Git, the search begins at the `.git` of the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from parley.common.files import read_file

__all__ = ["common_dir", "git_dir", "git_dirs", "is_repository"]

_PREFIX: Final = "gitdir: "
_MAX_BYTES: Final = 4096
"""The maximum number of bytes that are read from a `.git` or `commondir` file. Each of these files contains one
path, and Linux accepts no longer path.
"""


def git_dir(git_file: str) -> str | None:
    """Return the directory that a `.git` file names, or None if the file is not a `.git` file.

    Worktrees, submodules and repositories created with `--separate-git-dir` have a `.git` file instead of a
    directory.
    """
    text = _read(git_file)
    named = text.removeprefix(_PREFIX)
    return None if named in ("", text) else os.path.join(os.path.dirname(git_file), named)


def common_dir(git_dir: str) -> str | None:
    """Return the directory that the `commondir` file of a worktree's Git directory names, or None if there is no
    such file.
    """
    named = _read(os.path.join(git_dir, "commondir"))
    return os.path.join(git_dir, named) if named else None


def git_dirs(git_file: str) -> Iterator[str]:
    """Yield the Git directory that a `.git` file names and, if that Git directory names a common directory, the
    common directory. Yield nothing if `git_file` is not a `.git` file.
    """
    own = git_dir(git_file)
    if own is not None:
        yield own
        shared = common_dir(own)
        if shared is not None:
            yield shared


def is_repository(folder: str | os.PathLike[str]) -> bool:
    """Return whether a directory has a `.git` that is not empty. An empty `.git` is a placeholder that the sandbox
    creates.
    """
    git = os.path.join(folder, ".git")
    try:
        with os.scandir(git) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False
    except OSError:
        return os.path.lexists(git)


def _read(path: str) -> str:
    """Return the first `_MAX_BYTES` bytes of a regular file as a string, without the line end. Return an empty
    string if the file cannot be read or contains a NUL.
    """
    try:
        text = read_file(path, limit=_MAX_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in text else os.fsdecode(text.rstrip(b"\r\n"))
