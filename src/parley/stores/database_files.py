"""The files of a home's database: their names, and whether they are still the ones that were opened.

SQLite goes on writing to files that were removed or replaced, and no other process would ever read them.
"""

from __future__ import annotations

import os
from typing import Final

from parley.guarded_files import identity_of

__all__ = ["DATABASE", "LOG", "SHARED_MEMORY", "DatabaseFiles", "file_states"]

DATABASE: Final = "parley.db"
LOG: Final = f"{DATABASE}-wal"
SHARED_MEMORY: Final = f"{DATABASE}-shm"


class DatabaseFiles:
    """The database, its log and its shared memory, each by device and inode."""

    def __init__(self, home: str) -> None:
        """Raises OSError: one of them does not exist."""
        paths = [os.path.join(home, name) for name in (DATABASE, LOG, SHARED_MEMORY)]
        self._files = [(path, identity_of(os.stat(path))) for path in paths]

    def changed(self, *, has_written: bool) -> list[str]:
        """Return the names of the files that were removed or replaced.

        If this process `has_written`, an empty log counts as removed.
        """
        changed: list[str] = []
        for path, identity in self._files:
            name = os.path.basename(path)
            try:
                found = os.stat(path)
            except OSError:
                changed.append(name)
                continue
            is_emptied = has_written and name == LOG and not found.st_size
            if identity_of(found) != identity or is_emptied:
                changed.append(name)
        return changed


def file_states(home: str) -> list[tuple[int, int] | None]:
    """Return size and modification time of the three files, which differ once a process has written to them; None
    for a file that does not exist."""
    found: list[tuple[int, int] | None] = []
    for name in (DATABASE, LOG, SHARED_MEMORY):
        try:
            status = os.stat(os.path.join(home, name))
        except OSError:
            found.append(None)
        else:
            found.append((status.st_size, status.st_mtime_ns))
    return found
