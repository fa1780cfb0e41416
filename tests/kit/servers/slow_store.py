"""A store in memory that outlives the processes that use it, as slow and as unreliable as the test says."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kit.system.commands import PATIENCE_SECONDS
from parley.conversation.log import Entry
from parley.errors import StoreFailed
from parley.ports.store import Lease, Summary
from parley.stores.memory import MemoryStore
from parley.wire.ids import ConversationId

__all__ = ["DISK_FULL", "SlowStore"]

DISK_FULL = "no space left on device"


class _Append(NamedTuple):
    done: Future[None]
    lease: Lease
    entries: Sequence[Entry]
    summary: Summary


class SlowStore(MemoryStore):
    """What is appended is on disk after `write`, and never after `fail`. Until it is `slow`, it is at once."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.refuses_to_delete = False
        self._waiting: deque[_Append] = deque()
        self._begun = asyncio.Event()

    @property
    def waiting(self) -> list[list[str]]:
        """The types of the entries of each append that is under way."""
        return [[entry.type for entry in append.entries] for append in self._waiting]

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        if not self.slow:
            return super().append(lease, entries, summary, until=until)
        done: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(done, lease, entries, summary))
        self._begun.set()
        return done

    async def until_waiting(self, number: int = 1) -> None:
        """Return when so many appends are under way."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self._waiting) < number:
                self._begun.clear()
                await self._begun.wait()

    async def write(self) -> None:
        """The first append that waits is done; it fails if what came before it did."""
        append = self._waiting.popleft()
        error = super().append(append.lease, append.entries, append.summary).exception()
        await _settle(append.done, error)

    async def fail(self, error: Exception | None = None) -> None:
        """The first append that waits fails; by default because the disk is full."""
        await _settle(self._waiting.popleft().done, error or StoreFailed(DISK_FULL))

    async def fail_last(self) -> None:
        """The append that came last fails; those before it are still under way."""
        await _settle(self._waiting.pop().done, StoreFailed(DISK_FULL))

    def evict(self, conversation_id: ConversationId) -> None:
        """Whoever holds the lease has lost it, and does not know."""
        self._find(conversation_id).owner = None

    async def close(self) -> None:
        """It stays for the next one."""
        for kept in self._conversations.values():
            kept.owner = None

    async def delete(self, lease: Lease) -> None:
        if self.refuses_to_delete:
            raise StoreFailed(DISK_FULL)
        await super().delete(lease)


async def _settle(done: Future[None], error: BaseException | None) -> None:
    """Return when whoever waited has heard of it."""
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
    await asyncio.sleep(0)
