"""Decides how large the write-ahead log may become on a disk with little free space.

A checkpoint copies the log into the database file, so the checkpoint needs free space too. If the log has filled
the disk, a checkpoint is impossible, and the space that the log occupies cannot be reused.
"""

from __future__ import annotations

import logging
import os
from typing import Final

__all__ = ["CHECKPOINT_BYTES", "DiskSpace"]

log = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
"""The size at which the write-ahead log is checkpointed if there is enough free space, in bytes. The size is large
enough that checkpoints are rare, and small enough for a quick recovery.
"""
MIN_CHECKPOINT_BYTES: Final = 128 * 1024
"""The smallest size at which the write-ahead log is checkpointed, in bytes, even if there is almost no free
space.
"""
SHARE: Final = 8
"""The divisor that determines the size at which the write-ahead log is checkpointed. The size is the free space
divided by this number, but at least `MIN_CHECKPOINT_BYTES` and at most `CHECKPOINT_BYTES`.
"""
FEW_BYTES: Final = CHECKPOINT_BYTES * SHARE
"""The number of free bytes below which a warning is logged, and the write-ahead log is checkpointed at a size
smaller than `CHECKPOINT_BYTES`.
"""


class DiskSpace:
    """The last measured free space on the disk that contains the home."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._has_warned = False
        self.checkpoint_bytes = CHECKPOINT_BYTES
        """The size at which the write-ahead log is checkpointed, in bytes, according to the last measurement."""
        self.measure()

    @property
    def is_short(self) -> bool:
        """True if the free space is smaller than `FEW_BYTES`, so the write-ahead log is checkpointed earlier than
        usual.
        """
        return self.checkpoint_bytes < CHECKPOINT_BYTES

    def measure(self) -> None:
        """Measure the free space. Log a warning if the free space has become smaller than `FEW_BYTES`."""
        try:
            found = os.statvfs(self._home)
        except OSError:
            return  # the next write fails, and reports the reason
        free = found.f_bavail * found.f_frsize
        self.checkpoint_bytes = max(MIN_CHECKPOINT_BYTES, min(CHECKPOINT_BYTES, free // SHARE))
        if not self.is_short:
            self._has_warned = self._has_warned and free < 2 * FEW_BYTES
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "the disk of %s has only %.1f MiB of free space; on a full disk, nothing can be stored or deleted: "
                "free some space, or delete conversations and run `parley gc`",
                self._home,
                free / 1024 / 1024,
            )
