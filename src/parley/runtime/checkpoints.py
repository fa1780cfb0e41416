"""Checkpoints: copies of a log's projections at earlier positions, in memory.

To roll back the log, the process takes the newest checkpoint and applies the entries that follow it and are not
rolled back. The entries after the oldest checkpoint stay in memory. The newest checkpoint is also written to the
store, from which another process loads the conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Final

from parley.conversation.projections import Projections, prepare_decoder
from parley.errors import StoreError
from parley.ports.store import CHECKPOINT_BYTES, CHECKPOINT_ENTRIES, Checkpoint, Lease, Store
from parley.wire.ids import START, ConversationId, MessageId, Seq

__all__ = ["TAIL_ENTRIES", "Checkpoints"]

log = logging.getLogger(__name__)

TAIL_ENTRIES: Final = 2000
"""The number of newest entries of a log that stay in memory. Earlier entries are read from the store."""
LACKING_ENTRIES: Final = 10_000
"""The maximum number of entries after the stored checkpoint of a log. A process that loads a log with more entries
after the stored checkpoint stores a new checkpoint, even if no client writes to the conversation.
"""
SMALL: Final = 4000
"""The maximum number of items in projections that are encoded on the event loop. The encoding takes a few
milliseconds. Larger projections are encoded in a thread.
"""


class Checkpoints:
    """The checkpoints of one log. A rollback begins with a checkpoint in memory, and a load begins with the stored
    checkpoint.
    """

    def __init__(
        self,
        conversation_id: ConversationId,
        store: Store,
        *,
        every: int = CHECKPOINT_ENTRIES,
        tail: int = TAIL_ENTRIES,
    ) -> None:
        """Create an empty set of checkpoints.

        `every` is the minimum distance between two checkpoints, in entries. `tail` is the number of entries that
        stay in memory.
        """
        self._id, self._store = conversation_id, store
        self.every, self._tail = every, tail
        self._copies: deque[Projections] = deque()
        self._stored = START
        """The position of the last checkpoint that this process has loaded from the store or submitted to the
        store.
        """
        self._encoding: asyncio.Future[bytes | None] | None = None

    @property
    def newest(self) -> Projections | None:
        return self._copies[-1] if self._copies else None

    @property
    def newest_position(self) -> Seq:
        return self._copies[-1].position if self._copies else START

    async def restore(self) -> Projections | None:
        """Return the projections of the stored checkpoint; None if there is no checkpoint or the checkpoint cannot
        be decoded.

        Raises:
            UnknownConversation: the conversation does not exist.
            StoreFailed: the store cannot be read.
        """
        checkpoint = await self._store.checkpoint(self._id)
        if checkpoint is None:
            return None
        try:
            prepare_decoder()
            decode = partial(Projections.restored, checkpoint.data, MessageId(self._id))
            # decode in a thread, because decoding a long history takes a long time
            restored = await asyncio.to_thread(decode)
            if restored.position != checkpoint.seq:
                raise ValueError(f"its position is {restored.position}, not {checkpoint.seq}")
        except ValueError as error:
            log.warning("%s: the checkpoint is ignored, and all entries are read: %s", self._id, error)
            return None
        self._stored = checkpoint.seq
        return restored

    def is_due(self, last: Seq) -> bool:
        """Return whether the newest checkpoint is at least `every` entries before the position `last`. If so, the
        caller must add another checkpoint.
        """
        return last - self.newest_position >= self.every

    def add(self, projections: Projections) -> None:
        """Add a copy of `projections` as the newest checkpoint. All entries that were applied to the projections
        must be durable.
        """
        self._copies.append(projections.copy())

    def replace(self, projections: Projections) -> None:
        """Replace all checkpoints with one checkpoint that consists of `projections`. The projections are not
        copied, so the caller must not change them after the call.
        """
        self._copies = deque((projections,))

    def tail_base(self, last: Seq) -> Seq:
        """Discard checkpoints that are no longer needed. Return the position up to which entries may be removed
        from memory; `START` if no entry may be removed. `last` is the position of the last durable entry.
        """
        while len(self._copies) > 1 and self._copies[1].position <= last - self._tail:
            self._copies.popleft()
        oldest = self._copies[0].position if self._copies else START
        return oldest if oldest <= last - self._tail else START

    @property
    def is_lacking(self) -> bool:
        """True if the newest checkpoint is more than `LACKING_ENTRIES` entries after the stored checkpoint."""
        return self.newest_position - self._stored > LACKING_ENTRIES

    # --- storing -----------------------------------------------------------------------

    def store_newest(self, lease: Lease) -> None:
        """Begin to store the newest checkpoint, unless it is fewer than `every` entries after the stored
        checkpoint.

        A failure is ignored, because it only makes the next load slower.
        """
        newest = self.newest
        if newest is None or self._encoding is not None or newest.position < self._stored + self.every:
            return
        self._stored = newest.position
        if newest.size <= SMALL:
            self._store_data(lease, newest.position, newest.checkpoint())
            return
        self._encoding = asyncio.get_running_loop().run_in_executor(None, newest.checkpoint)
        self._encoding.add_done_callback(partial(self._encoded, lease, newest.position))

    def _encoded(self, lease: Lease, position: Seq, encoding: asyncio.Future[bytes | None]) -> None:
        self._encoding = None
        if not encoding.cancelled() and encoding.exception() is None:
            self._store_data(lease, position, encoding.result())

    def _store_data(self, lease: Lease, position: Seq, data: bytes | None) -> None:
        if data is None or len(data) > CHECKPOINT_BYTES:
            return
        stored = self._store.save_checkpoint(lease, Checkpoint(seq=position, data=data))
        stored.add_done_callback(self._checked)

    def _checked(self, stored: asyncio.Future[None]) -> None:
        if not stored.cancelled() and isinstance(error := stored.exception(), StoreError):
            log.debug("%s: the checkpoint was not stored: %s", self._id, error)

    async def finish(self, lease: Lease) -> None:
        """Wait until the checkpoint that is being encoded has been submitted to the store. If a newer checkpoint
        must be stored by then, submit it too.

        The log calls this method before it releases the lease.
        """
        while self._encoding is not None:
            await asyncio.wait({self._encoding})
            await asyncio.sleep(0)  # let `_encoded` run
            self.store_newest(lease)
