"""The store of a home: one SQLite database, `parley.db`, shared by all processes of the home.

The first call that needs the database opens it, and SQLite is imported only then. One thread writes (`writer.py`),
and a few threads read. A lease consists of a kernel lock, which is released when the process exits, and an epoch in
the database, which every append checks.
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
    CHECKPOINT_BYTES,
    PAGE,
    PAGE_BYTES,
    TURN_SECONDS,
    Checkpoint,
    ConversationPage,
    Freed,
    Head,
    Lease,
    Owner,
    Query,
    SearchPage,
    SearchQuery,
    StoredSession,
    StoredSignIn,
    StoredToken,
    Summary,
)
from parley.stores.sqlite import (
    bulk_queries,
    list_queries,
    queries,
    search_queries,
    session_queries,
    sign_in_queries,
    token_queries,
)
from parley.stores.sqlite.batch import Batch
from parley.stores.sqlite.change_detector import ChangeDetector
from parley.stores.sqlite.writer import Writer, open_only
from parley.wire.ids import START, ApprovalId, ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.sqlite.database import Database
    from parley.stores.sqlite.locks import LeaseLocks
    from parley.stores.sqlite.read_only import ReadOnlyHome

__all__ = ["SqliteStore"]

TRIES: Final = 10
PAUSE_SECONDS: Final = 0.005
"""The time between two attempts to acquire a lease lock or to find its owner, in seconds. The owner can be unknown
for a moment, because a process acquires the lease lock before it stores itself as the owner in the database.
"""

OPEN_SECONDS: Final = 0.5
"""The maximum time, in seconds, for which a read waits while another process holds the write lock and the home
therefore cannot be opened. After this time, `read_only.py` reads without opening the home.
"""

CACHED_ROWS: Final = 1000
"""The maximum number of conversations whose row number is cached."""

T = TypeVar("T")


class _HeldLease:
    """The state of a lease that this store holds."""

    __slots__ = ("epoch", "is_named", "last_append", "on_lost", "owner", "row")

    def __init__(self, row: int, epoch: int, owner: Owner, on_lost: Callable[[], None]) -> None:
        self.row, self.epoch, self.owner, self.on_lost = row, epoch, owner, on_lost
        self.is_named = True
        """True if the database may contain an owner for the conversation; releasing the lease then also removes the
        owner. If False, releasing the lease writes nothing.
        """
        self.last_append: Future[None] | None = None

    def after_idle_append(self, done: Future[None]) -> None:
        """Record that the database contains no owner for the conversation, if the append `done` has succeeded and
        is the last append under the lease. Call this method after an append that makes the conversation idle,
        because such an append also removes the owner.
        """
        if done is self.last_append and not done.cancelled() and done.exception() is None:
            self.is_named = False


class SqliteStore:
    """An implementation of `Store` for one event loop. The store can also reclaim disk space and write backups.

    Every method that needs the database raises `BadHome` if the home cannot be used to store conversations.
    """

    def __init__(self, home: str | Callable[[], str]) -> None:
        """Create the store.

        `home` is the path of the home, or a function that returns the path. The function is called when the home is
        first needed. If the function raises an error, the method that needs the home raises the same error.
        """
        self._node = os.uname().nodename
        self._held: dict[ConversationId, _HeldLease] = {}
        self._rows: dict[ConversationId, int] = {}
        """The row numbers of recently used conversations. The cache stays valid, because a row number is never
        reused.
        """
        self._detector = ChangeDetector()
        self._deletions: set[Future[None]] = set()
        self._background: set[Task[Any]] = set()
        """Tasks that run to completion even if their callers are cancelled. The references keep the tasks alive."""
        self._opening: Future[None] | None = None
        """A future that is done when the attempt to open the home has ended, successfully or not; None before the
        first read.
        """
        self._closed = False
        self._watchers: list[Callable[[HomeLost], None]] = []
        self._writer = Writer(
            home if callable(home) else lambda: home,
            on_lost=self._notify_watchers,
            on_lease_lost=self._find_lost_leases,
        )

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        batch = Batch(entries)
        create = partial(
            queries.create, conversation_id=conversation_id, batch=batch, summary=summary, archived=archived
        )
        self._cache_row(conversation_id, await self._write(create, batch))

    async def draft(self) -> SqliteDraft:
        row = await self._write(queries.reserve)
        database = await self._opened()
        if not database.lease_locks.try_acquire(row):
            raise StoreFailed(f"row {row} is taken")
        return SqliteDraft(row, database.lease_locks, self._write, self._try_to_remove_deleted)

    # --- leases ------------------------------------------------------------------------

    async def acquire(
        self,
        conversation_id: ConversationId,
        *,
        address: str,
        until: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Lease:
        acquiring = asyncio.ensure_future(self._acquire(conversation_id, address, until, on_lost))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            self._background.add(acquiring)
            acquiring.add_done_callback(self._release_unwanted)
            raise

    async def _acquire(
        self, conversation_id: ConversationId, address: str, until: float | None, on_lost: Callable[[], None]
    ) -> Lease:
        known = self._rows.pop(conversation_id, None)
        if known is not None:
            try:
                return await self._acquire_row(conversation_id, known, address, until, on_lost)
            except UnknownConversation:
                pass  # the conversation was deleted, and perhaps imported again
        row = await self._read(partial(queries.row_of, conversation_id=conversation_id))
        return await self._acquire_row(conversation_id, row, address, until, on_lost)

    async def _acquire_row(
        self,
        conversation_id: ConversationId,
        row: int,
        address: str,
        until: float | None,
        on_lost: Callable[[], None],
    ) -> Lease:
        database = await self._opened(until)
        await self._lock(database, row)
        owner = Owner(node=self._node, pid=os.getpid(), address=address, since=time.time())
        try:
            request = bulk_queries.LeaseRequest(row, conversation_id, owner)
            lease = await asyncio.shield(self._writer.submit_one(bulk_queries.grant_leases, request, until=until))
        except BaseException:
            database.lease_locks.release(row)
            raise
        self._held[conversation_id] = _HeldLease(row, lease.epoch, owner, on_lost)
        self._cache_row(conversation_id, row)
        return lease

    def _cache_row(self, conversation_id: ConversationId, row: int) -> None:
        if len(self._rows) >= CACHED_ROWS:
            del self._rows[next(iter(self._rows))]
        self._rows[conversation_id] = row

    async def _lock(self, database: Database, row: int) -> None:
        """Acquire the lease lock of the conversation with the row number `row`.

        Raises:
            OwnedElsewhere: another process or this store holds the lock. The error names the owner if the owner is
                known.
            StoreFailed: the store is closed.
        """
        for _ in range(TRIES):
            self._refuse_when_closed()
            if database.lease_locks.try_acquire(row):
                return
            owner = await self._read(partial(queries.owner_in, row=row))
            if owner is not None:
                raise OwnedElsewhere(node=owner.node_unless(self._node), pid=owner.pid, address=owner.address)
            await asyncio.sleep(PAUSE_SECONDS)
        raise OwnedElsewhere(pid=0, address="", lock_holder=await self._lock_holder(database))

    async def _lock_holder(self, database: Database) -> str | None:
        """Return a description of the process that holds the write lock; None if no such process is found.

        A lease holder that is not stored as the owner yet may be waiting for the described process, because storing
        the owner needs the write lock.
        """
        from parley.stores.sqlite.lock_holders import holder_of
        from parley.stores.sqlite.locks import WRITE_LOCK

        path = os.path.join(database.home, WRITE_LOCK)
        return await asyncio.get_running_loop().run_in_executor(database.pool, holder_of, path)

    def _release_unwanted(self, acquiring: Task[Lease]) -> None:
        """Release the lease if `acquiring`, whose caller was cancelled, has acquired it."""
        self._background.discard(acquiring)
        if not acquiring.cancelled() and acquiring.exception() is None:
            self._run_in_background(self.release(acquiring.result()))

    def _run_in_background(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def release(self, lease: Lease) -> None:
        database, held = self._writer.opened, self._held.get(lease.conversation_id)
        if database is None or held is None or held.epoch != lease.epoch or self._closed:
            return
        del self._held[lease.conversation_id]
        if not held.is_named:
            database.lease_locks.release(held.row)
            return
        # A caller that has already waited for the write lock in another call does not wait again.
        now = asyncio.get_running_loop().time()
        cleared = self._writer.submit(partial(queries.clear_owner, row=held.row, epoch=held.epoch), until=now)
        cleared.add_done_callback(lambda _: database.lease_locks.release(held.row))
        try:
            await asyncio.shield(cleared)
        except StoreError:
            pass  # the kernel lock is released, which is sufficient

    async def _verify_leases(self) -> None:
        """Detect which leases of this store other processes have acquired, and call the `on_lost` callbacks of
        these leases.
        """
        held = {one.row: (conversation_id, one) for conversation_id, one in self._held.items()}
        if not held or self._writer.opened is None:
            return
        epochs = await self._read(partial(queries.epochs_of, rows=tuple(held)))
        for row, (conversation_id, one) in held.items():
            if epochs.get(row) == one.epoch or self._held.get(conversation_id) is not one:
                continue
            if row not in epochs and self._deletions:
                continue  # this store may be deleting the conversation
            del self._held[conversation_id]
            self._writer.opened.lease_locks.release(row)
            one.on_lost()

    # --- writing -----------------------------------------------------------------------

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        held = self._held.get(lease.conversation_id)
        if self._closed or held is None or held.epoch != lease.epoch:
            return _failed(StoreFailed("the store is closed") if self._closed else LeaseLost())
        batch = Batch(entries)
        held.is_named = True
        append = bulk_queries.Append(held.row, held.epoch, batch, summary, held.owner)
        held.last_append = done = self._writer.submit_one(
            bulk_queries.append_entries, append, batch, until=until, seconds=TURN_SECONDS
        )
        if summary.state == "idle":
            done.add_done_callback(held.after_idle_append)
        return done

    def _find_lost_leases(self) -> None:
        if not self._closed:
            self._run_in_background(self._verify_leases_if_possible())

    async def _verify_leases_if_possible(self) -> None:
        try:
            await self._verify_leases()
        except StoreError:
            pass  # the next append or `check` detects the loss

    def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> Future[None]:
        if len(checkpoint.data) > CHECKPOINT_BYTES:
            return _failed(ValueError(f"a checkpoint of {len(checkpoint.data)} bytes is too large"))
        held = self._held.get(lease.conversation_id)
        if self._closed or held is None or held.epoch != lease.epoch:
            return _failed(StoreFailed("the store is closed") if self._closed else LeaseLost())
        save = partial(queries.save_checkpoint, row=held.row, epoch=held.epoch, checkpoint=checkpoint)
        return self._writer.submit(save)

    async def writable(self, *, until: float) -> None:
        await asyncio.shield(self._writer.submit(open_only, until=until))

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        await self._write(partial(queries.set_archived, conversation_id=conversation_id, archived=archived))

    async def mark_read(self, conversation_id: ConversationId, reader: str, seq: Seq) -> bool:
        return await self._write(
            partial(queries.mark_read, conversation_id=conversation_id, reader=reader, seq=seq)
        )

    async def delete(self, lease: Lease, *, leave_entries: bool = False) -> None:
        database, held = self._writer.opened, self._held.get(lease.conversation_id)
        if database is None or held is None or held.epoch != lease.epoch:
            raise LeaseLost

        def after_deletion(deletion: Future[None]) -> None:
            self._deletions.discard(deletion)
            if deletion.exception() is None and self._held.get(lease.conversation_id) is held:
                del self._held[lease.conversation_id]
                database.lease_locks.release(held.row)

        deletion = self._writer.submit(partial(queries.delete, row=held.row, epoch=held.epoch))
        self._deletions.add(deletion)
        deletion.add_done_callback(after_deletion)
        await asyncio.shield(deletion)
        if not leave_entries:
            await self._try_to_remove_deleted()

    async def _remove_deleted(self, until: float | None = None) -> None:
        """Remove the entries of deleted conversations and abandoned drafts. `until` is the deadline for acquiring
        the write lock, on the event loop's clock; the default is `CALL_SECONDS` from now.
        """
        database = await self._opened()
        while await self._write(partial(queries.remove_some, is_leased=database.lease_locks.is_held), until=until):
            pass

    async def _try_to_remove_deleted(self) -> None:
        try:
            await self._remove_deleted(until=asyncio.get_running_loop().time())
        except StoreError:
            pass  # the next deletion or `tidy` removes the rest

    async def _write(
        self, work: Callable[[Connection], T], batch: Batch | None = None, *, until: float | None = None
    ) -> T:
        """Run `work` in a transaction of the writer thread, and return the result of `work`. `batch` contains the
        entries that `work` writes; None if `work` writes no entries. The entries are packed before the transaction.
        `until` has the same meaning as for `Writer.submit`.

        The transaction is committed completely or not at all, even if the caller is cancelled.
        """
        return await asyncio.shield(self._writer.submit(work, batch, until=until))

    # --- reading -----------------------------------------------------------------------

    async def read(
        self,
        conversation_id: ConversationId,
        *,
        after: Seq,
        limit: int = PAGE,
        max_bytes: int = PAGE_BYTES,
        visible_only: bool = False,
    ) -> list[Entry]:
        read = partial(queries.entries_after, limit=limit, max_bytes=max_bytes, visible_only=visible_only)
        return await self._read(partial(read, conversation_id=conversation_id, after=after))

    async def read_before(
        self, conversation_id: ConversationId, *, before: Seq, limit: int = PAGE, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        read = partial(queries.entries_before, limit=limit, max_bytes=max_bytes)
        return await self._read(partial(read, conversation_id=conversation_id, before=before))

    async def position_of(self, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
        return await self._read(partial(queries.position_of, conversation_id=conversation_id, kind=kind, key=key))

    async def checkpoint(self, conversation_id: ConversationId) -> Checkpoint | None:
        return await self._read(partial(queries.checkpoint_of, conversation_id=conversation_id))

    async def head(self, conversation_id: ConversationId) -> Head:
        source = await self._readable()
        is_leased = source.lease_locks.is_held
        return await self._read(partial(queries.head, conversation_id=conversation_id, is_leased=is_leased))

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        self._watchers.append(lost)

    def _notify_watchers(self, error: HomeLost) -> None:
        for lost in self._watchers:
            lost(error)

    async def check(self) -> None:
        if (database := self._writer.opened) is not None:
            await asyncio.get_running_loop().run_in_executor(database.pool, database.check)
            await self._verify_leases()

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        # A detector compares the data versions of connections, so it needs connections that stay open.
        detector = self._detector if self._writer.opened is not None else ChangeDetector()
        return await self._read(partial(detector.find, ends=ends))

    async def find(self, query: Query) -> ConversationPage:
        source = await self._readable()
        return await self._read(partial(list_queries.find, query=query, is_leased=source.lease_locks.is_held))

    async def search(self, query: SearchQuery) -> SearchPage:
        return await self._read(partial(search_queries.search, query=query))

    async def has_approvals(self, approval_ids: Collection[ApprovalId]) -> bool:
        return await self._read(partial(list_queries.has_approvals, approval_ids=frozenset(approval_ids)))

    # --- tokens ------------------------------------------------------------------------

    async def add_token(self, token: StoredToken) -> bool:
        return await self._write(partial(token_queries.add_token, token=token))

    async def tokens(self) -> list[StoredToken]:
        return await self._read(token_queries.all_tokens)

    async def remove_token(self, name: str) -> bool:
        return await self._write(partial(token_queries.remove_token, name=name))

    async def note_tokens_used(self, used: Mapping[bytes, float]) -> None:
        await self._write(partial(token_queries.note_used, used=used))

    # --- sessions of HTTP clients ------------------------------------------------------

    async def save_session(self, session: StoredSession, *, replacing: bytes | None) -> bool:
        return await self._write(partial(session_queries.save_session, session=session, replacing=replacing))

    async def session(self, digest: bytes) -> StoredSession | None:
        return await self._read(partial(session_queries.session_of, digest=digest))

    async def session_revisions(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        return await self._read(partial(session_queries.revisions, digests=digests))

    async def note_sessions_used(self, used: Mapping[bytes, float]) -> None:
        await self._write(partial(session_queries.note_used, used=used))

    async def remove_sessions(self, digests: Collection[bytes]) -> None:
        await self._write(partial(session_queries.remove_sessions, digests=digests))

    async def remove_unused_sessions(self, *, since: float) -> None:
        await self._write(partial(session_queries.remove_unused, since=since))

    # --- sign-ins to the web page ------------------------------------------------------

    async def add_sign_in(self, sign_in: StoredSignIn) -> None:
        await self._write(partial(sign_in_queries.add_sign_in, sign_in=sign_in))

    async def subscribe_sign_in(self, digest: bytes, push: bytes | None) -> bool:
        return await self._write(partial(sign_in_queries.subscribe, digest=digest, push=push))

    async def sign_in(self, digest: bytes) -> StoredSignIn | None:
        return await self._read(partial(sign_in_queries.sign_in_of, digest=digest))

    async def sign_ins(self) -> list[StoredSignIn]:
        return await self._read(sign_in_queries.all_sign_ins)

    async def note_sign_ins_used(self, used: Mapping[bytes, float]) -> None:
        await self._write(partial(sign_in_queries.note_used, used=used))

    async def remove_sign_ins(self, digests: Collection[bytes]) -> int:
        return await self._write(partial(sign_in_queries.remove_sign_ins, digests=digests))

    # --- maintenance -------------------------------------------------------------------

    async def read_marks(self, conversation_id: ConversationId) -> tuple[Seq, list[tuple[str, Seq]]]:
        """Return the position up to which the log counts as read by all principals. Also return a list of the
        principals that have marked the log as read, each with the position up to which the principal has read.
        """
        return await self._read(partial(queries.read_marks, conversation_id=conversation_id))

    async def unused_blobs(self) -> Freed:
        """Return the number and total size of the blobs that `tidy` would remove."""
        from parley.stores.sqlite import maintenance

        return await self._read(maintenance.unused_blobs)

    async def log_bytes(self, conversation_id: ConversationId) -> int:
        """Return the total size of the given conversation's entries, in bytes."""
        from parley.stores.sqlite import maintenance

        return await self._read(partial(maintenance.log_bytes, conversation_id=conversation_id))

    async def reclaimable_bytes(self) -> int:
        """Estimate the number of bytes by which `tidy` would shrink the database, not counting unused blobs."""
        from parley.stores.sqlite import maintenance

        source = await self._readable()
        return await self._read(partial(maintenance.reclaimable_bytes, is_leased=source.lease_locks.is_held))

    async def tidy(self) -> Freed:
        """Remove the entries of deleted conversations and the unused blobs, and shrink the database.

        The work is done in several transactions, so that other processes can write between them. Return the number
        and total size of the removed blobs.
        """
        from parley.stores.sqlite import maintenance

        if self._deletions:  # the lock of a conversation is held until its deletion is confirmed
            await asyncio.wait(set(self._deletions))
        await self._remove_deleted()
        count = size = 0
        while (step := await self._write(maintenance.remove_unused_blobs)).blobs:
            count += step.blobs
            size += step.bytes
        while await self._write(maintenance.shrink):
            pass
        self._writer.checkpoint_soon()
        await self._write(lambda db: None)
        return Freed(blobs=count, bytes=size)

    async def backup(self, path: str) -> None:
        """Write a consistent copy of the database to the file `path`. The file appears only when it is complete.

        If the caller is cancelled before the copy is complete, no file is left.

        Raises:
            FileExistsError: `path` exists. The existing file is not changed.
        """
        cancelled = Event()

        def copy(db: Connection) -> bool:
            from parley.stores.sqlite.maintenance import copy_to

            return copy_to(db, path, cancelled)

        source = await self._readable()
        copying = asyncio.get_running_loop().run_in_executor(source.pool, source.read, copy)
        try:
            is_new = await asyncio.shield(copying)
        except asyncio.CancelledError:
            cancelled.set()
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
                # The lock is released below in any case, so this error need not be reported.
                cleared.add_done_callback(Future.exception)
            self._held.clear()
        await self._writer.close()
        if self._writer.home is not None:
            self._writer.home.lease_locks.close()

    # --- the open database -------------------------------------------------------------

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")

    async def _opened(self, until: float | None = None) -> Database:
        """Open the database if necessary, and return it. The result is valid only until the caller's next await,
        because the store may be closed after that.
        """
        if self._writer.opened is None:
            await asyncio.shield(self._writer.submit(open_only, until=until))
        self._refuse_when_closed()
        assert self._writer.opened is not None
        return self._writer.opened

    async def _readable(self) -> Database | ReadOnlyHome:
        """Open the database if necessary, and return it.

        If another process has held the write lock for `OPEN_SECONDS`, so that the database cannot be opened, return
        an object that reads without opening the home.
        """
        if self._writer.opened is None and self._writer.waiting_seconds < OPEN_SECONDS:
            if self._opening is None or self._opening.done():
                self._opening = self._writer.submit(open_only)
            opening = self._opening
            while not opening.done() and self._writer.waiting_seconds < OPEN_SECONDS:
                await asyncio.wait({opening}, timeout=OPEN_SECONDS)
            if opening.done():
                opening.result()
        self._refuse_when_closed()
        if (database := self._writer.opened) is not None:
            return database
        from parley.stores.sqlite.read_only import ReadOnlyHome

        assert self._writer.home is not None  # the writer sets `home` before it waits for the write lock
        return ReadOnlyHome(self._writer.home, lambda: self._writer.opened)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        source = await self._readable()
        return await asyncio.get_running_loop().run_in_executor(source.pool, source.read, query)


