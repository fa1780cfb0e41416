"""Makes the allocator of the C library return memory to the operating system."""

from __future__ import annotations

from typing import Final

__all__ = ["release_memory", "return_large_blocks"]

MALLOC_MMAP_THRESHOLD: Final = -3
"""The constant `M_MMAP_THRESHOLD` of <malloc.h>: the option of `mallopt` that sets the minimum size of a block that
gets its own memory mapping.
"""
LARGE_BLOCK_BYTES: Final = 1024 * 1024


def return_large_blocks() -> None:
    """Make the allocator return every large block to the operating system as soon as the block is freed.

    By default, glibc keeps freed blocks of up to 32 MB, so after messages of that size the process would hold
    several times the memory that it uses.
    """
    import ctypes  # imported here: the import takes longer than the first response

    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(MALLOC_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def release_memory() -> None:
    """Return free memory to the operating system, if the allocator supports it."""
    import ctypes  # imported here: a server that evicts no conversation does not need it

    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
