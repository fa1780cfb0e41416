"""The connections to the database: a small pool, and separate connections for single purposes.

If the connection is lost during `Database.run`, the statements are executed again on a new connection, until the
deadline of the call. The second argument of `Work` states whether an earlier attempt may have been committed. If
the caller is cancelled, the statements are still executed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from asyncio import Task
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from parley.errors import BadHome, ParleyError, StoreFailed
from parley.ports.store import CALL_SECONDS
from parley.stores.postgres import schema
from parley.stores.postgres.availability import Availability
from parley.stores.postgres.driver import (
    Connection,
    connect,
    execute_until,
    is_lost,
    is_permanent,
    is_rolled_back,
    reason_of,
    refusal_of,
)
from parley.stores.postgres.schema import Migration, NewerFormat, format_of, migrate

__all__ = ["Backoff", "Database", "close", "location_of"]

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 4
"""The maximum number of connections in the pool. The writer, the leases and the notifications use
separate connections.
"""

CONNECT_SECONDS: Final = 5.0
"""The maximum time for opening a connection, in seconds."""

FIRST_PAUSE_SECONDS: Final = 0.02
MAX_PAUSE_SECONDS: Final = 1.0
"""The upper limit of the maximum pause between two attempts to connect, in seconds. The maximum of the first pause
is `FIRST_PAUSE_SECONDS`. The maximum doubles with each attempt, up to this limit.
"""

PROBE_SECONDS: Final = 0.5
"""The maximum time, in seconds, for opening a new connection after a call of `Database.run` has failed. After this
time, the database counts as unreachable.
"""

CLOSE_SECONDS: Final = 1.0
"""The maximum time for closing a connection cleanly, in seconds. After this time, the connection is terminated."""

T = TypeVar("T")

Work = Callable[[Connection, bool], Coroutine[Any, Any, T]]
"""A function that executes statements on the given connection. The function is called again if the connection is
lost. Its second argument is True if an earlier attempt may have been committed.
"""


def location_of(url: str) -> str:
    """Return a description of the database at `url`: its host and its name, without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"PostgreSQL at {host or 'localhost'}{parts.path}"


class Backoff:
    """Waits between attempts to connect or to execute statements. The maximum wait doubles with each attempt, up to
    `MAX_PAUSE_SECONDS`.
    """

    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE_SECONDS

    async def pause(self, until: float | None = None) -> None:
        """Wait before the next attempt, for a random time between half the maximum wait and the maximum wait.

        The wait does not extend beyond the time `until` on the event loop's clock.
        """
        seconds = self._seconds * random.uniform(0.5, 1.0)
        self._seconds = min(self._seconds * 2, MAX_PAUSE_SECONDS)
        if until is not None:
            seconds = min(seconds, max(0.0, until - asyncio.get_running_loop().time()))
        await asyncio.sleep(seconds)


