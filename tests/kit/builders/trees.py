"""Directory trees as values, and patches that change them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["Tree", "not_a_link", "patch", "plant", "plant_tree", "regular", "tree"]

Tree = dict[str, tuple[str, bytes]]
"""A directory tree, keyed by relative path.

Each value is the type and the permissions as in `ls`, and the content or the target of a link.
"""


def tree(root: Path) -> Tree:
    """Return everything below a directory, without following links."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = b""
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = os.fsencode(path.readlink())
        found[str(path.relative_to(root))] = stat.filemode(status.st_mode), content
    return found


def not_a_link(path: str, *, dir_fd: int | None = None) -> str:
    """Replace `os.readlink`: fail as if a directory had replaced the link in the meantime."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)


def plant(root: Path, **files: bytes | str) -> None:
    """Create files with these contents; `__` in a name stands for a dot, as in `a__txt`."""
    for name, content in files.items():
        path = root / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def regular(content: str | bytes, *, mode: str = "-rw-r--r--") -> tuple[str, bytes]:
    """Return a regular file as it appears in a tree."""
    return mode, content.encode() if isinstance(content, str) else content


def plant_tree(root: Path, files: Tree) -> None:
    """Create these files, and `root` itself if it is missing."""
    root.mkdir(parents=True, exist_ok=True)
    for name, (mode, content) in files.items():
        (root / name).write_bytes(content)
        (root / name).chmod(0o751 if "x" in mode else 0o644)


def patch(*lines: str) -> str:
    """Return a patch with these lines between the two markers."""
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
