"""The readers of the log of one conversation in this process, and the tasks that wait for an entry.

`readers.py` defines how a reader sends entries and deltas to its client.
"""

from __future__ import annotations

import asyncio
import logging

from parley.conversation.log import Delta
from parley.conversation.output import OutputDelta
from parley.runtime.readers import Reader
from parley.wire.ids import ConversationId, Seq

__all__ = ["LogReaders"]

log = logging.getLogger(__name__)


class LogReaders:
    """The readers and the waiting tasks of one log. The log notifies this object of each change."""

    __slots__ = ("_id", "_waiting", "attached")

    def __init__(self, conversation_id: ConversationId) -> None:
        self._id = conversation_id
        self.attached: list[Reader] = []
        """The readers, in the order in which they were attached."""
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_empty(self) -> bool:
        """True if there are no readers, and no tasks that are waiting for an entry."""
        return not (self.attached or self._waiting)

    def attach(self, reader: Reader) -> None:
        """Attach a reader. When the next entry becomes durable, the reader begins to send the entries after its
        cursor.
        """
        self.attached.append(reader)

    def detach(self, reader: Reader) -> None:
        """Remove a reader. Do nothing if the reader is not attached."""
        reader.close()
        if reader in self.attached:
            self.attached.remove(reader)

    def appended(self, first: Seq) -> None:
        """Notify the readers that entries from the position `first` on were appended. The entries may not be
        durable yet.
        """
        for reader in self.attached:
            reader.appended(first)

    def delta(self, delta: Delta | OutputDelta, encoded: bytes) -> None:
        """Pass a delta to each reader. `encoded` is the delta in its encoded form as an event."""
        for reader in self.attached:
            reader.delta(delta, encoded)

    def pump(self) -> None:
        """Send the entries that have become durable, and wake all waiting tasks."""
        for reader in tuple(self.attached):
            try:
                reader.pump()
            # the error is a bug, or memory is exhausted: remove this reader, but continue the turn
            except Exception as error:
                is_bug = not isinstance(error, MemoryError)
                log.error("a reader of %s failed and was dropped", self._id, exc_info=is_bug)
                if reader in self.attached:
                    self.attached.remove(reader)
                reader.drop(error)
        self.wake()

    async def wait(self) -> None:
        """Wait until the next call of `pump` or `wake`."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        try:
            await changed
        finally:
            if changed in self._waiting:
                self._waiting.remove(changed)

    def wake(self) -> None:
        """Wake all waiting tasks so that they check their conditions again."""
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)
