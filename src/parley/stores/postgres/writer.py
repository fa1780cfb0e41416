"""The task that writes to logs. The task combines the waiting requests of each kind, such as appends, into one
statement.

While a statement is being executed, further requests wait, and share the next statement and its commit. If the
connection is lost, the writer does not know whether the statement was committed. Every write to a log changes the
id of the log's last batch. On the next connection, the writer therefore looks up this id, and repeats only the
writes that were not committed.

The SQL is in `writes.py`. This module handles the order of requests, their deadlines, and lost connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from parley.errors import LeaseLost, ParleyError, StoreFailed
from parley.ports.store import CALL_SECONDS, PAGE, TURN_SECONDS
from parley.stores.postgres.availability import NO_ANSWER_SECONDS
from parley.stores.postgres.database import Backoff, Database, close
from parley.stores.postgres.driver import Connection, execute_until, is_lost, is_rolled_back, reason_of, refusal_of
from parley.stores.postgres.leases import LeaseKeeper
from parley.stores.postgres.writes import Append, Group, Request

__all__ = ["Writer"]

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_BYTES: Final = 16 * 1024 * 1024
"""The total size of entries, in bytes, at which no further request is added to a statement."""

CHECK_SECONDS: Final = 0.25
"""The time between two checks for requests that have waited too long, in seconds."""

TOKEN_BYTES: Final = 16
"""The length of the id of a batch, in bytes."""

CLOSE_SECONDS: Final = 10.0
"""The maximum time for which `close` waits for the writes in progress, in seconds."""


class _Job:
    """A request in the queue of the writer, with its future."""

    __slots__ = ("future", "is_begun", "request", "until")

    def __init__(self, request: Request, future: Future[Any], until: float) -> None:
        self.request, self.future, self.until = request, future, until
        self.is_begun = False
        """True if the request has been sent to the database and its outcome is unknown."""

    @property
    def has_failed(self) -> bool:
        """True if the caller has already received an error, for example because the request waited too long. False
        if the caller has cancelled the future of the request; the request is then still executed.
        """
        return self.future.done() and not self.future.cancelled()


class Writer:
    """Executes write requests on one connection, and combines them into few statements. The requests for each
    conversation are executed in the order of submission.
    """

    def __init__(
        self, database: Database, keeper: LeaseKeeper, on_written: Callable[[Sequence[Request]], None]
    ) -> None:
        """Create the writer. `on_written` is called after each statement with the requests that were executed
        successfully.
        """
        self._database, self._keeper, self._on_written = database, keeper, on_written
        self._waiting: deque[_Job] = deque()
        self._begun: Sequence[_Job] = ()
        """The jobs that were taken from the queue and are not finished yet."""
        self._running: Task[None] | None = None
        self._checking: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._cause: BaseException = TimeoutError()
        """The last connection error. If a request fails because the database cannot be reached, this error is named
        as the cause.
        """
        self._stalled_since: float | None = None
        """The time at which the current statement was sent to the database, in seconds on the event loop's clock;
        None if no statement is being executed.
        """
        self._closing = False

    def submit(self, request: Request, *, until: float | None = None) -> Future[Any]:
        """Add a request to the queue, and return a future for its result. Earlier requests for the same
        conversation are executed first.

        `until` is the deadline on the event loop's clock. The default is `TURN_SECONDS` from now for an append, and
        `CALL_SECONDS` from now for any other request. Cancelling the future does not stop the request.
        """
        loop = asyncio.get_running_loop()
        future: Future[Any] = loop.create_future()
        if self._closing:
            future.set_exception(StoreFailed("the store is closed"))
            return future
        if until is None:
            until = loop.time() + (TURN_SECONDS if isinstance(request, Append) else CALL_SECONDS)
        self._waiting.append(_Job(request, future, until))
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
        if self._checking is None:
            self._checking = loop.call_later(CHECK_SECONDS, self._check)
        return future

    @property
    def is_stalled(self) -> bool:
        """True if the current statement has waited for the database for at least `CHECK_SECONDS`."""
        since = self._stalled_since
        return since is not None and asyncio.get_running_loop().time() - since >= CHECK_SECONDS

    def _check(self) -> None:
        """Make the futures of requests fail if the requests have waited too long while the database did not
        respond, or if their lease was lost. An append that may have been executed does not fail because of its
        deadline.
        """
        now = asyncio.get_running_loop().time()
        self._checking = None
        if self._stalled_since is not None and now - self._stalled_since >= NO_ANSWER_SECONDS:
            self._database.availability.failed("writes", reason_of(self._cause))
        jobs = [job for job in (*self._begun, *self._waiting) if not job.future.done()]
        for job in jobs if self.is_stalled else ():
            if not job.is_begun and job.until <= now:
                job.future.set_exception(self._database.unreachable(self._cause))
            elif job.is_begun and not isinstance(job.request, Append) and job.until <= now:
                # The request may fail although it is executed later: its caller can repeat it, or its late
                # effect does no harm.
                job.future.set_exception(self._database.unreachable(self._cause))
        self.fail_lost()
        if jobs:
            self._checking = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def fail_lost(self) -> None:
        """Make the futures of requests whose lease was lost fail with `LeaseLost`, even if the requests may have
        been executed.

        The callers read the log again, and so find out whether the requests were executed.
        """
        for job in (*self._begun, *self._waiting):
            held = job.request.held
            if held is not None and held.is_lost and not job.future.done():
                job.future.set_exception(LeaseLost(is_given_up=held.is_given_up))

    # --- the task ----------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # the requests of one iteration of the event loop share a statement
            while self._waiting:
                taken = self._take()
                self._begun = taken
                for kind, jobs in _stages(taken):
                    await self._execute(kind, jobs)
                self._begun = ()
        finally:
            self._begun = ()
            self._stalled_since = None
            self._running = None

    def _take(self) -> list[_Job]:
        """Take jobs with about `PAGE` entries or `GROUP_BYTES` bytes from the queue, and return them. Jobs that
        failed while they waited are left out.
        """
        jobs: list[_Job] = []
        rows = size = 0
        while self._waiting and (not jobs or (rows < PAGE and size < GROUP_BYTES)):
            job = self._waiting.popleft()
            if job.has_failed:
                continue
            jobs.append(job)
            rows += 1
            if isinstance(job.request, Append):
                rows += job.request.batch.rows
                size += job.request.batch.size
        return jobs

    async def _execute(self, kind: type[Group], jobs: Sequence[_Job]) -> None:
        """Execute the requests of `jobs`, which have the same kind, and settle their futures.

        If the statement for all requests fails, execute each request alone, so that no request fails because of an
        error in another request.
        """
        try:
            await self._until_known(kind, jobs)
        except Exception as error:
            if len(jobs) > 1 and not isinstance(error, ParleyError):
                for job in jobs:
                    await self._execute(kind, (job,))
            else:
                self._settle(None, jobs, [refusal_of(error)] * len(jobs))

    async def _until_known(self, kind: type[Group], jobs: Sequence[_Job]) -> None:
        """Execute the requests of `jobs`, which have the same kind, and repeat them on new connections until their
        outcome is known.

        A request that has already failed, because of its deadline or a lost lease, is not repeated.
        """
        loop, token, backoff, may_be_done = asyncio.get_running_loop(), os.urandom(TOKEN_BYTES), Backoff(), False
        self._stalled_since = loop.time()
        try:
            while jobs := [job for job in jobs if not job.has_failed]:
                sent = False
                try:
                    group = kind([job.request for job in jobs], self._keeper, token)
                    await group.prepare()
                    connection = await self._connected(group)
                    if any(job.has_failed for job in jobs):
                        continue  # a job has failed while the connection was being opened
                    sent = True
                    for job in jobs:
                        job.is_begun = True
                    until = asyncio.get_running_loop().time() + CALL_SECONDS
                    outcomes = await execute_until(until, connection, group.execute(connection, may_be_done))
                    self._database.availability.answered("writes")
                    self._settle(group, jobs, outcomes)
                    return
                except Exception as error:
                    lost = not isinstance(error, ParleyError) and is_lost(error, self._connection)
                    if not lost and (isinstance(error, ParleyError) or not is_rolled_back(error)):
                        raise
                    if lost:
                        self._drop_connection(error)
                        may_be_done = may_be_done or sent
                    for job in jobs:
                        job.is_begun = may_be_done
                await backoff.pause()
        finally:
            self._stalled_since = None

    async def _connected(self, group: Group) -> Connection:
        if group.needs_holder:
            await self._keeper.register()
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect()
        return self._connection

    def _drop_connection(self, cause: BaseException) -> None:
        if not isinstance(cause, TimeoutError):
            self._cause = cause
        if self._connection is not None:
            log.warning("%s: the connection was lost: %s", self._database.location, reason_of(cause))
            self._connection.terminate()
            self._connection = None

    def _settle(self, group: Group | None, jobs: Sequence[_Job], outcomes: Sequence[Any]) -> None:
        written: list[Request] = []
        undoing: list[Request] = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            failed = isinstance(outcome, Exception)
            if group is not None and not failed:
                undo = group.done(job.request, outcome, is_unwanted=job.has_failed)
                undoing += () if undo is None else (undo,)
                written.append(job.request)
            if job.future.done():
                continue
            if failed:
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, LeaseLost) and group is not None:
                group.lost(job.request)
        for request in undoing:
            self._keeper.held.pop(request.id, None)
            self.submit(request).add_done_callback(Future.exception)
        if written:
            self._on_written(written)

    async def close(self) -> None:
        """Execute the submitted requests, and close the connection. Requests that cannot be executed within
        `CLOSE_SECONDS` fail.
        """
        self._closing = True
        if self._running is not None:
            running = self._running
            done, _ = await asyncio.wait((running,), timeout=CLOSE_SECONDS)
            undone = [] if done else [*self._begun, *self._waiting]
            if not done:
                running.cancel()
                await asyncio.wait((running,))
            for job in undone:
                if not job.future.done():
                    job.future.set_exception(self._database.unreachable(self._cause))
        self._waiting.clear()
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None
        if self._connection is not None:
            await close(self._connection)
            self._connection = None


def _stages(jobs: Sequence[_Job]) -> Iterator[tuple[type[Group], list[_Job]]]:
    """Split jobs into groups, so that all requests in a group have the same kind. Yield the kind and the jobs of
    each group, in the order of execution. The requests for each conversation keep their order.
    """
    stage: dict[type[Group], list[_Job]] = {}
    reached: dict[str, int] = {}
    for job in jobs:
        kind = job.request.kind
        if reached.get(job.request.id, 0) > kind.order:
            yield from _in_order(stage)
            stage, reached = {}, {}
        reached[job.request.id] = kind.order
        stage.setdefault(kind, []).append(job)
    yield from _in_order(stage)


def _in_order(stage: dict[type[Group], list[_Job]]) -> list[tuple[type[Group], list[_Job]]]:
    return sorted(stage.items(), key=lambda one: one[0].order)
