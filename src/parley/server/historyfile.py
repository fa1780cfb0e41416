"""Reads the file `history.jsonl`, in which Codex stores the prompts of the user.

The event `session_configured` contains the inode number of this file and the number of its lines.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from parley.common.files import open_file, read_now

__all__ = ["history_file"]

PART_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 256 * PART_BYTES
"""The maximum number of bytes that are read from the beginning of `history.jsonl` to count its lines."""


async def history_file(home: str) -> tuple[int, int]:
    """Return the inode number and the number of lines of the file `history.jsonl` in the directory `home`. If the
    file cannot be read, return two zeros.
    """
    path = os.path.join(home, "history.jsonl")
    return await asyncio.to_thread(_count, path) if _exists(path) else (0, 0)


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _count(path: str) -> tuple[int, int]:
    lines, size, last = 0, 0, b"\n"
    try:
        with open_file(path) as file:
            while size < MAX_BYTES and (part := read_now(file, limit=PART_BYTES)):
                lines, size, last = lines + part.count(b"\n"), size + len(part), part[-1:]
            return os.fstat(file.fileno()).st_ino, lines + (last != b"\n")
    except OSError:
        return 0, 0
