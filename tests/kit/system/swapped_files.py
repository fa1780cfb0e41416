"""A program that repeatedly replaces a file with other files while a test runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

__all__ = ["swapped"]

_PROGRAM: Final = """
import os, sys
place, sources = sys.argv[1], sys.argv[2:]
spare = place + ".next"
print(flush=True)
while True:
    for source in sources:
        if os.path.islink(source):
            os.symlink(os.readlink(source), spare)
        else:
            os.link(source, spare)
        os.rename(spare, place)
"""


@asynccontextmanager
async def swapped(place: Path, *sources: Path) -> AsyncIterator[None]:
    """Replace `place` repeatedly with each of the sources in turn during the block. `place` always exists."""
    words = (sys.executable, "-S", "-c", _PROGRAM, str(place), *map(str, sources))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield
    finally:
        process.kill()
        await process.wait()
