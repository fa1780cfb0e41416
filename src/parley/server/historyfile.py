"""`history.jsonl` of the original, if the home has one: clients are told its inode and length."""

from __future__ import annotations

import os

__all__ = ["history_file"]


def history_file(home: str) -> tuple[int, int]:
    """Inode and number of lines; 0 and 0 without the file."""
    try:
        with open(os.path.join(home, "history.jsonl"), "rb") as file:
            return os.fstat(file.fileno()).st_ino, sum(1 for _ in file)
    except OSError:
        return 0, 0
