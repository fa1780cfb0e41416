"""The thread that writes. It combines all waiting jobs into one transaction, with one sync of the disk.

The first job of the thread opens the home, and the end of the thread closes it. The thread does not interpret what
it writes. It imports SQLite, so that a process that never uses the store does not wait for the import.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parley.common.os_errors import OUT_OF_MEMORY, limit_reached
from parley.common.threads import start_thread
from parley.errors import HomeLost, ParleyError, StoreFailed, WriteLockHeld
from parley.ports.store import CALL_SECONDS, PAGE
from parley.stores.sqlite.batch import Batch

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.sqlite.database import Database, Home

__all__ = ["Writer", "open_only"]

log = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
"""The size of the write-ahead log at which it is checkpointed: large enough that checkpoints are rare, small
enough for a quick recovery.
"""

COMMIT_BYTES: Final = 16 * 1024
"""Bytes that the smallest transaction adds to the write-ahead log: some pages."""

INDEX_BYTES: Final = 4096
"""Bytes that a batch adds besides its rows: the last page of its conversation in the index."""

CHECK_SECONDS: Final = 0.25
"""How often to check whether the thread waits for the write lock."""

CLOSE_SECONDS: Final = 10.0
"""How long closing waits while another process holds the write lock."""

A = TypeVar("A")
T = TypeVar("T")


WriteMany = Callable[["Connection", Sequence[A]], Sequence[T | ParleyError]]
"""Executes requests in order and returns the result or error of each. It checks before it changes anything, and may
be run again if the transaction was rolled back."""


class _Job:
    """A request to write, which `work` executes together with others of its kind."""

    __slots__ = ("batch", "future", "has_expired", "one", "until", "work")

    def __init__(
        self, future: Future[Any], work: WriteMany[Any, Any], one: Any, batch: Batch | None, until: float
    ) -> None:
        self.future, self.work, self.one, self.batch, self.until = future, work, one, batch, until
        self.has_expired = False
        """True if it waited for the write lock too long. It will not be executed."""


_Outcome = tuple["Future[Any]", Any, Exception | None]


class Writer:
    """Runs write jobs in a thread, several in one transaction, and completes their futures on the event loop."""

    def __init__(self, find_home: Callable[[], str]) -> None:
        self._find_home = find_home
        self._path = ""
        self._jobs: deque[_Job] = deque()
        self._more: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread."""
        self._waking = False
        self._loop: AbstractEventLoop | None = None
        self._ended: Future[None] | None = None
        self._deciding = threading.Lock()
        """Protects the lists of jobs."""
        self._waiting: Sequence[_Job] = ()
        """The jobs that the thread has taken and not begun. Only the thread decides about jobs that it has
        begun."""
        self._given_up = False
        self._closing = False
        self._grown = 0
        self._has_committed = False
        """True if some transaction has changed the database."""
        self._checking: asyncio.TimerHandle | None = None
        self._naming: set[Future[str | None]] = set()
        self._named = ""
        """The holder of the write lock that was logged last."""
        self.home: Home | None = None
        """Set by the thread before it first waits for the write lock."""
        self.opened: Database | None = None
        """Set by the thread before it completes the first job."""
        self.on_lost: Callable[[HomeLost], None] = lambda lost: None
        """Called when files of the home were removed or replaced."""

    @property
    def waiting_seconds(self) -> float:
        """How long the thread has been waiting for the write lock; 0 if it does not wait."""
        since = None if self.home is None else self.home.lock.waiting_since
        return 0.0 if since is None or self._loop is None else self._loop.time() - since

    def submit(
        self, work: Callable[[Connection], T], batch: Batch | None = None, *, until: float | None = None
    ) -> Future[T]:
        """Run `work` in a transaction, after the jobs that were submitted before. Its errors fail the future.

        It checks before it changes anything, and may be run again if the transaction was rolled back. If another
        process holds the write lock until the time `until`, by default for `CALL_SECONDS`, the job fails with
        `WriteLockHeld` and is not run.
        """
        return self.submit_one(_alone, work, batch, until=until)

    def submit_one(
        self, work: WriteMany[A, T], one: A, batch: Batch | None = None, *, until: float | None = None
    ) -> Future[T]:
        """Submit a request, as `submit` does, that is executed together with other requests of its kind."""
        loop = asyncio.get_running_loop()
        future: Future[T] = loop.create_future()
        if self._closing:
            future.set_exception(StoreFailed("the store is closed"))
            return future
        if self._loop is None:
            self._loop, self._ended = loop, loop.create_future()
            try:
                start_thread(self._run, name="parley-write")
            except (MemoryError, RuntimeError) as error:
                self._loop = self._ended = None  # the next job tries again
                future.set_exception(_not_done(error))
                return future
        self._jobs.append(_Job(future, work, one, batch, loop.time() + CALL_SECONDS if until is None else until))
        self._check_soon(at_once=until is not None and until <= loop.time() and self._is_held)
        if not self._waking:
            self._waking = True
            loop.call_soon(self._wake)
        return future

    def _wake(self) -> None:
        """Wake the thread at the end of the tick, so that all jobs of the tick are one transaction."""
        self._waking = False
        self._more.put(None)

    def checkpoint_soon(self) -> None:
        """Checkpoint the write-ahead log after the next transaction: only then does the database file shrink."""
        self._grown = CHECKPOINT_BYTES

    @property
    def _is_held(self) -> bool:
        """True if another process holds the write lock for longer than a call waits."""
        return self.waiting_seconds >= CALL_SECONDS

    def _lost(self, lost: HomeLost) -> None:
        log.error("%s", lost.detail)
        self.on_lost(lost)

    def _check_soon(self, *, at_once: bool = False) -> None:
        assert self._loop is not None
        if at_once and self._checking is not None:
            self._checking.cancel()
            self._checking = None
        if self._checking is None:
            self._checking = self._loop.call_later(0 if at_once else CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Fail the jobs that have waited for the write lock too long. None of them is executed."""
        assert self._loop is not None
        self._checking = None
        now, is_held = self._loop.time(), self._is_held
        with self._deciding:
            pending = [*self._waiting, *self._jobs]
            expired = [job for job in pending if is_held and job.until <= now]
            for job in expired:
                job.has_expired = True
            if expired:
                self._waiting = [job for job in self._waiting if not job.has_expired]
                self._jobs = deque(job for job in self._jobs if not job.has_expired)
        if expired:
            self._fail_expired(expired)
        if len(pending) > len(expired):
            self._check_soon()

    def _fail_expired(self, jobs: Sequence[_Job]) -> None:
        from parley.stores.sqlite.lock_holders import UNKNOWN
        from parley.stores.sqlite.locks import write_lock_holder

        assert self._loop is not None

        def fail(named: Future[str | None]) -> None:
            self._naming.discard(named)
            holder = (None if named.cancelled() or named.exception() else named.result()) or UNKNOWN
            if holder != self._named:
                self._named = holder
                log.warning("%s cannot be written: %s holds the write lock; was it stopped?", self._path, holder)
            _settle((job.future, None, WriteLockHeld(holder)) for job in jobs)

        naming = self._loop.run_in_executor(None, write_lock_holder, self._path)
        self._naming.add(naming)
        naming.add_done_callback(fail)

    async def close(self) -> None:
        """Finish the submitted jobs, and fail the jobs that cannot begin. If the caller is cancelled, fail them
        at once.
        """
        if not self._closing:
            self._closing = True
            self._more.put(None)
        if self._ended is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while not self._ended.done() and not self._waits_without_need():
                    await asyncio.wait((self._ended,), timeout=CHECK_SECONDS)
        except TimeoutError:
            pass
        finally:
            if not self._ended.done() and not self._given_up:
                self._give_up()

    def _waits_without_need(self) -> bool:
        """True if the thread waits for the write lock and has nothing to write."""
        with self._deciding:
            is_needed = any(job.one is not open_only for job in (*self._waiting, *self._jobs))
        return self.waiting_seconds >= CHECK_SECONDS and not is_needed

    def _give_up(self) -> None:
        """Fail all jobs that were not begun. The thread begins no more jobs, and ends when it acquires the lock."""
        with self._deciding:
            self._given_up = True
            undone = [*self._waiting, *self._jobs]
            self._jobs.clear()
        why = "the store was closed before this was written"
        if self.waiting_seconds:
            why = "another process has held the write lock until the store was closed"
        _settle((job.future, None, StoreFailed(why)) for job in undone)

    # --- in the thread -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._given_up and (jobs := self._taken()):
            try:
                self._do(jobs)
            except Exception as error:  # there may be no memory to load SQLite; the next jobs may need less
                self._fail(jobs, error)
            del jobs  # they may be large, and the next ones may come late
        try:
            if self.opened is not None:
                self.opened.close()
            elif self.home is not None:
                self.home.close()
        except Exception:
            log.exception("failed to close the database of %s", self._path)
        if self._checking is not None:
            self._tell(self._checking.cancel)
        self._tell(self._end)

    def _fail(self, jobs: Sequence[_Job], error: Exception) -> None:
        """Fail the jobs as soon as there is memory for that. An error must not end the thread, because later
        jobs would wait forever.
        """
        while True:
            try:
                self._begin(jobs)
                self._tell(_settle, [(job.future, None, _not_done(error)) for job in jobs])
                return
            except MemoryError:
                time.sleep(CHECK_SECONDS)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _taken(self) -> list[_Job]:
        """Take the waiting jobs, up to a page of rows; none if the writer is closing and no job is left."""
        closing = self._closing  # read first: no job is submitted after it is set
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

    def _begin(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Return the jobs that are still to be executed. From here on only the thread decides about them."""
        with self._deciding:
            self._waiting = ()
            return [] if self._given_up else [job for job in jobs if not job.has_expired]

    def _open(self) -> Home:
        """Open the locks of the home, without waiting."""
        from parley.stores.sqlite.database import open_locks

        if self.home is None:
            self._path = self._find_home()
            self.home = open_locks(self._path)
        return self.home

    def _do(self, jobs: Sequence[_Job]) -> None:
        from parley.stores.sqlite.database import open_database
        from parley.stores.sqlite.errors import store_error

        packed, outcomes = _packed(jobs)
        try:
            home = self._open()
            with home.lock:
                opened = self.opened or open_database(home)
                if self.opened is None:
                    opened.on_lost = partial(self._tell, self._lost)
                    self.opened = opened
                if begun := self._begin(packed):
                    opened.refuse_when_lost(opened.writer)
                    done = self._transaction(opened.writer, begun)
                    opened.refuse_when_lost(opened.writer, has_written=self._has_committed)
                    outcomes += done
            # The event loop takes the interpreter lock when it is told, so the write lock is released before.
            self._tell(_settle, outcomes)
            outcomes = []
            if self._grown >= CHECKPOINT_BYTES:
                with home.lock:
                    opened.refuse_when_lost(opened.writer)
                    self._checkpoint(opened.writer)
        except Exception as error:
            if self.opened is None and self.home is not None:
                self.home.lease_locks.close()
                self.home.close()
                self.home = None  # the next attempt may find another directory
            told = {future for future, _, _ in outcomes}
            why = store_error(self._path, error)
            outcomes += [(job.future, None, why) for job in jobs if job.future not in told]
            self._tell(_settle, outcomes)

    def _transaction(self, db: Connection, jobs: Sequence[_Job]) -> list[_Outcome]:
        """Execute all jobs in one transaction. If that fails, execute each alone, so that none fails because of
        another."""
        from parley.stores.sqlite.errors import store_error

        try:
            return self._together(db, jobs)
        except Exception as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if len(jobs) == 1:
                self._grown = CHECKPOINT_BYTES  # a checkpoint may free space on a full disk
                return [(jobs[0].future, None, store_error(self._path, error))]
        return [outcome for job in jobs for outcome in self._transaction(db, (job,))]

    def _together(self, db: Connection, jobs: Sequence[_Job]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        self._grown += COMMIT_BYTES
        before = db.total_changes
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
        self._has_committed = self._has_committed or db.total_changes > before
        return outcomes

    def _checkpoint(self, db: Connection) -> None:
        if self._given_up:
            return
        self._grown = 0
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except Exception as error:
            self._grown = CHECKPOINT_BYTES // 2  # sooner than usual
            log.warning("failed to checkpoint the database, which will be tried again: %s", error)

    def _tell(self, call: Callable[..., None], *about: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *about)
        except RuntimeError:
            pass  # the loop is closed, and no task waits


def open_only(db: Connection) -> None:
    """Do nothing: a job that only makes the thread open the home."""


_work_of: Final = attrgetter("work")


def _alone(db: Connection, works: Sequence[Callable[[Connection], T]]) -> list[T | ParleyError]:
    """Execute jobs in order."""
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
    """Pack the batches of jobs; return the jobs that are ready, and the failures of the others."""
    ready: list[_Job] = []
    failed: list[_Outcome] = []
    for job in jobs:
        try:
            if job.batch is not None:
                job.batch.pack()
            ready.append(job)
        except MemoryError:
            failed.append((job.future, None, StoreFailed(OUT_OF_MEMORY)))
        except Exception as error:
            failed.append((job.future, None, error))
    return ready, failed


def _not_done(error: Exception) -> Exception:
    """Return the error for the caller of a job that was not begun."""
    why = limit_reached(error)
    return error if why is None else StoreFailed(why)


def _settle(outcomes: Iterable[_Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue  # cancelled by the caller; the write took effect
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
