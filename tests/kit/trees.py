"""Directories as values, and patches that change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["Tree", "patch", "plant", "tree"]

Tree = dict[str, tuple[str, bytes]]
"""By relative path: type and permissions as `ls` shows them, and the content or where a link leads."""


def tree(root: Path) -> Tree:
    """Everything below a directory; no link is followed."""
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


def plant(root: Path, **files: bytes | str) -> None:
    """Files with these contents; `__` in a name stands for a dot, as in `a__txt`."""
    for name, content in files.items():
        path = root / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def patch(*lines: str) -> str:
    """A patch of these lines between the two markers."""
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
