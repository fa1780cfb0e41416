"""Memory that nobody needs any more: found, and given back to the system.

A conversation that was let go is a ring of objects that refer to each other, which Python finds only by looking.
It looks after so many objects, whatever they weigh; and a log is few objects that weigh much.
"""

from __future__ import annotations

import gc

__all__ = ["give_back_memory", "look_only_at_what_is_new"]


def look_only_at_what_is_new() -> None:
    """What there is now stays until the end, and need not be looked at again."""
    gc.freeze()


def give_back_memory() -> None:
    """Free what nobody refers to, and give pages that lie between what is used back to the system, where the
    allocator can."""
    gc.collect()
    import ctypes  # here: a server that lets nothing go does without

    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
