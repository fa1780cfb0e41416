"""The log of one conversation in this process: entries, projections, readers, and the lease.

The projections include an appended entry immediately, but readers see the entry only when it is durable. If the
store cannot write an entry, the log and its projections roll back to the last durable entry. The newest entries are
in memory; earlier entries are read from the store.

Approvals, turns and connections to other processes are in other modules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from parley.common.shield import run_to_completion
from parley.common.telemetry import telemetry
from parley.conversation.errors import EarlierEntriesNeeded
from parley.conversation.history import History
from parley.conversation.log import Entry, ItemKind, Log, LogPayload, encode_delta
from parley.conversation.output import encode_output_delta
from parley.conversation.projections import Projections
from parley.conversation.queue import Queue
from parley.conversation.records import CommandOutput, TurnEnded, record_type
from parley.conversation.state import Phase
from parley.conversation.usage import UsageTotals
from parley.errors import LeaseLost, Unreadable
from parley.ports.clock import Clock
from parley.ports.store import PAGE, Lease, Store, Summary
from parley.runtime.checkpoints import Checkpoints
from parley.runtime.log_readers import LogReaders
from parley.wire.events import OutputStream
from parley.wire.ids import START, CallId, ConversationId, ItemId, MessageId, Seq
from parley.wire.tools import AttentionState

__all__ = ["READ_BYTES", "WRITE_RETRY_SECONDS", "DurableLog"]

log = logging.getLogger(__name__)

WRITE_RETRY_SECONDS: Final = 1.0
"""The delay, in seconds, after which a write that the store could not execute is tried again."""

READ_BYTES: Final = 1024 * 1024
"""The default maximum size of a page of entries, in bytes. The limit is low because decoding and encoding a page
must not block the event loop.
"""

_ENDED: Final = record_type(TurnEnded)


class _Write:
    """The entries of one append that has been submitted to the store."""

    __slots__ = ("before", "last", "on_durable", "phase", "written")

    def __init__(
        self,
        before: Seq,
        last: Seq,
        phase: Phase,
        on_durable: Callable[[], None] | None,
        written: asyncio.Future[None],
    ) -> None:
        self.before, self.last, self.phase = before, last, phase
        self.on_durable, self.written = on_durable, written


class DurableLog:
    """The log of one conversation, with its projections, readers and lease. This class implements the port
    `Transcript` for turns.
    """

    def __init__(
        self,
        conversation_id: ConversationId,
        store: Store,
        clock: Clock,
        *,
        checkpoints: Checkpoints | None = None,
        on_listing: Callable[[bool], None] = lambda changes_title: None,
        on_attention: Callable[[AttentionState], None] = lambda state: None,
    ) -> None:
        """Create an empty log.

        `on_listing` is called when the phase or the title has changed. The argument of `on_listing` is True if the
        title has changed. `on_attention` is called when an approval request or the end of a turn becomes durable,
        if this process has appended it.
        """
        self.id = conversation_id
        self.log = Log()
        self.projections = Projections(MessageId(conversation_id))
        self.phase = Phase.IDLE
        """The phase at the last durable entry."""
        self._on_listing, self._on_attention = on_listing, on_attention
        self._listed = Phase.IDLE, ""
        self.lease_lost: asyncio.Future[None] | None = None
        """A future that is done when the lease is lost to another process; None while this process does not hold
        the lease.
        """
        self.lease_ended: asyncio.Future[None] | None = None
        """A future that is done when the lease has been lost or released; None while this process does not hold the
        lease.
        """
        self._store, self._clock = store, clock
        self._checkpoints = checkpoints or Checkpoints(conversation_id, store)
        self._holds_texts = False
        """True between `hold_texts` and `release_texts`, while a turn needs the content of the whole history in
        memory.
        """
        self._lease: Lease | None = None
        self.readers = LogReaders(conversation_id)
        self._in_flight: list[_Write] = []
        """The writes that were submitted to the store and are not durable yet, in order."""
        self._loading = asyncio.Lock()
        self._acquiring = False
        self._source: object = None
        """The connection over which the owner sends the entries; None if the entries are loaded from the store."""

    @property
    def history(self) -> History:
        return self.projections.history

    @property
    def usage(self) -> UsageTotals:
        return self.projections.usage

    @property
    def queue(self) -> Queue:
        return self.projections.queue

    @property
    def is_owner(self) -> bool:
        """True if this process holds the lease."""
        return self._lease is not None

    @property
    def is_writing(self) -> bool:
        """True if an append is in progress."""
        return bool(self._in_flight)

    @property
    def lacks_checkpoint(self) -> bool:
        """True if the log is long and the store has no checkpoint near the end of the log. The next call of
        `acquire` then stores a checkpoint.
        """
        return self._checkpoints.is_lacking

    # --- the lease ---------------------------------------------------------------------

    async def create(self, *payloads: LogPayload) -> None:
        """Store a new log with the given entries.

        Raises:
            StoreFailed: nothing was stored.
        """
        at = self._clock.now()
        entries = self.log.append(payloads, at=at)
        for one in payloads:
            self.projections.apply(one, at=at)
        await self._store.create(self.id, entries, self._summary())
        self.log.durable, self.phase = self.log.last, self.projections.state.phase

    async def load(self) -> None:
        """Load the entries that other processes have appended since the last call.

        Raises:
            UnknownConversation: the conversation does not exist or has been deleted.
            Unreadable: the stored data is damaged.
            StoreFailed: the store cannot be read.
        """
        async with self._loading:
            if self.log.last == START:
                await self._begin()
            while True:
                after = self.log.durable
                page = await self._store.read(self.id, after=after, max_bytes=READ_BYTES)
                if not page or not self._may_load:
                    return
                if after == self.log.durable:
                    await self._apply_page(page)
                await asyncio.sleep(0)  # let other tasks run, because a store in memory never waits

    @property
    def _may_load(self) -> bool:
        """True if entries may be loaded from the store.

        The value is False for the owner, which already has all entries, and for a follower, which gets entries only
        from the owner.
        """
        return self._lease is None and self._source is None

    async def _begin(self) -> None:
        """Load the first page of entries. If the log is longer than this page and has a checkpoint, load the
        checkpoint instead.
        """
        limit = self._checkpoints.every  # there is no checkpoint before this position
        page = await self._store.read(self.id, after=START, limit=limit, max_bytes=READ_BYTES)
        is_whole = len(page) < limit and sum(entry.size for entry in page) <= READ_BYTES
        restored = None if is_whole else await self._checkpoints.restore()
        if not page or self.log.last != START or not self._may_load:
            return
        if restored is None:
            await self._apply_page(page)
            return
        self.log.begin_after(restored.position)
        self.projections, self.phase = restored, restored.state.phase
        self._checkpoints.replace(restored.copy())

    async def _apply_page(self, page: Sequence[Entry]) -> None:
        try:
            self.apply_remote(page)
        except EarlierEntriesNeeded:
            await self.fold_whole()
            if page[0].seq == self.log.durable + 1 and self._may_load:
                self.apply_remote(page)

    async def fold_whole(self) -> None:
        """Compute the projections from the first entry of the log, so that a branch can begin at any message.

        Raises:
            UnknownConversation: the conversation has been deleted.
            Unreadable: the stored data is damaged.
            StoreFailed: the store cannot be read.
        """
        whole = Projections(MessageId(self.id))
        settled = self._checkpoints.newest_position  # the projections are settled at this position
        copied: Projections | None = None
        while whole.position < self.log.durable:
            if whole.position == settled and copied is None:
                copied = whole.copy()
            last = settled if whole.position < settled else self.log.durable
            page = await self.read_after(whole.position, limit=min(PAGE, last - whole.position))
            if not page:
                raise Unreadable(self.id, f"entry {whole.position + 1} is missing")
            try:
                whole.replay(page)
            except ValueError as error:
                raise Unreadable(self.id, str(error)) from error
            whole.history.drop_texts()
            await asyncio.sleep(0)
        if copied is None and whole.position == settled:
            copied = whole.copy()
        whole.replay(self.log.between(self.log.durable, self.log.last))
        whole.history.take_texts(self.projections.history, self.log.last)
        whole.state.forget(self.log.base)
        self.projections = whole
        if copied is not None and settled == self._checkpoints.newest_position:
            self._checkpoints.replace(copied)

    async def has_owner(self) -> bool:
        """Return whether any process holds the lease.

        Raises:
            UnknownConversation: the conversation has been deleted.
            StoreFailed: the store cannot be read.
        """
        return (await self._store.head(self.id)).owner is not None

    async def acquire(self, *, address: str, until: float | None = None) -> None:
        """Acquire the lease, and load the entries that other processes have appended. Do nothing if this process
        already holds the lease.

        `address` is the address at which this process listens for other processes. `until` is the deadline for the
        write lock, in seconds on the event loop's clock.

        Raises:
            OwnedElsewhere: another process holds the lease.
            WriteLockHeld: another process still holds the write lock at the time `until`.
            UnknownConversation: the conversation has been deleted.
            Unreadable: the stored data is damaged.
            StoreFailed: the lease cannot be acquired.
        """
        if self._lease is not None:
            return
        lease = await self._store.acquire(self.id, address=address, until=until, on_lost=self._on_lost)
        self._acquiring, self._source = True, None
        try:
            if self.log.durable != lease.last:
                await self.load()
            if self.log.durable != lease.last:
                raise Unreadable(self.id, f"it ends at {self.log.durable} and should at {lease.last}")
        except BaseException:
            await run_to_completion(asyncio.ensure_future(self._store.release(lease)))
            raise
        finally:
            self._acquiring = False
        self._lease = lease
        self.lease_lost = asyncio.get_running_loop().create_future()
        self.lease_ended = asyncio.get_running_loop().create_future()
        self.log.begin_series(lease.epoch)
        self._checkpoints.store_newest(lease)

    async def release(self) -> None:
        """Release the lease, if it is held. The caller must not be cancelled during the call."""
        lease, self._lease, self.lease_lost = self._lease, None, None
        if lease is not None:
            try:
                await self._checkpoints.finish(lease)
                await self._store.release(lease)
            finally:
                self._end_lease()

    def _end_lease(self) -> None:
        ended, self.lease_ended = self.lease_ended, None
        if ended is not None:
            ended.set_result(None)

    async def delete(self) -> None:
        """Delete the conversation, and release the lease. The caller must hold the lease.

        Raises:
            StoreError: the conversation cannot be deleted. The lease is released nevertheless.
        """
        lease, self._lease, self.lease_lost = self._lease, None, None
        assert lease is not None
        try:
            await run_to_completion(asyncio.ensure_future(self._store.delete(lease)))
        except BaseException:
            await run_to_completion(asyncio.ensure_future(self._store.release(lease)))
            raise
        finally:
            self._end_lease()

    # --- entries of other processes ----------------------------------------------------

    def attach_source(self, source: object, *, after: Seq) -> bool:
        """From now on, accept entries from the owner only over the connection `source`, and return True.

        If the log does not end at the position `after`, or if this process is the owner or is about to become the
        owner, change nothing and return False.
        """
        if self._acquiring or self._lease is not None or after != self.log.durable:
            return False
        self._source = source
        return True

    def has_source(self, source: object) -> bool:
        return self._source is source

    def detach_source(self) -> None:
        self._source = None

    def apply_remote(self, entries: Sequence[Entry]) -> None:
        """Add entries that another process has stored. If an error is raised, no entry is added.

        Raises:
            Unreadable: an entry is damaged.
            EarlierEntriesNeeded: an entry begins a branch at a message that is not in memory.
        """
        self.log.append_entries(entries)
        try:
            self.projections.replay(entries)
        except EarlierEntriesNeeded:
            self._rollback(self.log.durable)
            raise
        except ValueError as error:
            self._rollback(self.log.durable)
            raise Unreadable(self.id, str(error)) from error
        self.readers.appended(entries[0].seq)
        if any(entry.type == _ENDED for entry in entries):
            self.log.discard_open()  # a process that was killed has left its items open
        self.log.durable, self.phase = self.log.last, self.projections.state.phase
        self.readers.pump()
        self._note_listing()
        self._trim()

    # --- appending ---------------------------------------------------------------------

    async def writable(self, *, until: float) -> None:
        """Wait until the store can write, at most until the time `until` on the event loop's clock.

        During a turn, call this method before a write for a client. If the client's write waited in the store's
        queue, later writes of the turn would be queued after it, and would fail when the deadline of the client's
        write expires, although their own deadline is later.

        Raises:
            WriteLockHeld: another process still holds the write lock at the time `until`.
        """
        await self._store.writable(until=until)

    async def append(self, *payloads: LogPayload, until: float | None = None) -> None:
        """Append all of the entries or none of them. Return when the entries are durable and have been sent to
        readers.

        `until` is the deadline for the write lock, in seconds on the event loop's clock. The default is
        `TURN_SECONDS` from now.

        Raises:
            WriteLockHeld: another process still holds the write lock at the time `until`.
            StoreFailed: the entries cannot be stored for another reason.
            LeaseLost: another process has acquired the lease.
        """
        if payloads:
            await run_to_completion(self.write(*payloads, until=until))

    def write(
        self, *payloads: LogPayload, on_durable: Callable[[], None] | None = None, until: float | None = None
    ) -> asyncio.Future[None]:
        """Append entries as `append` does. Return a future that is done when the entries are durable and have been
        sent to readers. The future fails with the errors that `append` raises.

        `on_durable` is called when the entries become durable, before any reader sees them. `until` has the same
        meaning as for `append`.
        """
        if self._lease is None:
            raise LeaseLost
        at, before = self._clock.now(), self.log.last
        entries = self.log.append(payloads, at=at)  # if this call raises an error, nothing has changed
        try:
            for one in payloads:
                self.projections.apply(one, at=at)
        except (ValueError, MemoryError):
            self._rollback(before)
            raise
        self.readers.appended(entries[0].seq)
        written = self._store.append(self._lease, entries, self._summary(), until=until)
        write = _Write(before, entries[-1].seq, self.projections.state.phase, on_durable, written)
        self._in_flight.append(write)
        finish = partial(self._written, write)
        if telemetry.is_active:
            telemetry.events += sum(entry.is_event for entry in entries)
            finish = partial(_measured, finish, time.perf_counter())
        if written.done():
            finish(written)
        else:
            written.add_done_callback(finish)
        return written

    async def durable(self) -> None:
        """Wait until no append is in progress, whether the appends succeed or fail."""
        while self._in_flight:
            await asyncio.wait({self._in_flight[-1].written})

    def _written(self, write: _Write, written: asyncio.Future[None]) -> None:
        error = written.exception()
        if write not in self._in_flight:
            return  # an earlier write failed, and this write was rolled back with it
        if error is not None:
            self._undo(write, error)
            return
        self._in_flight.remove(write)
        before = self.phase
        self.log.durable, self.phase = write.last, write.phase
        if write.on_durable is not None:
            write.on_durable()
        self.readers.pump()
        self._note_listing()
        if self.phase is not before:
            self._note_attention()
        self._trim()

    def _note_listing(self) -> None:
        """Call `on_listing` if the phase or the title has changed."""
        before, self._listed = self._listed, (self.phase, self.projections.state.title)
        if before != self._listed:
            self._on_listing(before[1] != self._listed[1])

    def _note_attention(self) -> None:
        """After a change of the phase, call `on_attention` if the conversation now waits for a person or its turn
        has ended.
        """
        outcome = self.projections.state.outcome
        if self.phase is Phase.ASKING:
            self._on_attention("waiting")
        elif self.phase is Phase.IDLE and outcome is not None:
            self._on_attention("failed" if outcome.has_failed else "finished")

    def _undo(self, write: _Write, error: BaseException) -> None:
        """Remove the entries of a failed write and of all later writes from the log, and set `error` on their
        futures.

        Earlier writes may still succeed.
        """
        log.error("%s: %s", self.id, error)
        if isinstance(error, LeaseLost):
            self._lose_lease()
        else:
            del self._in_flight[self._in_flight.index(write) :]
            self._rollback(write.before)
            self.readers.pump()

    def _on_lost(self) -> None:
        """Roll back to the durable entries, because the store has reported that the lease is lost.

        Do nothing if this process does not hold the lease.
        """
        if self._lease is not None:
            self._lose_lease()

    def _lose_lease(self) -> None:
        """Give up the lease and roll back to the durable entries, because another process has acquired the lease or
        deleted the conversation.
        """
        self._lease = None
        self._in_flight.clear()
        self._rollback(self.log.durable)
        self.log.discard_open()
        self.readers.pump()
        if self.lease_lost is not None:
            lost, self.lease_lost = self.lease_lost, None
            lost.set_result(None)
        self._end_lease()

    def _rollback(self, position: Seq) -> None:
        self.log.truncate(position)
        texts, base = self.projections.history, self._checkpoints.newest
        self.projections = Projections(MessageId(self.id)) if base is None else base.copy()
        self.projections.history.take_texts(texts, self.projections.position)
        self.projections.replay(self.log.between(self.projections.position, position))
        self.projections.forget(self.log.base)

    def _trim(self) -> None:
        """Do nothing if no checkpoint is due. Otherwise, add a checkpoint if one can be made now, and remove old
        durable entries from memory.
        """
        if not self._checkpoints.is_due(self.log.durable):
            return
        try:
            if self.log.is_durable and self.projections.is_settled:
                self._checkpoints.add(self.projections)
                if self._lease is not None:
                    self._checkpoints.store_newest(self._lease)
            base = self._checkpoints.tail_base(self.log.durable)
        except MemoryError:
            return  # a later call tries again
        if base > self.log.base:
            self.log.trim(base)
            self.projections.forget(base)
            if not self._holds_texts:
                self.history.drop_texts(base)

    # --- open items --------------------------------------------------------------------

    def extend(self, kind: ItemKind, text: str) -> None:
        """Append `text` to the open item of the given kind, and send the delta to readers."""
        delta = self.log.extend(kind, text)
        if self.readers.attached:
            self.readers.delta(delta, encode_delta(delta))

    def unfinished(self, kind: ItemKind) -> str:
        """Return the text so far of the open item of the given kind; an empty string if no item of this kind is
        open.
        """
        item = self.log.open.get(kind)
        return item.text() if item else ""

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        """Append `data` to the output of the running command with the given call id, and send the deltas to
        readers.
        """
        for delta in self.log.extend_output(call_id, stream, data):
            telemetry.deltas += 1
            # Encoding is expensive. While a command writes a lot of output, often no reader keeps up.
            taken = any(reader.keeps_up for reader in self.readers.attached)
            self.readers.delta(delta, encode_output_delta(delta) if taken else b"")

    def output_so_far(self, call_id: CallId) -> CommandOutput | None:
        """Return the output so far of the running command with the given call id, as a record; None if there is no
        output.
        """
        return next(self.log.output_records(call_id), None)

    def mirror(self, item: ItemId, kind: ItemKind, offset: int, text: str) -> None:
        """Append `text`, which the owner has sent, to the open item `item`, and send the delta to readers.

        `offset` is the position of `text` in the whole text of the item, in code points. A part of `text` that the
        log already contains is not appended again.
        """
        if (delta := self.log.mirror(item, kind, offset, text)) is not None and self.readers.attached:
            self.readers.delta(delta, encode_delta(delta))

    def mirror_output(self, item: ItemId, call_id: CallId, stream: OutputStream, offset: int, data: bytes) -> None:
        """Append `data`, output of a command that the owner is running, to the open item `item`, and send the
        deltas to readers.

        `offset` is the position of `data` in the whole output of the item, in bytes. A part of `data` that the log
        already contains is not appended again.
        """
        delta = self.log.mirror_output(item, call_id, stream, offset, data)
        if delta is not None and self.readers.attached:
            self.readers.delta(delta, encode_output_delta(delta))

    def _summary(self) -> Summary:
        return Summary.of(self.projections.state, is_active=True)

    # --- reading -----------------------------------------------------------------------

    async def read_after(
        self, after: Seq, *, limit: int = PAGE, max_bytes: int = READ_BYTES, visible_only: bool = False
    ) -> Sequence[Entry]:
        """Return a page of the durable entries after the position `after`, from memory or from the store. The page
        is empty if the log has no durable entry after this position.

        A page has at most `limit` entries, and ends with the entry that makes the page larger than `max_bytes`
        bytes. If `visible_only` is True, entries that clients do not see may be left out, except the last entry of
        the page.

        Raises:
            UnknownConversation: the conversation has been deleted.
            Unreadable: the next entry is damaged.
            StoreFailed: the store cannot be read.
        """
        if after >= self.log.durable:
            return ()
        if after < self.log.base:
            limit = min(limit, self.log.durable - after)
            return await self._store.read(
                self.id, after=after, limit=limit, max_bytes=max_bytes, visible_only=visible_only
            )
        return _page(self.log.between(after, min(self.log.durable, Seq(after + limit))), max_bytes)

    async def read_before(self, before: Seq, *, limit: int = PAGE, max_bytes: int = READ_BYTES) -> Sequence[Entry]:
        """Return the last durable entries before the position `before`, in order.

        `limit` and `max_bytes` limit the page as for `read_after`. The errors are also the same as for
        `read_after`.
        """
        before = min(before, Seq(self.log.durable + 1))
        if before <= START + 1:
            return ()
        after = Seq(max(START, before - 1 - limit))
        if after < self.log.base:
            return await self._store.read_before(self.id, before=before, limit=limit, max_bytes=max_bytes)
        return _page(self.log.between(after, Seq(before - 1))[::-1], max_bytes)[::-1]

    async def entry_at(self, position: Seq) -> Entry:
        """Return the durable entry at a position, from memory or from the store.

        Raises:
            StoreError: the entry cannot be read.
        """
        page = await self.read_after(Seq(position - 1), limit=1)
        if not page:
            raise Unreadable(self.id, f"entry {position} is missing")
        return page[0]

    async def hold_texts(self) -> None:
        """Load the content of those history items whose content is not in memory. Keep the content of all history
        items in memory until `release_texts` is called.

        Raises:
            UnknownConversation: the conversation has been deleted.
            Unreadable: the stored data is damaged.
            StoreFailed: the store cannot be read.
        """
        self._holds_texts = True
        if self.log.base == START:
            return  # all texts are already in memory
        missing = self.history.missing
        wanted, at = set(missing), 0
        while at < len(missing):
            page = await self.read_after(Seq(missing[at] - 1))
            if not page:
                raise Unreadable(self.id, f"entry {missing[at]} is missing")
            try:
                for entry in page:
                    if entry.seq in wanted:
                        self.projections.supply(entry)
            except ValueError as error:
                raise Unreadable(self.id, str(error)) from error
            at = bisect_right(missing, page[-1].seq)
            await asyncio.sleep(0)

    def release_texts(self) -> None:
        """Remove from memory the content of the history items whose entries the log no longer has in memory."""
        self._holds_texts = False
        self.history.drop_texts(self.log.base)

    async def position_of(self, kind: str, key: str) -> Seq | None:
        """Return the position of the first stored entry that has the type `kind` and the key `key`
        (`conversation/keys.py`). Return None if there is no such entry.

        Raises:
            UnknownConversation: the conversation has been deleted.
            StoreFailed: the store cannot be read.
        """
        return await self._store.position_of(self.id, kind, key)

    async def wait_beyond(self, position: Seq) -> None:
        """Wait until the log has a durable entry after the position `position`.

        `LogReaders.wake` also ends the wait, so the caller must check the log again.
        """
        if self.log.durable > position:
            return
        await self.readers.wait()


def _page(entries: Sequence[Entry], max_bytes: int) -> Sequence[Entry]:
    """Return the first entries, up to and including the entry at which their total size exceeds `max_bytes`."""
    size = 0
    for number, entry in enumerate(entries, start=1):
        size += entry.size
        if size > max_bytes:
            return entries[:number]
    return entries


def _measured(finish: Callable[[asyncio.Future[None]], None], began: float, written: asyncio.Future[None]) -> None:
    """Report to logs, metrics and traces how long a write took. Then call `finish` with `written`, the completed
    future of the write. `began` is the time when the write began.
    """
    outcome = "ok" if written.exception() is None else "failed"
    telemetry.measure("store_append", time.perf_counter() - began, outcome)
    finish(written)
