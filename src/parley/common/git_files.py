"""The files by which a directory names the Git directories that it belongs to, read as Git reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

__all__ = ["common_dir", "git_dir", "git_dirs"]

_PREFIX: Final = "gitdir: "
_MAX_BYTES: Final = 4096
"""The longest path that the system accepts."""


def git_dir(git_file: str) -> str | None:
    """Return the directory that a `.git` file names; None if it is not such a file.

    A `.git` file stands in a worktree, in a submodule, and where `--separate-git-dir` was used.
    """
    text = _read(git_file)
    named = text.removeprefix(_PREFIX)
    return None if named in ("", text) else os.path.join(os.path.dirname(git_file), named)


def common_dir(git_dir: str) -> str | None:
    """Return the directory that a worktree's Git directory shares with others; None if it names none."""
    named = _read(os.path.join(git_dir, "commondir"))
    return os.path.join(git_dir, named) if named else None


def git_dirs(git_file: str) -> Iterator[str]:
    """Yield the Git directory that a `.git` file names, and the common directory that this one names."""
    own = git_dir(git_file)
    if own is not None:
        yield own
        shared = common_dir(own)
        if shared is not None:
            yield shared


def _read(path: str) -> str:
    """Return the content of a small regular file without the line end; empty if there is none."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_BYTES) if is_regular else b""
    except (OSError, ValueError):
        return ""
    return "" if b"\0" in text else os.fsdecode(text.rstrip(b"\r\n"))
