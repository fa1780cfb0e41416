"""The store in a PostgreSQL database, which processes on several computers can share.

Writes to logs (`writer.py`), lease renewals and notifications each use a separate connection. All other statements
use a small pool of connections. The store connects to the database when a method first needs it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from parley.conversation.log import Entry
from parley.errors import HomeLost, LeaseLost, StoreError, StoreFailed, UnknownConversation
from parley.ports.availability import AVAILABLE, AvailabilityState
from parley.ports.nodes import Node, NodeLoad
from parley.ports.store import (
    CHECKPOINT_BYTES,
    PAGE,
    PAGE_BYTES,
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
from parley.stores.postgres import drafts, inspection, migration, months, queries, search, tokens
from parley.stores.postgres.batch import Batch
from parley.stores.postgres.database import Database
from parley.stores.postgres.drafts import PostgresDraft
from parley.stores.postgres.driver import Connection, replicated
from parley.stores.postgres.held_lease import HeldLease
from parley.stores.postgres.leases import LEASE_SECONDS, LeaseKeeper
from parley.stores.postgres.months import month_of
from parley.stores.postgres.nodes import all_nodes, other_nodes
from parley.stores.postgres.notifications import Notifications
from parley.stores.postgres.schema import Migration
from parley.stores.postgres.writer import Writer
from parley.stores.postgres.writes import Acquire, Append, Delete, Release, Request, SaveCheckpoint
from parley.wire.ids import ApprovalId, ConversationId, Seq

__all__ = ["PostgresStore"]

log = logging.getLogger(__name__)

T = TypeVar("T")

JOIN_SECONDS: Final = 30
"""The time, in seconds, for which a starting node waits for the database. If an earlier process has the same node
id, the node waits for an additional lease time.
"""

TIDY_SECONDS: Final = 60.0
"""The maximum time, in seconds, for which one call of `tidy` drops the partitions of old months. The next call
drops the remaining partitions.
"""


class PostgresStore:
    """An implementation of `Store` for one event loop.

    Every method that uses the database raises `BadHome` if the database cannot be used, and `StoreFailed` if the
    database cannot be reached in time.
    """

    def __init__(
        self,
        url: str | Callable[[], str],
        *,
        lease_seconds: float | None = None,
        migrations: Sequence[Migration] | None = None,
    ) -> None:
        """Create the store.

        `url` is the URL of the database, or a function that returns the URL. The function is called when the
        database is first needed. If the function raises an error, the method that needs the database raises the
        same error.

        `lease_seconds` is the lease time in seconds; the default is `LEASE_SECONDS`. `migrations` contains the
        migrations that this process can apply; the default is `schema.MIGRATIONS`.
        """
        self._url, self._migrations = url, migrations
        self._lease_seconds = LEASE_SECONDS if lease_seconds is None else lease_seconds
        self._host = os.uname().nodename
        self._node: Node | None = None
        self._background: set[Task[Any]] = set()
        """Tasks that run to completion even if their callers are cancelled. `close` waits for them."""
        self._freed = Freed(blobs=0, bytes=0)
        """The number and total size of the blobs that this store has removed since the last call of `tidy`."""
        self._prepared_in = 0
        """The month in which this process last created partitions in advance; 0 if this process has created
        none.
        """
        self._closed = False
        self._parts: _Parts | None = None
        self._listeners: list[Callable[[list[ConversationId]], None]] = []
        self._on_availability: list[Callable[[AvailabilityState], None]] = []

    @property
    def _open(self) -> _Parts:
        """The components that use the database. The first access creates the components, without connecting. If the
        store is closed, an access raises `StoreFailed`.
        """
        if self._closed:
            raise StoreFailed("the store is closed")
        if self._parts is None:
            url = self._url() if callable(self._url) else self._url
            self._parts = _Parts(Database(url, self._migrations), self._host, self._node, self._lease_seconds)
            for listener in self._listeners:
                self._parts.notifications.listen(listener)
            for call in self._on_availability:
                self._parts.database.availability.on_change(call)
        return self._parts

    def listen(self, callback: Callable[[list[ConversationId]], None]) -> None:
        """Register `callback`, which is called on the event loop with the ids of conversations that other processes
        have changed.

        Notifications can be lost, so some changes are not reported. `changed_since` finds all changes.
        """
        self._listeners.append(callback)
        if self._parts is not None:
            self._parts.notifications.listen(callback)

    @property
    def availability(self) -> AvailabilityState:
        return AVAILABLE if self._parts is None else self._parts.database.availability.state

    @property
    def is_silent(self) -> bool:
        return self._parts is not None and (self.availability != AVAILABLE or self._parts.writer.is_stalled)

    def on_availability(self, call: Callable[[AvailabilityState], None]) -> None:
        self._on_availability.append(call)
        if self._parts is not None:
            self._parts.database.availability.on_change(call)

    async def _read(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        return await self._open.database.run(lambda db, _: work(db))

    # --- new logs ----------------------------------------------------------------------

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        parts = self._open
        number = await drafts.create(parts.database, conversation_id, entries, summary, archived=archived)
        parts.notifications.note((conversation_id,))
        self._prepare_months(number)

    async def draft(self) -> PostgresDraft:
        parts = self._open
        holder = await parts.registered()
        number = await drafts.reserve(parts.database, holder)
        self._prepare_months(number)
        return PostgresDraft(parts.database, number, self._try_to_remove_deleted)

    def _prepare_months(self, number: int | None) -> None:
        """Create the partitions of the next months in the background, once in each month. After an error, the next
        call tries again.

        `number` is the number of the conversation or draft that was just created. The current month is determined
        from this number. Do nothing if `number` is None.
        """
        if number is None or month_of(number) == self._prepared_in:
            return
        self._prepared_in = month_of(number)

        async def prepare() -> None:
            try:
                await self._read(months.prepare_months)
            except StoreError:
                self._prepared_in = 0

        self._run_in_background(prepare())

    # --- leases ------------------------------------------------------------------------

    async def acquire(
        self,
        conversation_id: ConversationId,
        *,
        address: str,
        until: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Lease:
        name = self._host if self._node is None else self._node.id
        owner = Owner(node=name, pid=os.getpid(), address=address, since=time.time())
        acquiring = self._open.writer.submit(Acquire(conversation_id, owner, on_lost), until=until)
        try:
            lease: Lease = await asyncio.shield(acquiring)
            return lease
        except asyncio.CancelledError:
            acquiring.add_done_callback(self._release_unwanted)
            raise

    def _release_unwanted(self, acquiring: Future[Lease]) -> None:
        """Release the lease if `acquiring`, whose caller was cancelled, has acquired it."""
        if not acquiring.cancelled() and acquiring.exception() is None:
            self._run_in_background(self.release(acquiring.result()))

    def _run_in_background(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def release(self, lease: Lease) -> None:
        held = self._held(lease)
        if held is None or self._closed:
            return
        del self._open.keeper.held[lease.conversation_id]
        try:
            await asyncio.shield(self._open.writer.submit(Release(held)))
        except StoreError:
            pass  # the lease expires after this process has ended

    def _held(self, lease: Lease) -> HeldLease | None:
        """Return the state of the given lease; None if this process no longer holds the lease."""
        held = None if self._parts is None else self._parts.keeper.held.get(lease.conversation_id)
        return held if held is not None and held.epoch == lease.epoch else None

    # --- writing -----------------------------------------------------------------------

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        held = self._held(lease)
        if self._closed or held is None:
            return _failed(StoreFailed("the store is closed") if self._closed else LeaseLost())
        return self._open.writer.submit(Append(held, Batch(entries), summary), until=until)

    def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> Future[None]:
        if len(checkpoint.data) > CHECKPOINT_BYTES:
            return _failed(ValueError(f"a checkpoint of {len(checkpoint.data)} bytes is too large"))
        held = self._held(lease)
        if self._closed or held is None:
            return _failed(StoreFailed("the store is closed") if self._closed else LeaseLost())
        return self._open.writer.submit(SaveCheckpoint(held, checkpoint))

    async def writable(self, *, until: float) -> None:
        """Wait until the database can be reached.

        Raises:
            StoreFailed: the database could not be reached before the time `until`, on the event loop's clock.
        """
        parts = self._open
        if parts.writer.is_stalled:

            async def answer(db: Connection, _: bool) -> None:
                await db.execute("SELECT 1")

            await parts.database.run(answer, until=until)

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        async def work(db: Connection, _: bool) -> None:
            changed = await db.fetchval(
                "UPDATE conversations SET archived = $2 WHERE id = $1 RETURNING number",
                conversation_id.encode(),
                archived,
            )
            if changed is None:
                raise UnknownConversation(conversation_id)

        parts = self._open
        await parts.database.run(work)
        parts.notifications.note((conversation_id,))

    async def mark_read(self, conversation_id: ConversationId, reader: str, seq: Seq) -> bool:
        async def work(db: Connection, may_be_done: bool) -> bool:
            number = await queries.number_of(db, conversation_id)
            marked = await db.fetchval(
                "INSERT INTO read_marks VALUES ($1, $2, $3) ON CONFLICT (conversation, reader)"
                " DO UPDATE SET seq = excluded.seq WHERE excluded.seq > read_marks.seq RETURNING seq",
                number,
                reader.encode(),
                seq,
            )
            if marked is None and may_be_done:
                await replicated(db)
            return marked is not None or may_be_done

        return await self._open.database.run(work)

    async def delete(self, lease: Lease, *, leave_entries: bool = False) -> None:
        held = self._held(lease)
        if self._closed:
            raise StoreFailed("the store is closed")
        if held is None:
            raise LeaseLost
        held.is_deleting = True
        deletion = self._open.writer.submit(Delete(held))

        def after_deletion(done: Future[None]) -> None:
            held.is_deleting = False
            if not (leave_entries or done.cancelled() or done.exception() or self._closed):
                self._run_in_background(self._try_to_remove_deleted())

        deletion.add_done_callback(after_deletion)
        await asyncio.shield(deletion)

    async def _try_to_remove_deleted(self) -> None:
        """Remove the entries of deleted conversations. If the database reports an error, stop; the next deletion
        removes the remaining entries.
        """
        with suppress(StoreError):
            await self._remove_deleted()

    async def _remove_deleted(self) -> None:
        while (step := await self._open.database.run(drafts.remove_some)) is not None:
            self._freed = Freed(blobs=self._freed.blobs + step.blobs, bytes=self._freed.bytes + step.bytes)

    # --- maintenance -------------------------------------------------------------------

    async def unused_blobs(self) -> Freed:
        return await self._read(drafts.removable_blobs)

    async def log_bytes(self, conversation_id: ConversationId) -> int:
        return await self._read(lambda db: queries.log_bytes(db, conversation_id))

    async def reclaimable_bytes(self) -> int:
        return await self._read(drafts.removable_bytes)

    async def tidy(self) -> Freed:
        if self._background:  # these may be deletions whose caller was cancelled
            await asyncio.wait(set(self._background))
        await self._read(months.prepare_months)
        try:
            dropped = await self._open.database.run(
                lambda db, _: months.drop_empty_months(db), until=asyncio.get_running_loop().time() + TIDY_SECONDS
            )
            self._freed = Freed(blobs=self._freed.blobs + dropped.blobs, bytes=self._freed.bytes + dropped.bytes)
        except StoreFailed as error:  # for example, a backup is reading the tables; a later call continues
            log.warning("the partitions of old months were not dropped: %s", error)
        await self._remove_deleted()
        freed, self._freed = self._freed, Freed(blobs=0, bytes=0)
        return freed

    # --- nodes -------------------------------------------------------------------------

    async def wait_until_usable(self) -> None:
        await self._open.database.wait_until_usable(until=asyncio.get_running_loop().time() + JOIN_SECONDS)

    async def join(self, node: Node, load: Callable[[], NodeLoad] | None = None) -> None:
        self._node = node
        parts = self._open

        async def work(db: Connection, _: bool) -> None:
            await parts.keeper.join(node, load, db)

        # An earlier process with this id may still hold its lease.
        until = asyncio.get_running_loop().time() + self._lease_seconds + JOIN_SECONDS
        await parts.database.run(work, until=until)

    def announce_load(self) -> None:
        if self._parts is not None:
            self._parts.keeper.renew_now()

    async def nodes(self) -> list[Node]:
        return await self._read(lambda db: other_nodes(db, self._open.keeper.number))

    async def announced(self) -> list[Node]:
        return await self._read(all_nodes)

    def note_refused(self, url: str) -> None:
        self._open.keeper.note_refused(url)

    # --- migration from a home ---------------------------------------------------------

    async def begin_migration(self, source: str) -> None:
        """Begin a migration from the home with the name `source`, or continue it if it has begun.

        Raises:
            BadHome: the migration from `source` is already complete, or no migration from `source` has begun and
                the database is not empty.
        """
        location = self._open.database.location
        await self._read(lambda db: migration.begin_migration(db, source, location))

    async def raise_epochs(self, epoch: int) -> None:
        """Ensure that all leases acquired after this call have epochs higher than `epoch`, the highest epoch of the
        migrated home.
        """
        await self._read(lambda db: migration.raise_epochs(db, epoch))

    async def end_migration(self, source: str) -> None:
        """Record that the migration from the home `source` is complete. A complete migration cannot be
        continued.
        """
        await self._read(lambda db: migration.end_migration(db, source))

    # --- the state of the store --------------------------------------------------------

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        """Do nothing, because this store has no files."""

    async def describe(self) -> list[str]:
        """Return one sentence about the version of the database, one about the encryption of the connection, and
        one about the durability of writes.
        """
        return await self._read(inspection.describe)

    async def check(self) -> None:
        """Detect the leases that this process has lost, and call the callback `on_lost` of each of these leases.

        Raises:
            StoreFailed: the database cannot be reached.
        """
        if self._parts is not None and not self._closed:
            await self._parts.keeper.verify()

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
        return await self._read(
            lambda db: queries.entries_after(
                db, conversation_id, after, limit, max_bytes, visible_only=visible_only
            )
        )

    async def read_before(
        self, conversation_id: ConversationId, *, before: Seq, limit: int = PAGE, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        return await self._read(lambda db: queries.entries_before(db, conversation_id, before, limit, max_bytes))

    async def position_of(self, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
        return await self._read(lambda db: queries.position_of(db, conversation_id, kind, key))

    async def checkpoint(self, conversation_id: ConversationId) -> Checkpoint | None:
        return await self._read(lambda db: queries.checkpoint_of(db, conversation_id))

    async def head(self, conversation_id: ConversationId) -> Head:
        return await self._read(lambda db: queries.head(db, conversation_id))

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        return await self._read(lambda db: queries.changed_since(db, ends)) if ends else []

    async def find(self, query: Query) -> ConversationPage:
        return await self._read(lambda db: queries.find(db, query))

    async def search(self, query: SearchQuery) -> SearchPage:
        return await self._read(lambda db: search.search(db, query))

    async def has_approvals(self, approval_ids: Collection[ApprovalId]) -> bool:
        return await self._read(lambda db: queries.has_approvals(db, approval_ids))

    # --- tokens, sessions and sign-ins -------------------------------------------------

    async def add_token(self, token: StoredToken) -> bool:
        return await self._open.database.run(lambda db, again: tokens.add_token(db, token, again))

    async def tokens(self) -> list[StoredToken]:
        return await self._read(tokens.all_tokens)

    async def remove_token(self, name: str) -> bool:
        return await self._open.database.run(lambda db, again: tokens.remove_token(db, name, again))

    async def note_tokens_used(self, used: Mapping[bytes, float]) -> None:
        await self._read(lambda db: tokens.note_tokens_used(db, used))

    async def save_session(self, session: StoredSession, *, replacing: bytes | None) -> bool:
        return await self._read(lambda db: tokens.save_session(db, session, replacing))

    async def session(self, digest: bytes) -> StoredSession | None:
        return await self._read(lambda db: tokens.session_of(db, digest))

    async def session_revisions(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        return await self._read(lambda db: tokens.session_revisions(db, digests))

    async def note_sessions_used(self, used: Mapping[bytes, float]) -> None:
        await self._read(lambda db: tokens.note_sessions_used(db, used))

    async def remove_sessions(self, digests: Collection[bytes]) -> None:
        await self._open.database.run(lambda db, again: tokens.remove_sessions(db, digests, again))

    async def remove_unused_sessions(self, *, since: float) -> None:
        await self._read(lambda db: tokens.remove_unused_sessions(db, since))

    async def add_sign_in(self, sign_in: StoredSignIn) -> None:
        await self._read(lambda db: tokens.add_sign_in(db, sign_in))

    async def subscribe_sign_in(self, digest: bytes, push: bytes | None) -> bool:
        return await self._read(lambda db: tokens.subscribe_sign_in(db, digest, push))

    async def sign_in(self, digest: bytes) -> StoredSignIn | None:
        return await self._read(lambda db: tokens.sign_in_of(db, digest))

    async def sign_ins(self) -> list[StoredSignIn]:
        return await self._read(tokens.all_sign_ins)

    async def note_sign_ins_used(self, used: Mapping[bytes, float]) -> None:
        await self._read(lambda db: tokens.note_sign_ins_used(db, used))

    async def remove_sign_ins(self, digests: Collection[bytes]) -> int:
        return await self._open.database.run(lambda db, again: tokens.remove_sign_ins(db, digests, again))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._parts is not None:
            await self._parts.close()
        if self._background:
            await asyncio.wait(self._background)


class _Parts:
    """The components of an open store: the connections, the writer, the leases and the notifications."""

    def __init__(self, database: Database, host: str, node: Node | None, lease_seconds: float) -> None:
        self.database = database
        self.keeper = LeaseKeeper(
            database,
            host=host,
            node=node,
            lease_seconds=lease_seconds,
            on_given_up=lambda: self.writer.fail_lost(),
        )
        self.notifications = Notifications(database)
        self.writer = Writer(database, self.keeper, self._on_written)

    def _on_written(self, requests: Sequence[Request]) -> None:
        self.notifications.note(request.id for request in requests if not isinstance(request, SaveCheckpoint))

    async def registered(self) -> int:
        """Register this process as a lease holder, unless it is registered, and return its number."""

        async def work(db: Connection, _: bool) -> int:
            return await self.keeper.register()

        return await self.database.run(work)

    async def close(self) -> None:
        await self.writer.close()
        await self.keeper.close()
        await self.notifications.close()
        await self.database.close()


def _failed(error: Exception) -> Future[None]:
    future: Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
