"""The one thread that writes: whatever was handed over meanwhile is one transaction, and one sync of the disk.

It opens the home when it has something to do for the first time, and closes it last. It does not know what it
writes. SQLite is imported in it, so that nobody waits for that who never writes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parley.errors import ParleyError, StoreFailed
from parley.ports.store import PAGE
from parley.stores.batch import Batch

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.opening import Opened

__all__ = ["Writer"]

log = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
"""How far the log of the database grows before it is folded in: enough to be seldom, little to recover from."""

COMMIT_BYTES: Final = 16 * 1024
"""What the smallest transaction adds to that log: some pages."""

INDEX_BYTES: Final = 4096
"""What a batch adds besides what is in it: the page of the index on which its conversation ends."""

CLOSE_SECONDS: Final = 10.0
"""How long closing waits where another process was stopped while it holds the write lock."""

A = TypeVar("A")
T = TypeVar("T")


WriteMany = Callable[["Connection", Sequence[A]], Sequence[T | ParleyError]]
"""Writes what was asked for one after another, and says of each what came of it. It checks before it changes
anything, and may be run again if it was undone."""


class _Job:
    """Something to be written: one of those that `work` writes together."""

    __slots__ = ("batch", "future", "one", "work")

    def __init__(self, future: Future[Any], work: WriteMany[Any, Any], one: Any, batch: Batch | None) -> None:
        self.future, self.work, self.one, self.batch = future, work, one, batch


_Outcome = tuple["Future[Any]", Any, Exception | None]


class Writer:
    """Takes work from one event loop, and answers there."""

    def __init__(self, find_home: Callable[[], str]) -> None:
        self._find_home = find_home
        self._home = ""
        self._jobs: deque[_Job] = deque()
        self._more: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread."""
        self._waking = False
        self._loop: AbstractEventLoop | None = None
        self._ended: Future[None] | None = None
        self._deciding = threading.Lock()
        """Held for moments, by whoever moves jobs on."""
        self._waiting: Sequence[_Job] = ()
        """What the thread has taken and not begun. What it has begun, only it can say what came of."""
        self._given_up = False
        self._closing = False
        self._grown = 0
        self.opened: Opened | None = None
        """Set by the thread, before it answers the first job."""

    def submit(self, work: Callable[[Connection], T], batch: Batch | None = None) -> Future[T]:
        """Have it done in a transaction, behind what was submitted before. What it raises fails the future.

        It checks before it changes anything, and may be run again if it was undone.
        """
        return self.submit_one(_alone, work, batch)

    def submit_one(self, work: WriteMany[A, T], one: A, batch: Batch | None = None) -> Future[T]:
        """As `submit`, for something that can be written together with others of its kind."""
        loop = asyncio.get_running_loop()
        future: Future[T] = loop.create_future()
        if self._closing:
            future.set_exception(StoreFailed("the store is closed"))
            return future
        if self._loop is None:
            self._loop, self._ended = loop, loop.create_future()
            threading.Thread(target=self._run, name="parley-write", daemon=True).start()
        self._jobs.append(_Job(future, work, one, batch))
        if not self._waking:
            self._waking = True
            loop.call_soon(self._wake)
        return future

    def _wake(self) -> None:
        """At the end of the tick: what many tasks submit in it is one transaction."""
        self._waking = False
        self._more.put(None)

    def fold_soon(self) -> None:
        """Have the log of the database folded in with the next transaction: only then a database gets smaller."""
        self._grown = CHECKPOINT_BYTES

    async def close(self) -> None:
        """Finish all that was submitted; fail what cannot be begun, at once where the caller is cancelled."""
        if not self._closing:
            self._closing = True
            self._more.put(None)
        if self._ended is None:
            return
        try:
            await asyncio.wait((self._ended,), timeout=CLOSE_SECONDS)
        finally:
            if not self._ended.done() and not self._given_up:
                self._give_up()

    def _give_up(self) -> None:
        """Another process has the lock and does not let go. The thread begins nothing any more, and ends when it
        gets it."""
        with self._deciding:
            self._given_up = True
            undone = [*self._waiting, *self._jobs]
            self._jobs.clear()
        why = StoreFailed("another process has held the write lock until the store was closed")
        _settle((job.future, None, why) for job in undone)

    # --- in the thread -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._given_up and (jobs := self._taken()):
            self._do(jobs)
        try:
            if self.opened is not None:
                self.opened.close()
        except Exception:
            log.exception("the database of %s was not closed as it should", self._home)
        self._tell(self._end)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _taken(self) -> list[_Job]:
        """What waits, a page of rows at most; nothing: no more will come."""
        closing = self._closing  # looked at first: nothing is submitted behind it
        while not self._jobs:
            if closing:
                return []
            self._more.get()
            closing = self._closing
        jobs: list[_Job] = []
        rows = 0
        with self._deciding:
            while self._jobs and rows < PAGE:
                job = self._jobs.popleft()
                jobs.append(job)
                rows += 1 if job.batch is None else job.batch.rows + 1
            self._waiting = jobs
        return jobs

    def _begins(self) -> bool:
        """Whether what was taken is still to be done."""
        with self._deciding:
            self._waiting = ()
            return not self._given_up

    def _do(self, jobs: Sequence[_Job]) -> None:
        from parley.stores.opening import open_home
        from parley.stores.refusals import refused

        packed, outcomes = _packed(jobs)
        try:
            if self.opened is None:
                self._home = self._find_home()
                self.opened = open_home(self._home)
            with self.opened.lock:
                if not self._begins():
                    return
                self.opened.refuse_what_would_be_lost()
                outcomes += self._transaction(self.opened.writer, packed)
            # The loop takes the interpreter as soon as it is told; no other process waits for the lock meanwhile.
            self._tell(_settle, outcomes)
            outcomes = []
            if self._grown >= CHECKPOINT_BYTES:
                with self.opened.lock:
                    self._checkpoint(self.opened.writer)
        except Exception as error:
            told = {future for future, _, _ in outcomes}
            why = refused(self._home, error)
            outcomes += [(job.future, None, why) for job in jobs if job.future not in told]
            self._tell(_settle, outcomes)

    def _transaction(self, db: Connection, jobs: Sequence[_Job]) -> list[_Outcome]:
        """All in one; where that fails, each by itself, so that none fails for another."""
        from parley.stores.refusals import refused

        try:
            return self._together(db, jobs)
        except Exception as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if len(jobs) == 1:
                self._grown = CHECKPOINT_BYTES  # on a full disk this may make room
                return [(jobs[0].future, None, refused(self._home, error))]
        return [outcome for job in jobs for outcome in self._transaction(db, (job,))]

    def _together(self, db: Connection, jobs: Sequence[_Job]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        self._grown += COMMIT_BYTES
        db.execute("BEGIN IMMEDIATE")
        assert self.opened is not None
        self.opened.refuse_newer()
        for work, some in groupby(jobs, key=_work_of):
            done = list(some)
            for job, result in zip(done, work(db, [job.one for job in done]), strict=True):
                failed = isinstance(result, ParleyError)
                outcomes.append((job.future, None, result) if failed else (job.future, result, None))
                if job.batch is not None:
                    self._grown += job.batch.size + INDEX_BYTES
        db.execute("COMMIT")
        return outcomes

    def _checkpoint(self, db: Connection) -> None:
        if self._given_up:
            return
        self._grown = 0
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except Exception as error:
            self._grown = CHECKPOINT_BYTES // 2  # sooner than usual
            log.warning("the log of the database could not be folded in, which is tried again: %s", error)

    def _tell(self, call: Callable[..., None], *about: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *about)
        except RuntimeError:
            pass  # the loop is closed: nobody waits


_work_of: Final = attrgetter("work")


def _alone(db: Connection, works: Sequence[Callable[[Connection], T]]) -> list[T | ParleyError]:
    """One after another."""
    results: list[T | ParleyError] = []
    for work in works:
        before = db.total_changes
        try:
            results.append(work(db))
        except ParleyError as error:
            if db.total_changes != before:
                raise
            results.append(error)
    return results


def _packed(jobs: Iterable[_Job]) -> tuple[list[_Job], list[_Outcome]]:
    """Those that are ready to be written, and those that never will be."""
    ready: list[_Job] = []
    failed: list[_Outcome] = []
    for job in jobs:
        try:
            if job.batch is not None:
                job.batch.pack()
            ready.append(job)
        except Exception as error:
            failed.append((job.future, None, error))
    return ready, failed


def _settle(outcomes: Iterable[_Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue  # cancelled: it was written all the same
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
