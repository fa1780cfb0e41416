"""The file `history.jsonl` of the original server. Clients are told its inode and its length."""

from __future__ import annotations

import os

from parley.common.files import read_file

__all__ = ["history_file"]


def history_file(home: str) -> tuple[int, int]:
    """Return the inode and the number of lines; 0 and 0 without the file."""
    path = os.path.join(home, "history.jsonl")
    try:
        lines = len(read_file(path).splitlines())
        return os.stat(path).st_ino, lines
    except OSError:
        return 0, 0
