"""The thread that writes to the database.

The thread combines all waiting jobs into one transaction, so that the disk is synced only once.

The thread opens the home for its first job, and closes the home when the thread ends. Other modules define what the
jobs write. SQLite is imported in this thread, so a process that never uses the store does not import SQLite.
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

from parley.common.limited_log import LimitedLog
from parley.common.os_errors import OUT_OF_MEMORY, limit_reached
from parley.common.threads import start_thread
from parley.errors import HomeLost, LeaseLost, ParleyError, StoreFailed, WriteLockHeld
from parley.ports.store import CALL_SECONDS, PAGE
from parley.stores.sqlite.batch import Batch
from parley.stores.sqlite.disk_space import CHECKPOINT_BYTES, DiskSpace

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.sqlite.database import Database, Home

__all__ = ["Writer", "open_only"]

log = logging.getLogger(__name__)

MEASURE_BYTES: Final = 1024 * 1024
"""The number of bytes that this process writes between two measurements of the size of the write-ahead log. The
measured size includes data that other processes have written.
"""

COMMIT_BYTES: Final = 16 * 1024
"""The estimated number of bytes that the smallest transaction adds to the write-ahead log: a few pages."""

INDEX_BYTES: Final = 4096
"""The estimated number of bytes that a batch adds to the write-ahead log in addition to its rows: one page of the
index of entries.
"""

CHECK_SECONDS: Final = 0.25
"""The time in seconds between two checks whether jobs have waited too long for the write lock."""

CLOSE_SECONDS: Final = 10.0
"""The maximum time for which `close` waits while another process holds the write lock, in seconds."""

A = TypeVar("A")
T = TypeVar("T")


WriteMany = Callable[["Connection", Sequence[A]], Sequence[T | ParleyError]]
"""A function that executes requests in order and returns a result or an error for each request. The function makes
all its checks before it changes the database. It may be called again if the transaction was rolled back.
"""


class _Job:
    """A write request in the queue of the writer.

    `request` is the data of the request. The function `work` executes the request, possibly together with other
    requests for the same function. `batch` contains the entries to pack before `work` is called; None if there are
    no entries.
    """

    __slots__ = ("batch", "future", "has_expired", "request", "until", "work")

    def __init__(
        self, future: Future[Any], work: WriteMany[Any, Any], request: Any, batch: Batch | None, until: float
    ) -> None:
        self.future, self.work, self.request = future, work, request
        self.batch, self.until = batch, until
        self.has_expired = False
        """True if the job has waited too long for the write lock and will not be executed."""


_Outcome = tuple["Future[Any]", Any, Exception | None]


class Writer:
    """Runs write jobs in a thread, several jobs in one transaction, and completes their futures on the event
    loop.
    """

    def __init__(
        self,
        find_home: Callable[[], str],
        *,
        on_lost: Callable[[HomeLost], None] = lambda lost: None,
        on_lease_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the writer.

        `find_home` returns the path of the home. `on_lost` is called once when the writer finds that a database
        file was removed or replaced. `on_lease_lost` is called on the event loop whenever jobs have failed with
        `LeaseLost`.
        """
        self._find_home = find_home
        self._on_lost, self._on_lease_lost = on_lost, on_lease_lost
        self._path = ""
        self._jobs: deque[_Job] = deque()
        self._more: SimpleQueue[None] = SimpleQueue()
        """A queue whose items wake the thread when there are new jobs or the writer is closing."""
        self._waking = False
        self._loop: AbstractEventLoop | None = None
        self._ended: Future[None] | None = None
        self._deciding = threading.Lock()
        """The lock that protects the data that both the event loop and the thread change: `_jobs`, `_waiting` and
        the expiry of jobs.
        """
        self._waiting: Sequence[_Job] = ()
        """The jobs that the thread has taken from the queue but has not begun to execute. Only these jobs and
        queued jobs can expire.
        """
        self._given_up = False
        self._closing = False
        self._grown = 0
        """The number of bytes that this process has added to the write-ahead log since its last checkpoint."""
        self._space: DiskSpace | None = None
        """The free space on the disk that contains the home; None while the database is not open."""
        self._limited_log = LimitedLog(log)
        self._measure_at = 0
        """When `_grown` reaches this number of bytes, the size of the write-ahead log is measured again."""
        self._has_committed = False
        """True if a transaction of this writer has been committed and has changed the database."""
        self._checking: asyncio.TimerHandle | None = None
        self._naming: set[Future[str | None]] = set()
        self._named = ""
        """The description of the write lock's holder in the last warning; empty if there was no warning. The same
        holder is reported only once.
        """
        self.home: Home | None = None
        """The locks of the home; None until the thread has opened them. The thread opens the locks before it first
        waits for the write lock.
        """
        self.opened: Database | None = None
        """The open database; None until the thread has opened it for the first job."""

    @property
    def waiting_seconds(self) -> float:
        """The time for which the thread has been waiting for the write lock, in seconds; 0 if the thread is not
        waiting.
        """
        since = None if self.home is None else self.home.lock.waiting_since
        return 0.0 if since is None or self._loop is None else self._loop.time() - since

    def submit(
        self, work: Callable[[Connection], T], batch: Batch | None = None, *, until: float | None = None
    ) -> Future[T]:
        """Run `work` in a transaction, after the jobs that were submitted earlier, and return a future for its
        result.

        `batch` contains the entries that `work` writes; None if it writes no entries. `work` must make all its
        checks before it changes the database. `work` may run again if the transaction was rolled back. The future
        fails with `WriteLockHeld`, and `work` is not run, if another process still holds the write lock at the time
        `until` on the event loop's clock. The default is `CALL_SECONDS` from now.
        """
        return self.submit_one(_run_each, work, batch, until=until)

    def submit_one(
        self,
        work: WriteMany[A, T],
        request: A,
        batch: Batch | None = None,
        *,
        until: float | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Future[T]:
        """Submit a request for `work`, and return a future for its result, as `submit` does. `work` is called with
        this request and with other waiting requests that were submitted for the same `work`.

        If `until` is None, the request waits at most `seconds` seconds for the write lock.
        """
        loop = self._loop or asyncio.get_running_loop()
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
        now = loop.time()
        self._jobs.append(_Job(future, work, request, batch, now + seconds if until is None else until))
        if until is not None and until <= now and self._is_held:
            self._check_soon(at_once=True)
        elif self._checking is None:
            self._check_soon()
        if not self._waking:
            self._waking = True
            loop.call_soon(self._wake)
        return future

    def _wake(self) -> None:
        """Wake the thread at the end of the loop iteration, so that all jobs from this iteration are in one
        transaction.
        """
        self._waking = False
        self._more.put(None)

    def checkpoint_soon(self) -> None:
        """Request a checkpoint of the write-ahead log after the next transaction, because only a checkpoint shrinks
        the database file.
        """
        self._grown = CHECKPOINT_BYTES

    @property
    def _is_held(self) -> bool:
        """True if the thread has waited for the write lock for at least `CALL_SECONDS`, because another process
        holds it.
        """
        return self.waiting_seconds >= CALL_SECONDS

    def _lost(self, lost: HomeLost) -> None:
        log.error("%s", lost.detail)
        self._on_lost(lost)

    def _check_soon(self, *, at_once: bool = False) -> None:
        assert self._loop is not None
        if at_once and self._checking is not None:
            self._checking.cancel()
            self._checking = None
        if self._checking is None:
            self._checking = self._loop.call_later(0 if at_once else CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """If jobs have waited too long for the write lock, make their futures fail with `WriteLockHeld`. These jobs
        are never executed.
        """
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
                log.warning(
                    "%s cannot be written to: %s holds the write lock; is that process stopped?", self._path, holder
                )
            self._settle((job.future, None, WriteLockHeld(holder)) for job in jobs)

        naming = self._loop.run_in_executor(None, write_lock_holder, self._path)
        self._naming.add(naming)
        naming.add_done_callback(fail)

    async def close(self) -> None:
        """Finish the submitted jobs. Jobs that have not begun after `CLOSE_SECONDS` fail.

        If the caller is cancelled, jobs that have not begun fail immediately.
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
        """Return whether the thread has waited for the write lock for at least `CHECK_SECONDS` although no job
        needs the lock.
        """
        with self._deciding:
            is_needed = any(job.request is not open_only for job in (*self._waiting, *self._jobs))
        return self.waiting_seconds >= CHECK_SECONDS and not is_needed

    def _give_up(self) -> None:
        """Make the futures of all jobs that were not begun fail with `StoreFailed`.

        The thread then begins no more jobs, and ends when it acquires the write lock.
        """
        with self._deciding:
            self._given_up = True
            undone = [*self._waiting, *self._jobs]
            self._jobs.clear()
        why = "the store was closed before this was written"
        if self.waiting_seconds:
            why = "another process held the write lock until the store was closed"
        self._settle((job.future, None, StoreFailed(why)) for job in undone)

    def _settle(self, outcomes: Iterable[_Outcome]) -> None:
        has_lost_lease = False
        for future, result, error in outcomes:
            if isinstance(error, LeaseLost):
                has_lost_lease = True
            if future.done():
                continue  # cancelling a job does not undo its write
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if has_lost_lease:
            self._on_lease_lost()

    # --- in the thread -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._given_up and (jobs := self._taken()):
            try:
                self._do(jobs)
            except Exception as error:  # there was too little memory to import SQLite; later jobs may find more
                self._fail(jobs, error)
            del jobs  # free memory, because jobs may be large and the next jobs may come much later
        try:
            if self.opened is not None:
                self.opened.close()
            elif self.home is not None:
                self.home.close()
        except Exception:
            log.exception("failed to close the database of %s", self._path)
        if self._checking is not None:
            self._schedule(self._checking.cancel)
        self._schedule(self._end)

    def _fail(self, jobs: Sequence[_Job], error: Exception) -> None:
        """Make the futures of the jobs fail with `error`. If memory runs out, try again until there is enough
        memory.

        An error must not end the thread, because later jobs would then wait forever.
        """
        while True:
            try:
                self._begin(jobs)
                self._schedule(self._settle, [(job.future, None, _not_done(error)) for job in jobs])
                return
            except MemoryError:
                time.sleep(CHECK_SECONDS)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _taken(self) -> list[_Job]:
        """Wait until the queue contains a job. Then remove jobs from the queue, in order, until they have about
        `PAGE` rows, and return these jobs. Return an empty list if the writer is closing and no jobs are left.
        """
        closing = self._closing  # read the flag before the jobs, because no job is submitted after the flag is set
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
        """Mark jobs as begun, so that they can no longer expire. Return the jobs that have not expired, which must
        be executed. Return no jobs if the writer has given up.
        """
        with self._deciding:
            self._waiting = ()
            return [] if self._given_up else [job for job in jobs if not job.has_expired]

    def _open_locks(self) -> Home:
        """Open the locks of the home, and return the `Home` that contains them. No lock is acquired."""
        from parley.stores.sqlite.database import open_locks

        self._path = self._find_home()
        self.home = open_locks(self._path)
        return self.home

    def _open_database(self, home: Home) -> Database:
        from parley.stores.sqlite.database import open_database

        self.opened = open_database(home, on_lost=partial(self._schedule, self._lost))
        # Processes that write little would otherwise never checkpoint, and the log would grow with each of them.
        self._grown += self.opened.log_bytes()
        self._space = DiskSpace(home.path)
        return self.opened

    def _do(self, jobs: Sequence[_Job]) -> None:
        packed, outcomes = _packed(jobs)
        try:
            home = self.home or self._open_locks()
            with home.lock:
                opened = self.opened or self._open_database(home)
                if begun := self._begin(packed):
                    opened.refuse_when_lost(opened.writer)
                    done = self._transaction(opened.writer, begun)
                    opened.refuse_when_lost(opened.writer, has_written=self._has_committed)
                    outcomes += done
            # The write lock is released first, because waking the event loop may wait for the interpreter lock.
            self._schedule(self._settle, outcomes)
            outcomes = []
            if self._is_checkpoint_due(opened):
                with home.lock:
                    opened.refuse_when_lost(opened.writer)
                    self._checkpoint(opened)
        except Exception as error:
            if self.opened is None and self.home is not None:
                self.home.lease_locks.close()
                self.home.close()
                self.home = None  # the next attempt may find another directory
            from parley.stores.sqlite.errors import store_error

            settled = {future for future, _, _ in outcomes}
            why = store_error(self._path, error)
            outcomes += [(job.future, None, why) for job in jobs if job.future not in settled]
            self._schedule(self._settle, outcomes)

    def _transaction(self, db: Connection, jobs: Sequence[_Job]) -> list[_Outcome]:
        """Execute all jobs in one transaction, and return the outcome of each job.

        If the transaction fails, execute each job alone, so that no job fails because of another job.
        """
        try:
            return self._together(db, jobs)
        except Exception as error:
            from parley.stores.sqlite.errors import store_error

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
            for job, result in zip(done, work(db, [job.request for job in done]), strict=True):
                failed = isinstance(result, ParleyError)
                outcomes.append((job.future, None, result) if failed else (job.future, result, None))
                if job.batch is not None:
                    self._grown += job.batch.size + INDEX_BYTES
        db.execute("COMMIT")
        self._has_committed = self._has_committed or db.total_changes > before
        return outcomes

    def _is_checkpoint_due(self, opened: Database) -> bool:
        """Return whether the write-ahead log has grown enough for a checkpoint.

        A checkpoint is due when this process has added `DiskSpace.checkpoint_bytes` bytes to the log. This number
        is smaller if the disk has little free space. A checkpoint is also due when the size of the log exceeds
        `WAL_BYTES`, because several processes may write to the log, and each of them may add fewer bytes. The size
        of the log and the free space are measured rarely, because a measurement makes the next write slower.
        """
        space = self._space
        assert space is not None
        if self._grown >= space.checkpoint_bytes:
            return True
        if self._grown < self._measure_at:
            return False
        self._measure_space(space)
        return self._grown >= space.checkpoint_bytes or opened.is_log_large()

    def _measure_space(self, space: DiskSpace) -> None:
        space.measure()
        self._measure_at = self._grown + min(MEASURE_BYTES, space.checkpoint_bytes // 2)

    def _checkpoint(self, opened: Database) -> None:
        if self._given_up:
            return
        space = self._space
        assert space is not None
        self._grown = 0
        try:
            opened.checkpoint(keep_bytes=space.checkpoint_bytes if space.is_short else None)
        except Exception as error:
            self._grown = space.checkpoint_bytes // 2  # the next attempt is made sooner than usual
            self._limited_log.warning("failed to checkpoint the database; retrying later: %s", error)
        self._measure_space(space)

    def _schedule(self, call: Callable[..., None], *about: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *about)
        except RuntimeError:
            pass  # the event loop is closed, so no task waits for the result


def open_only(db: Connection) -> None:
    """Do nothing. Submitting this function as a job makes the writer thread open the home."""


_work_of: Final = attrgetter("work")


def _run_each(db: Connection, works: Sequence[Callable[[Connection], T]]) -> list[T | ParleyError]:
    """Call the functions `works` in order, and return the result or the error of each.

    If a function raises an error after it has changed the database, raise this error.
    """
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
    """Pack the batches of jobs. Return the jobs that can be executed, and the outcomes of the jobs whose batches
    could not be packed.
    """
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
    """Return the error for the caller of a job that was not begun because of `error`."""
    why = limit_reached(error)
    return error if why is None else StoreFailed(why)
