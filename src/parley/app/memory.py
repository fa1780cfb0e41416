"""Settings of the garbage collector and of the allocator, and memory that is returned to the system."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["freeze_existing_objects", "release_memory", "return_large_blocks", "skip_final_collection"]


COLLECT_AFTER: Final = (50_000, 50, 50)
"""Thresholds of the garbage collector: new objects before a collection of the youngest generation, and collections
of a generation before one of the next.

A message makes some hundred objects that live as long as its turn. At Python's default of 700 the collector looked
at the same living objects again and again, which took more than half of the time of 10,000 turns. A collection of
the second generation stops everything for 150 to 230 ms when 2,000 turns run, and finds next to nothing.
"""


MALLOC_MMAP_THRESHOLD: Final = -3
"""`M_MMAP_THRESHOLD` of <malloc.h>: from this size on a block is mapped by itself."""
LARGE_BLOCK_BYTES: Final = 1024 * 1024


def freeze_existing_objects() -> None:
    """Exclude the objects that exist now from garbage collection: they live until the process ends.

    Enables the collector, which `parley mcp` disables while it imports the server.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


def return_large_blocks() -> None:
    """Make the allocator return every large block to the system as soon as it is freed.

    By default glibc keeps freed blocks of up to 32 MB. Messages of that size then take several times the memory in
    use.
    """
    import ctypes  # imported here: the import takes longer than the first answer

    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(MALLOC_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def skip_final_collection() -> None:
    """Exclude all objects from the collection at exit: the end of the process frees all memory at once.

    Python would search all objects for cycles when it ends, which took a second and a half with 5,000 streams.
    """
    gc.freeze()


def release_memory() -> None:
    """Return free memory to the system, if the allocator can. Called after conversations were evicted."""
    import ctypes  # imported here: a server that evicts nothing does not need it

    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
