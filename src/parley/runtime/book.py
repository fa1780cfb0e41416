"""One conversation as this process has it: its log, what follows from it, who reads it, and the right to write.

What is written is true at once for whoever writes next, and is shown when it is on disk. If that fails it has
not happened: everything goes back to what is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from parley.common.shield import run_to_completion
from parley.conversation.history import History
from parley.conversation.log import Delta, Entry, ItemKind, Log, LogPayload, encode_delta
from parley.conversation.output import OutputDelta, encode_output_delta
from parley.conversation.projections import Projections
from parley.conversation.records import CommandOutput, QuestionAsked, TurnEnded, record_type
from parley.conversation.state import Phase
from parley.conversation.usage import UsageTotals
from parley.errors import LeaseLost, Unreadable
from parley.ports.clock import Clock
from parley.ports.store import Lease, Store, Summary
from parley.runtime.readers import Reader
from parley.wire.events import OutputStream
from parley.wire.ids import CallId, ConversationId, ItemId, Seq

__all__ = ["BETWEEN_TRIES_SECONDS", "Book"]

log = logging.getLogger(__name__)

BETWEEN_TRIES_SECONDS: Final = 1.0
"""Time between two attempts to write an entry that the store refused."""

_ASKED: Final = record_type(QuestionAsked)
_ENDED: Final = record_type(TurnEnded)


class _Write:
    """Entries that were handed to the store."""

    __slots__ = ("before", "last", "phase", "shown", "written")

    def __init__(
        self,
        before: Seq,
        last: Seq,
        phase: Phase,
        shown: Callable[[], None] | None,
        written: asyncio.Future[None],
    ) -> None:
        self.before, self.last, self.phase, self.shown, self.written = before, last, phase, shown, written


class Book:
    """Writing is for whoever holds the lease; reading is for everybody. To a turn it is the `Transcript`."""

    def __init__(self, conversation_id: ConversationId, store: Store, clock: Clock) -> None:
        self.id = conversation_id
        self.log = Log()
        self.folds = Projections()
        self.phase = Phase.IDLE
        """As it is on disk: what was written just now may have changed it, and may be taken back."""
        self._store, self._clock = store, clock
        self._lease: Lease | None = None
        self._readers: list[Reader] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._in_flight: list[_Write] = []
        """Writes that the store has not confirmed, in order."""
        self._reading_on = asyncio.Lock()
        self._opening = False
        self._told_by: object = None
        self.on_taken: Callable[[], None] = lambda: None
        """Called when something was taken in that another process has written."""
        self.on_dropped: Callable[[Reader], None] = lambda reader: None
        """Called when a reader failed."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when another process has taken the right to write."""

    @property
    def history(self) -> History:
        return self.folds.history

    @property
    def spending(self) -> UsageTotals:
        return self.folds.spending

    @property
    def is_ours(self) -> bool:
        """Whether we may write."""
        return self._lease is not None

    @property
    def is_read(self) -> bool:
        """Whether somebody reads, or waits for something to read."""
        return bool(self._readers or self._waiting)

    # --- who may write -----------------------------------------------------------------

    async def create(self, *happened: LogPayload) -> None:
        """Begin the log.

        Raises:
            StoreFailed: it cannot be.
        """
        at = self._clock.now()
        entries = self.log.append(happened, at=at)
        for one in happened:
            self.folds.apply(one, at=at)
        await self._store.create(self.id, entries, self._summary())
        self.log.durable, self.phase = self.log.last, self.folds.state.phase

    async def load(self) -> None:
        """Take in what others have written since we looked last.

        Raises:
            UnknownConversation: it is not there, or not there any more.
            Unreadable: what is kept of it is damaged.
            StoreFailed: it cannot be read.
        """
        async with self._reading_on:
            while True:
                after = self.log.durable
                page = await self._store.read(self.id, after=after)
                if not page or self._lease is not None or self._told_by is not None:
                    return  # who writes knows everything, and who is told must not know more than that
                if after == self.log.durable:
                    self.take(page)

    async def open(self, *, address: str, until: float | None = None) -> None:
        """Take the right to write, and take in what others have written before.

        `address` is where this process listens to the others; `until` is the end of the wait for the write lock.

        Raises:
            OwnedElsewhere: another has it.
            UnknownConversation: it is not there any more.
            Unreadable: what is kept of it is damaged.
            StoreFailed: it cannot be.
        """
        if self._lease is not None:
            return
        lease = await self._store.acquire(self.id, address=address, until=until)
        self._opening, self._told_by = True, None
        try:
            if self.log.durable != lease.last:
                await self.load()
            if self.log.durable != lease.last:
                raise Unreadable(self.id, f"it ends at {self.log.durable} and should at {lease.last}")
        except BaseException:
            await run_to_completion(asyncio.ensure_future(self._store.release(lease)))
            raise
        finally:
            self._opening = False
        self._lease = lease
        self.log.begin_series(lease.epoch)

    async def close(self) -> None:
        """Give the right to write back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await run_to_completion(asyncio.ensure_future(self._store.release(lease)))

    async def delete(self) -> None:
        """Remove it for ever; the right to write goes with it."""
        lease, self._lease = self._lease, None
        assert lease is not None
        try:
            await run_to_completion(asyncio.ensure_future(self._store.delete(lease)))
        except BaseException:
            await run_to_completion(asyncio.ensure_future(self._store.release(lease)))
            raise

    # --- what others write ---------------------------------------------------------------

    def be_told(self, *, by: object, after: Seq) -> bool:
        """From here on, have what others write from `by` alone. Refused where the log does not end there, or we are
        about to write ourselves."""
        if self._opening or self._lease is not None or after != self.log.durable:
            return False
        self._told_by = by
        return True

    def is_told_by(self, by: object) -> bool:
        return self._told_by is by

    def be_told_no_more(self) -> None:
        self._told_by = None

    def take(self, entries: Sequence[Entry]) -> None:
        """Take in what another process has written.

        Raises:
            Unreadable: one of them is damaged; some of those before it may have been taken in.
        """
        for some in _between_questions(entries):
            self.log.take(some)
            try:
                self.folds.replay(some)
            except ValueError as error:
                self._go_back(self.log.durable)
                raise Unreadable(self.id, str(error)) from error
            for reader in self._readers:
                reader.appended(some[0].seq)
            if any(entry.type == _ENDED for entry in some):
                self.log.discard_open()  # whoever was killed has ended nothing of what it was saying
            self.log.durable, self.phase = self.log.last, self.folds.state.phase
            self._show()
            self.on_taken()

    # --- writing -----------------------------------------------------------------------

    async def writable(self, *, until: float) -> None:
        """Return once the store can write.

        A client's write awaits this while a turn runs: the turn's own writes would be after it, and would fail with
        it where it cannot wait as long as they can.

        Raises:
            WriteLockHeld: another process holds the write lock of the home.
        """
        await self._store.writable(until=until)

    async def append(self, *happened: LogPayload, until: float | None = None) -> None:
        """Write these down, all or none; return when they are on disk and shown.

        Waits for the write lock of the home until the moment `until`; by default as long as a turn does.

        Raises:
            StoreFailed: they cannot be; nothing has happened.
            LeaseLost: another process has taken over.
        """
        if happened:
            await run_to_completion(self.write(*happened, until=until))

    def write(
        self, *happened: LogPayload, shown: Callable[[], None] | None = None, until: float | None = None
    ) -> asyncio.Future[None]:
        """Like `append`, but return a future that is done when the entries are on disk and shown.

        `shown` is called when they are on disk, before any reader sees them.
        """
        if self._lease is None:
            raise LeaseLost
        at, before = self._clock.now(), self.log.last
        entries = self.log.append(happened, at=at)  # this can fail, and then nothing has happened
        try:
            for one in happened:
                self.folds.apply(one, at=at)
        except (ValueError, MemoryError):
            self._go_back(before)
            raise
        for reader in self._readers:
            reader.appended(entries[0].seq)
        written = self._store.append(self._lease, entries, self._summary(), until=until)
        write = _Write(before, entries[-1].seq, self.folds.state.phase, shown, written)
        self._in_flight.append(write)
        finish = partial(self._written, write)
        if written.done():
            finish(written)
        else:
            written.add_done_callback(finish)
        return written

    async def durable(self) -> None:
        """Return when no append is under way, whether those under way succeed or not."""
        while self._in_flight:
            await asyncio.wait({self._in_flight[-1].written})

    def _written(self, write: _Write, written: asyncio.Future[None]) -> None:
        error = written.exception()
        if write not in self._in_flight:
            return  # a write before it failed, and this one was taken back with it
        if error is not None:
            self._take_back(write, error)
            return
        self._in_flight.remove(write)
        self.log.durable, self.phase = write.last, write.phase
        if write.shown is not None:
            write.shown()
        self._show()

    def _take_back(self, write: _Write, error: BaseException) -> None:
        """Undo a failed write and those after it. Writes before it may still succeed."""
        log.error("%s: %s", self.id, error)
        if isinstance(error, LeaseLost):
            self._in_flight.clear()
            self._go_back(self.log.durable)
        else:
            del self._in_flight[self._in_flight.index(write) :]
            self._go_back(write.before)
        if isinstance(error, LeaseLost):
            self._lease = None
            self.log.discard_open()
        self._show()
        if isinstance(error, LeaseLost):
            self.on_lost()

    def _go_back(self, position: Seq) -> None:
        self.log.truncate(position)
        self.folds.begin()
        self.folds.replay(self.log.entries)

    def extend(self, kind: ItemKind, text: str) -> None:
        """More of what is being said."""
        delta = self.log.extend(kind, text)
        if self._readers:
            self.show_delta(delta, encode_delta(delta))

    def unfinished(self, kind: ItemKind) -> str:
        """What was said so far of what is being said."""
        item = self.log.open.get(kind)
        return item.text() if item else ""

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        """More of what a command says."""
        for delta in self.log.extend_output(call_id, stream, data):
            # A list of byte values is costly, and while a command floods, often nobody can take it.
            taken = any(reader.keeps_up for reader in self._readers)
            self.show_delta(delta, encode_output_delta(delta) if taken else b"")

    def kept_output(self, call_id: CallId) -> CommandOutput | None:
        """What is kept of what a command has said."""
        return next(self.log.kept_outputs(call_id), None)

    def mirror(self, item: ItemId, kind: ItemKind, offset: int, text: str) -> None:
        """More of what is being said in another process."""
        if (delta := self.log.mirror(item, kind, offset, text)) is not None and self._readers:
            self.show_delta(delta, encode_delta(delta))

    def mirror_output(self, item: ItemId, call_id: CallId, stream: OutputStream, offset: int, data: bytes) -> None:
        """More of what a command says in another process."""
        delta = self.log.mirror_output(item, call_id, stream, offset, data)
        if delta is not None and self._readers:
            self.show_delta(delta, encode_output_delta(delta))

    def show_delta(self, delta: Delta | OutputDelta, encoded: bytes) -> None:
        for reader in self._readers:
            reader.delta(delta, encoded)

    def _summary(self) -> Summary:
        return Summary.of(self.folds.state, is_active=True)

    # --- reading -----------------------------------------------------------------------

    def attach(self, reader: Reader) -> None:
        """Let a reader follow from its cursor on; it says what it lacks when the next entry is shown."""
        self._readers.append(reader)

    def detach(self, reader: Reader) -> bool:
        """Forget a reader; whether it was one."""
        reader.close()
        if reader not in self._readers:
            return False
        self._readers.remove(reader)
        return True

    async def wait_beyond(self, position: Seq) -> None:
        """Return when there may be something behind a position: after a write, or a `wake`."""
        if self.log.durable > position:
            return
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        try:
            await changed
        finally:
            if changed in self._waiting:
                self._waiting.remove(changed)

    def wake(self) -> None:
        """Whoever waits shall look again."""
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def _show(self) -> None:
        for reader in tuple(self._readers):
            try:
                reader.pump()
            except Exception as error:  # a bug of ours, or no memory; it may cost this reader, never the turn
                is_bug = not isinstance(error, MemoryError)
                log.error("a reader of %s failed and was dropped", self.id, exc_info=is_bug)
                self.detach(reader)
                self.on_dropped(reader)
                reader.on_dropped()
        self.wake()


def _between_questions(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """In pieces, so that whoever was asked hears that a question is settled before the next one is asked."""
    begin = 0
    for place, entry in enumerate(entries):
        if entry.type == _ASKED and place > begin:
            yield entries[begin:place]
            begin = place
    yield entries[begin:]