def _failed(error: Exception) -> Future[None]:
    future: Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


class _Write(Protocol):
    def __call__(self, work: Callable[[Connection], Any], batch: Batch | None = None) -> Awaitable[Any]: ...


class SqliteDraft:
    """An implementation of `Draft`. The lease lock of the draft's row is held until the draft is finished or
    removed, so that no process removes the entries.
    """

    def __init__(
        self, row: int, lease_locks: LeaseLocks, write: _Write, remove_deleted: Callable[[], Awaitable[None]]
    ) -> None:
        self._row, self._lease_locks, self._write, self._remove_deleted = row, lease_locks, write, remove_deleted
        self._last = START
        self._is_open = True

    async def add(self, entries: Sequence[Entry]) -> None:
        batch = Batch(entries)
        await self._write(partial(queries.add_to_draft, row=self._row, batch=batch), batch)
        self._last = Seq(self._last + batch.rows)

    async def finish(
        self,
        conversation_id: ConversationId,
        summary: Summary,
        *,
        archived: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        finish = partial(
            queries.finish_draft,
            row=self._row,
            last=self._last,
            conversation_id=conversation_id,
            summary=summary,
            archived=archived,
            checkpoint=checkpoint,
        )
        await self._write(finish)
        self._close()

    async def drop(self) -> None:
        if self._is_open:
            self._close()
            await self._remove_deleted()

    def _close(self) -> None:
        self._is_open = False
        self._lease_locks.release(self._row)
