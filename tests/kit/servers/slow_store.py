"""A store in memory that survives the `Life` that uses it. A test can delay or fail its writes."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kit.system.commands import TIMEOUT_SECONDS
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
    """A store in memory.

    While `slow` is True, an append waits for `write` or `fail`; otherwise it completes at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.refuses_to_delete = False
        self._waiting: deque[_Append] = deque()
        self._begun = asyncio.Event()

    @property
    def waiting(self) -> list[list[str]]:
        """The types of the entries of each append in progress."""
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
        """Wait until this many appends are in progress."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self._waiting) < number:
                self._begun.clear()
                await self._begun.wait()

    async def write(self) -> None:
        """Complete the first pending append. It fails if an earlier append has failed."""
        append = self._waiting.popleft()
        error = super().append(append.lease, append.entries, append.summary).exception()
        await _settle(append.done, error)

    async def fail(self, error: Exception | None = None) -> None:
        """Fail the first pending append, by default because the disk is full."""
        await _settle(self._waiting.popleft().done, error or StoreFailed(DISK_FULL))

    async def fail_last(self) -> None:
        """Fail the last pending append. Earlier appends stay pending."""
        await _settle(self._waiting.pop().done, StoreFailed(DISK_FULL))

    def evict(self, conversation_id: ConversationId) -> None:
        """Remove the lease without notifying its holder."""
        self._find(conversation_id).owner = None

    async def close(self) -> None:
        """Release all leases, and keep the data for the next user."""
        for kept in self._conversations.values():
            kept.owner = None

    async def delete(self, lease: Lease, *, leave_entries: bool = False) -> None:
        if self.refuses_to_delete:
            raise StoreFailed(DISK_FULL)
        await super().delete(lease, leave_entries=leave_entries)


async def _settle(done: Future[None], error: BaseException | None) -> None:
    """Complete a future, and run the tasks that wait for it."""
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
    await asyncio.sleep(0)
