"""Configures how often Python's cyclic garbage collector runs (docs/decisions/rare-garbage-collection.md)."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["collect_rarely", "skip_final_collection"]

COLLECT_AFTER: Final = (50_000, 50, 50)
"""The thresholds of the garbage collector, as for `gc.set_threshold`. The first threshold is the number of new
objects after which the youngest generation is collected. Each other threshold is the number of collections of one
generation after which the next older generation is collected.
"""


def collect_rarely() -> None:
    """Enable the garbage collector with high thresholds, so that it runs rarely. `parley mcp` disables the
    collector during its imports.
    """
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


def skip_final_collection() -> None:
    """Exclude all objects from the garbage collection that Python runs when the process exits. This collection is
    useless, because the exit frees all memory.
    """
    gc.freeze()