class Database:
    """The connections of one process to a PostgreSQL database."""

    def __init__(self, url: str, migrations: Sequence[Migration] | None = None) -> None:
        """Create the object without connecting. `migrations` contains the migrations that this process can apply;
        the default is `schema.MIGRATIONS`.
        """
        self._url = url
        self.location = location_of(url)
        self._migrations = schema.MIGRATIONS if migrations is None else migrations
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._tasks: set[Task[Any]] = set()
        self._migrating: Task[None] | None = None
        self.availability = Availability(self.location)
        self._probing: Task[None] | None = None
        self._closing = self._closed = False
        self.has_connected = False
        """True if this process has been connected to the database at least once."""

    async def connect(self) -> Connection:
        """Open a connection, and migrate the database first if its format is older than this process needs. The
        caller closes the connection.

        Raises:
            BadHome: further attempts would also fail, for example because the password is wrong or the database has
                a newer format.
            Exception: the connection could not be opened or was lost (`is_lost`); further attempts may succeed.
        """
        connection: Connection | None = None
        try:
            connection = await connect(self._url, seconds=CONNECT_SECONDS)
            found = await format_of(connection)
            if found.number < len(self._migrations):
                await self._migrated()
            else:
                found.check(len(self._migrations))
            self.has_connected = True
            return connection
        except BaseException as error:
            is_cut = connection is not None and connection.is_closed()
            if connection is not None:
                connection.terminate()
            if isinstance(error, ImportError):
                why = "the Python package asyncpg is not installed; install parley-server[postgres]"
                raise BadHome(self.location, why) from None
            if isinstance(error, NewerFormat) or (isinstance(error, Exception) and is_permanent(error)):
                raise BadHome(self.location, reason_of(error)) from None
            if is_cut and isinstance(error, Exception):
                raise ConnectionError(reason_of(error)) from None
            raise

    async def _migrated(self) -> None:
        """Migrate the database on a separate connection without a deadline, because a migration may take a long
        time.
        """
        if self._migrating is None or self._migrating.done():
            self._migrating = asyncio.ensure_future(self._migrate())
            self._tasks.add(self._migrating)
            self._migrating.add_done_callback(self._tasks.discard)
        await asyncio.shield(self._migrating)

    async def _migrate(self) -> None:
        connection = await connect(self._url, seconds=CONNECT_SECONDS)
        try:
            await migrate(connection, self._migrations)
        finally:
            connection.terminate()

    async def wait_until_usable(self, *, until: float) -> None:
        """Wait until the database accepts connections, and then until it has been migrated.

        `until` is the deadline for the first connection, on the event loop's clock. There is no deadline for the
        migration.

        Raises:
            StoreFailed: the database cannot be reached, or the migration failed.
            BadHome: the database cannot be used.
        """
        backoff = Backoff()
        while True:
            try:
                connection = await self.connect()
            except ParleyError:
                raise
            except Exception as error:
                if not is_lost(error, None) and not is_rolled_back(error):
                    raise refusal_of(error) from None
                if asyncio.get_running_loop().time() >= until:
                    raise self.unreachable(error) from None
                self.availability.failed("calls", reason_of(error))
            else:
                self.availability.answered("calls")
                await close(connection)
                return
            await backoff.pause(until)

    async def run(self, work: Work[T], *, until: float | None = None) -> T:
        """Call `work` with a connection from the pool, and return the result of `work`.

        `until` is the deadline on the event loop's clock. Without a deadline, the call takes at most
        `CALL_SECONDS`.

        Raises:
            StoreFailed: the database cannot be reached, or a statement failed.
            BadHome: the database cannot be used.
        """
        return await self.keep(self._run(work, until))

    async def keep(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if the caller is cancelled, and return its result. `close` waits for the
        work.
        """
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # if the caller was cancelled, no other task retrieves the exception

    async def _run(self, work: Work[T], until: float | None) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + CALL_SECONDS if until is None else until
        backoff, may_be_done = Backoff(), False
        cause: BaseException = TimeoutError()
        while True:
            sent = False
            connection: Connection | None = None
            try:
                async with asyncio.timeout_at(until):
                    await self._slots.acquire()
                try:
                    if self._closed:
                        raise StoreFailed("the store is closed")
                    async with asyncio.timeout_at(until):
                        connection = self._take() or await self.connect()
                    sent = True
                    result = await execute_until(until, connection, work(connection, may_be_done))
                finally:
                    self._slots.release()
                self._idle.append(connection)
                self.availability.answered("calls")
                return result
            except ParleyError:
                if connection is not None:
                    self._idle.append(connection)
                raise
            except Exception as error:
                lost = is_lost(error, connection)
                if connection is not None:
                    self._return(connection, lost)
                if not lost and not is_rolled_back(error):
                    raise refusal_of(error) from None
                if lost and not isinstance(error, TimeoutError):
                    cause = error
                may_be_done = may_be_done or (sent and lost)
            except BaseException:
                if connection is not None:
                    connection.terminate()
                raise
            if loop.time() >= until:
                if self._probing is None and not self._closing:
                    self._probing = asyncio.ensure_future(self._probe(cause))
                raise self.unreachable(cause)
            await backoff.pause(until)

    async def _probe(self, cause: BaseException) -> None:
        """Determine whether the database can be reached after a call of `run` has failed with the error `cause`.

        If the database cannot be reached, record this in `availability`, and wait until it can be reached again. If
        the database can be reached, record nothing: the call failed only because its own statement took too long.
        """
        backoff = Backoff()
        alarm = asyncio.get_running_loop().call_later(
            PROBE_SECONDS, self.availability.failed, "calls", reason_of(cause)
        )
        try:
            while True:
                with suppress(Exception):
                    connection = await self.connect()
                    self.availability.answered("calls")
                    await close(connection)
                    return
                await backoff.pause()
        finally:
            alarm.cancel()
            self._probing = None

    def unreachable(self, cause: BaseException) -> StoreFailed:
        """Return the error for a request that could not be executed before its deadline. `cause` is the last
        connection error.
        """
        return StoreFailed(f"{self.location} cannot be reached: {reason_of(cause)}")

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _return(self, connection: Connection, lost: bool) -> None:
        """Return a connection to the pool after an error.

        If the connection is lost, it is terminated together with all idle connections.
        """
        if not lost and not connection.is_closed():
            self._idle.append(connection)
            return
        connection.terminate()
        for one in self._idle:
            one.terminate()
        self._idle.clear()

    async def close(self) -> None:
        """Wait for the calls in progress, at most `CALL_SECONDS`, and close the connections of the pool."""
        self._closing = True
        if (probing := self._probing) is not None:
            probing.cancel()
            await asyncio.wait((probing,))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CALL_SECONDS)
        self._closed = True
        for connection in self._idle:
            await close(connection)
        self._idle.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)


async def close(connection: Connection) -> None:
    """Close a connection. Terminate the connection if closing takes longer than `CLOSE_SECONDS`."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.close()
    except Exception as error:
        log.debug("a connection was terminated: %s", reason_of(error))
        connection.terminate()
