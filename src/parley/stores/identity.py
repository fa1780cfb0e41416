"""Whether the files of a database are still the ones that were opened.

SQLite goes on writing to files that were removed or replaced, and no other process would ever read them.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["Identity"]

ENDINGS: Final = ("", "-wal", "-shm")


class Identity:
    """Device and inode of a database, its log and its shared memory."""

    def __init__(self, path: str) -> None:
        """Raises OSError: one of them does not exist."""
        self._files = [(path + ending, _identity(path + ending)) for ending in ENDINGS]
        self._wal = f"{path}-wal"

    def changed(self, *, has_written: bool) -> list[str]:
        """The names of the files that are not in their place any more. If this process `has_written`, an empty log
        counts as removed."""
        changed: list[str] = []
        for path, identity in self._files:
            try:
                found = os.stat(path)
            except OSError:
                changed.append(os.path.basename(path))
                continue
            is_emptied = has_written and path == self._wal and not found.st_size
            if (found.st_dev, found.st_ino) != identity or is_emptied:
                changed.append(os.path.basename(path))
        return changed


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
