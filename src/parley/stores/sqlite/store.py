"""Logs in one SQLite database, `parley.db` in the home, shared by every process that has the same home.

Nothing is opened, and SQLite is not even imported, before the first call that needs it. One thread writes
(`writer.py`), a few others read. A lease is a lock of the kernel, which ends with the process, and an epoch in the
database, which is checked by every append.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from parley.conversation.log import Entry
from parley.errors import HomeLost, LeaseLost, OwnedElsewhere, StoreError, StoreFailed, UnknownConversation
from parley.ports.store import (
    TURN_SECONDS,
    ConversationListing,
    ConversationPage,
    Head,
    Lease,
    Owner,
    Query,
    Summary,
)
from parley.stores.sqlite import bulk_queries, queries
from parley.stores.sqlite.batch import Batch
from parley.stores.sqlite.queries import ChangeDetector
from parley.stores.sqlite.writer import Writer, open_only
from parley.wire.ids import START, ApprovalId, ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.sqlite.database import Database
    from parley.stores.sqlite.locks import LeaseLocks
    from parley.stores.sqlite.maintenance import Freed
    from parley.stores.sqlite.read_only import ReadOnlyHome

__all__ = ["SqliteStore"]

TRIES: Final = 10
PAUSE_SECONDS: Final = 0.005
"""Who has just taken a lease has not written down yet who it is, and who gives one back has still its lock."""

OPEN_SECONDS: Final = 0.5
"""How long reading waits for the home to be opened. Then it is read without being open, for as long as another
process holds the write lock."""

ROWS: Final = 1000
"""Conversations whose rows need not be looked up again."""

T = TypeVar("T")


class _Held:
    """A lease that we have."""

    __slots__ = ("epoch", "is_named", "owner", "row", "written")

    def __init__(self, row: int, epoch: int, owner: Owner) -> None:
        self.row, self.epoch, self.owner = row, epoch, owner
        self.is_named = True
        """Whether the database may say that we have it."""
        self.written: Future[None] | None = None
        """What was appended last."""

    def rests(self, written: Future[None]) -> None:
        """Something was appended behind which nothing goes on."""
        if written is self.written and not written.cancelled() and written.exception() is None:
            self.is_named = False


class SqliteStore:
    """The port `Store`, for one event loop; and what only a database needs: giving space back, and a copy.

    Every call raises `BadHome` where the home cannot hold conversations.
    """

    def __init__(self, home: str | Callable[[], str]) -> None:
        """`home` is a path, or finds it when it is first needed; what it raises then, the call does."""
        self._writer = Writer(home if callable(home) else lambda: home)
        self._held: dict[ConversationId, _Held] = {}
        self._rows: dict[ConversationId, int] = {}
        """Of those that were taken last. A number is never used again."""
        self._detector = ChangeDetector()
        self._left_behind: set[Task[Lease] | Task[None]] = set()
        """What goes on although nobody awaits it any more."""
        self._opening: Future[None] | None = None
        """Done when the home is open, or could not be opened."""
        self._closed = False

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        batch = Batch(entries)
        row = await self._write(
            partial(
                queries.create, conversation_id=conversation_id, batch=batch, summary=summary, archived=archived
            ),
            batch,
        )
        self._remember(conversation_id, row)

    async def draft(self) -> SqliteDraft:
        row = await self._write(queries.reserve)
        opened = await self._opened()
        if not opened.lease_locks.try_acquire(row):
            raise StoreFailed(f"row {row} is taken")
        return SqliteDraft(row, opened.lease_locks, self._write, self._remove_the_deleted_if_possible)

    async def acquire(self, conversation_id: ConversationId, *, address: str, until: float | None = None) -> Lease:
        taking = asyncio.ensure_future(self._acquire(conversation_id, address, until))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._left_behind.add(taking)
            taking.add_done_callback(self._give_back)
            raise

    async def _acquire(self, conversation_id: ConversationId, address: str, until: float | None) -> Lease:
        known = self._rows.pop(conversation_id, None)
        if known is not None:
            try:
                return await self._acquire_row(conversation_id, known, address, until)
            except UnknownConversation:
                pass  # it was deleted, and may have been imported again
        row = await self._read(partial(queries.row_of, conversation_id=conversation_id))
        return await self._acquire_row(conversation_id, row, address, until)

    async def _acquire_row(
        self, conversation_id: ConversationId, row: int, address: str, until: float | None
    ) -> Lease:
        opened = await self._opened(until)
        await self._take(opened, row)
        owner = Owner(pid=os.getpid(), address=address, since=time.time())
        try:
            wanted = bulk_queries.LeaseRequest(row, conversation_id, owner)
            lease = await asyncio.shield(self._writer.submit_one(bulk_queries.grant_leases, wanted, until=until))
        except BaseException:
            opened.lease_locks.release(row)
            raise
        self._held[conversation_id] = _Held(row, lease.epoch, owner)
        self._remember(conversation_id, row)
        return lease

    def _remember(self, conversation_id: ConversationId, row: int) -> None:
        if len(self._rows) >= ROWS:
            del self._rows[next(iter(self._rows))]
        self._rows[conversation_id] = row

    async def _take(self, opened: Database, row: int) -> None:
        """Take the lock of a conversation, or say who has it."""
        for _ in range(TRIES):
            self._refuse_when_closed()
            if opened.lease_locks.try_acquire(row):
                return
            owner = await self._read(partial(queries.owner_in, row=row))
            if owner is not None:
                raise OwnedElsewhere(pid=owner.pid, address=owner.address)
            await asyncio.sleep(PAUSE_SECONDS)
        raise OwnedElsewhere(pid=0, address="", lock_holder=await self._lock_holder(opened))

    async def _lock_holder(self, opened: Database) -> str | None:
        """Describe the holder of the write lock. The owner of a lease that names no owner waits for this lock."""
        from parley.stores.sqlite.lock_holders import holder_of
        from parley.stores.sqlite.locks import WRITE_LOCK

        path = os.path.join(opened.home, WRITE_LOCK)
        return await asyncio.get_running_loop().run_in_executor(opened.pool, holder_of, path)

    def _give_back(self, taking: Task[Lease]) -> None:
        """A lease came when nobody wanted it any more."""
        self._left_behind.discard(taking)
        if not taking.cancelled() and taking.exception() is None:
            giving = asyncio.ensure_future(self.release(taking.result()))
            self._left_behind.add(giving)
            giving.add_done_callback(self._left_behind.discard)

    async def release(self, lease: Lease) -> None:
        opened, held = self._writer.opened, self._held.get(lease.conversation_id)
        if opened is None or held is None or held.epoch != lease.epoch or self._closed:
            return
        del self._held[lease.conversation_id]
        if not held.is_named:
            opened.lease_locks.release(held.row)
            return
        # A caller that has waited for the write lock in vain does not wait a second time.
        now = asyncio.get_running_loop().time()
        cleared = self._writer.submit(partial(queries.clear_owner, row=held.row, epoch=held.epoch), until=now)
        cleared.add_done_callback(lambda _: opened.lease_locks.release(held.row))
        try:
            await asyncio.shield(cleared)
        except StoreError:
            pass  # its lock is free, which is what counts

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        held, loop = self._held.get(lease.conversation_id), asyncio.get_running_loop()
        if self._closed or held is None or held.epoch != lease.epoch:
            refused: Future[None] = loop.create_future()
            refused.set_exception(StoreFailed("the store is closed") if self._closed else LeaseLost())
            return refused
        batch = Batch(entries)
        held.is_named = True
        addition = bulk_queries.Append(held.row, held.epoch, batch, summary, held.owner)
        until = loop.time() + TURN_SECONDS if until is None else until
        held.written = written = self._writer.submit_one(bulk_queries.append_entries, addition, batch, until=until)
        if summary.state == "idle":
            written.add_done_callback(held.rests)
        return written

    async def writable(self, *, until: float) -> None:
        await asyncio.shield(self._writer.submit(open_only, until=until))

    async def read(self, conversation_id: ConversationId, *, after: Seq) -> list[Entry]:
        return await self._read(partial(queries.entries_after, conversation_id=conversation_id, after=after))

    async def head(self, conversation_id: ConversationId) -> Head:
        source = await self._readable()
        return await self._read(
            partial(queries.head, conversation_id=conversation_id, is_leased=source.lease_locks.is_held)
        )

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        self._writer.on_lost = lost

    async def check(self) -> None:
        if (opened := self._writer.opened) is not None:
            await asyncio.get_running_loop().run_in_executor(opened.pool, opened.check)

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        # The versions that a detector remembers belong to connections that stay open.
        detector = self._detector if self._writer.opened is not None else ChangeDetector()
        return await self._read(partial(detector.find, ends=ends))

    async def find(self, query: Query) -> ConversationPage:
        source = await self._readable()
        return await self._read(partial(queries.find, query=query, is_leased=source.lease_locks.is_held))

    async def asks_any(self, questions: Collection[ApprovalId]) -> bool:
        return await self._read(partial(queries.asks_any, questions=frozenset(questions)))

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        await self._write(partial(queries.set_archived, conversation_id=conversation_id, archived=archived))

    async def delete(self, lease: Lease) -> None:
        opened, held = self._writer.opened, self._held.get(lease.conversation_id)
        if opened is None or held is None or held.epoch != lease.epoch:
            raise LeaseLost

        def gone(deleted: Future[None]) -> None:
            if deleted.exception() is None:
                del self._held[lease.conversation_id]
                opened.lease_locks.release(held.row)

        deleted = self._writer.submit(partial(queries.delete, row=held.row, epoch=held.epoch))
        deleted.add_done_callback(gone)
        await asyncio.shield(deleted)
        await self._remove_the_deleted_if_possible()

    async def expired(self, *, archived_before: float) -> list[ConversationListing]:
        """Archived conversations that were last active before a moment."""
        source = await self._readable()
        return await self._read(
            partial(queries.expired, archived_before=archived_before, is_leased=source.lease_locks.is_held)
        )

    async def unused_blobs(self) -> Freed:
        """What `tidy` would remove."""
        from parley.stores.sqlite import maintenance

        return await self._read(maintenance.unused_blobs)

    async def reclaimable_bytes(self) -> int:
        """By how many bytes `tidy` would make the database smaller, about, besides those blobs."""
        from parley.stores.sqlite import maintenance

        source = await self._readable()
        return await self._read(partial(maintenance.reclaimable_bytes, is_leased=source.lease_locks.is_held))

    async def tidy(self) -> Freed:
        """Remove what deleted conversations have left and blobs that nothing refers to, and make the database
        smaller; others write between the steps."""
        from parley.stores.sqlite import maintenance

        await self._remove_the_deleted()
        count = size = 0
        while (step := await self._write(maintenance.remove_unused_blobs)).blobs:
            count += step.blobs
            size += step.bytes
        while await self._write(maintenance.shrink):
            pass
        self._writer.fold_soon()
        await self._write(lambda db: None)
        return maintenance.Freed(blobs=count, bytes=size)

    async def backup(self, path: str) -> None:
        """Write a consistent copy, which is complete as soon as it is there.

        Where the caller is cancelled, nothing of it is left; a copy that is complete by then stays, and counts.

        Raises:
            FileExistsError: something of that name exists; it stays as it is.
        """
        given_up = Event()

        def copy(db: Connection) -> bool:
            from parley.stores.sqlite.maintenance import copy_to

            return copy_to(db, path, given_up)

        source = await self._readable()
        copying = asyncio.get_running_loop().run_in_executor(source.pool, source.read, copy)
        try:
            is_new = await asyncio.shield(copying)
        except asyncio.CancelledError:
            given_up.set()
            await asyncio.wait((copying,))
            if copying.exception() is not None:
                raise
            is_new = copying.result()
        if not is_new:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for held in self._held.values():
                cleared = self._writer.submit(partial(queries.clear_owner, row=held.row, epoch=held.epoch))
                cleared.add_done_callback(Future.exception)  # its lock is freed all the same
            self._held.clear()
        await self._writer.close()
        if self._writer.home is not None:
            self._writer.home.lease_locks.close()

    async def _remove_the_deleted(self, until: float | None = None) -> None:
        opened = await self._opened()
        while await self._write(partial(queries.remove_some, is_leased=opened.lease_locks.is_held), until=until):
            pass

    async def _remove_the_deleted_if_possible(self) -> None:
        try:
            await self._remove_the_deleted(until=asyncio.get_running_loop().time())
        except StoreError:
            pass  # they are gone all the same; whoever deletes or tidies next removes what is left

    async def _write(
        self, work: Callable[[Connection], T], batch: Batch | None = None, *, until: float | None = None
    ) -> T:
        """Done or not done, also where the caller is cancelled."""
        return await asyncio.shield(self._writer.submit(work, batch, until=until))

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")

    async def _opened(self, until: float | None = None) -> Database:
        """What can be used until something is awaited."""
        if self._writer.opened is None:
            await asyncio.shield(self._writer.submit(open_only, until=until))
        self._refuse_when_closed()
        assert self._writer.opened is not None
        return self._writer.opened

    async def _readable(self) -> Database | ReadOnlyHome:
        """Return the open home, or one that reads without opening it while another process holds the write lock."""
        if self._writer.opened is None and self._writer.waiting_seconds < OPEN_SECONDS:
            if self._opening is None or self._opening.done():
                self._opening = self._writer.submit(open_only)
            opening = self._opening
            while not opening.done() and self._writer.waiting_seconds < OPEN_SECONDS:
                await asyncio.wait({opening}, timeout=OPEN_SECONDS)
            if opening.done():
                opening.result()
        self._refuse_when_closed()
        if (opened := self._writer.opened) is not None:
            return opened
        from parley.stores.sqlite.read_only import ReadOnlyHome

        assert self._writer.home is not None  # its lock is waited for
        return ReadOnlyHome(self._writer.home, lambda: self._writer.opened)

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        source = await self._readable()
        return await asyncio.get_running_loop().run_in_executor(source.pool, source.read, ask)


class Write(Protocol):
    def __call__(self, work: Callable[[Connection], Any], batch: Batch | None = None) -> Awaitable[Any]: ...


class SqliteDraft:
    """The port `Draft`. Its row is locked from before its first entry until it is finished or dropped."""

    def __init__(
        self, row: int, lease_locks: LeaseLocks, write: Write, clear: Callable[[], Awaitable[None]]
    ) -> None:
        """`clear` removes what counts as deleted, as far as that can be done now."""
        self._row, self._lease_locks, self._write, self._clear = row, lease_locks, write, clear
        self._last = START
        self._is_open = True

    async def add(self, entries: Sequence[Entry]) -> None:
        batch = Batch(entries)
        await self._write(partial(queries.add_to_draft, row=self._row, batch=batch), batch)
        self._last = Seq(self._last + batch.rows)

    async def finish(self, conversation_id: ConversationId, summary: Summary, *, archived: bool = False) -> None:
        finish = partial(
            queries.finish_draft,
            row=self._row,
            last=self._last,
            conversation_id=conversation_id,
            summary=summary,
            archived=archived,
        )
        await self._write(finish)
        self._close()

    async def drop(self) -> None:
        if self._is_open:
            self._close()
            await self._clear()

    def _close(self) -> None:
        self._is_open = False
        self._lease_locks.release(self._row)
