"""Renews the leases of this process.

All leases of a process share one row in the table `holders` and one advisory lock. The clock of the database
determines when the row expires. The database releases the lock when the connection ends. Another process may
acquire a lease if the lock of its holder is free or the row of its holder has expired. The epoch of the
conversation then protects the log from the former holder, whose appends fail.

The process renews the row on a separate connection. If the process cannot renew the row for two thirds of the lease
time by its own clock, it gives up all leases. After a failover, the new database server has none of the locks of
running processes. Therefore, for two lease times after a reconnection, the process acquires no leases that still
have a holder.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio import Task, TimerHandle
from collections.abc import Callable
from typing import Final

from parley.errors import NodeIdTaken, ParleyError
from parley.ports.nodes import Node, NodeLoad
from parley.stores.postgres.availability import NO_ANSWER_SECONDS
from parley.stores.postgres.database import Backoff, Database, close
from parley.stores.postgres.driver import Connection, is_lost, is_rolled_back, reason_of
from parley.stores.postgres.held_lease import HeldLease
from parley.stores.postgres.nodes import ALIVE, LOCKS, announce, announce_load
from parley.wire.ids import ConversationId

__all__ = ["ALIVE_OR_CUT_OFF", "LEASE_SECONDS", "LeaseKeeper"]

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15.0
"""The default lease time, in seconds. After the lease time, another process may acquire a lease that was not
renewed.
"""

RENEWALS: Final = 5
"""The number of times that a process renews its leases in one lease time."""

GIVE_UP_SHARE: Final = 2 / 3
"""The fraction of the lease time after which a process gives up leases that it could not renew."""

FORGET_SECONDS: Final = 3600.0
"""The time, in seconds, for which the row of a lease holder stays in the table `holders` after the row has
expired.
"""

RELOCK_SECONDS: Final = 0.02
"""The time between two attempts to acquire the advisory lock of this process again on a new connection, in
seconds.
"""

REFUSED_SECONDS: Final = 5.0
"""The time, in seconds, for which a node counts as stopped after a connection to it was refused."""

JOIN_AGAIN_SECONDS: Final = 0.1
"""The time between two attempts to register this process as a node while another process has the same node id, in
seconds.
"""

ALIVE_OR_CUT_OFF: Final = f"""({ALIVE} OR (
    h.expires_at > clock_timestamp() AND c.owner_address LIKE 'http%'::bytea AND c.owner_address <> ALL($3::bytea[])
))"""
"""An SQL condition that is true if the process of the row `h` of the table `holders`, which holds the lease of the
conversation `c`, may be running.

A node that is cut off from the database loses its lock and continues its turns until its lease is about to expire.
The condition is therefore true for a node whose row has not expired, even if its lock is free. This exception does
not apply to a node that refused a connection; the parameter $3 contains the URLs of these nodes.
"""

_EXPIRY: Final = "clock_timestamp() + make_interval(secs => $2::double precision)"


class LeaseKeeper:
    """Registers this process as a lease holder, renews its leases, and detects when it has lost a lease."""

    def __init__(
        self,
        database: Database,
        *,
        host: str,
        node: Node | None,
        lease_seconds: float,
        on_given_up: Callable[[], None],
    ) -> None:
        """Create the keeper. `on_given_up` is called each time the keeper has given up all leases.

        `host` is the name of the computer. `node` describes this process as a node; None if this process is not a
        node.
        """
        self._database, self._seconds, self._on_given_up = database, lease_seconds, on_given_up
        self._host, self._node = host, node
        self._load: Callable[[], NodeLoad] | None = None
        self._joining: Task[None] | None = None
        self._refused: dict[str, float] = {}
        """Maps the URL of a node to the time, on the event loop's clock, when a connection to this node was last
        refused.
        """
        self.held: dict[ConversationId, HeldLease] = {}
        self.number: int | None = None
        """The number under which this process is registered as a lease holder, and which all its leases contain;
        None if this process is not registered.
        """
        self._former: int | None = None
        self._announced: int | None = None
        """The lease holder number of this process in the table of nodes; None if this process is not in the
        table.
        """
        self._registering: Task[int] | None = None
        self._renewing: Task[None] | None = None
        self._connection: Connection | None = None
        self._is_cut = asyncio.Event()
        self._is_locked = False
        self._expiry: TimerHandle | None = None
        self._alarm: TimerHandle | None = None
        """The timer that records the database as unreachable if a renewal takes too long; None if no renewal is in
        progress.
        """
        self._steals_after = 0.0

    @property
    def may_steal(self) -> bool:
        """True if this process may acquire leases whose holder has exited without releasing them.

        The value is False while the connection is lost, and for two lease times after the reconnection.
        """
        return asyncio.get_running_loop().time() >= self._steals_after

    async def register(self) -> int:
        """Register this process as a lease holder, if necessary, and return its number.

        Raises:
            BadHome: the database cannot be used.
            Exception: any other error from the database or the connection.
        """
        if self.number is not None:
            return self.number
        if self._registering is None or self._registering.done():
            self._registering = asyncio.ensure_future(self._register())
        return await asyncio.shield(self._registering)

    async def _register(self) -> int:
        loop = asyncio.get_running_loop()
        connection = await self._database.connect()
        try:
            async with asyncio.timeout(self._seconds * GIVE_UP_SHARE):
                sent = loop.time()
                number: int = await connection.fetchval("SELECT nextval('holder_numbers')::integer")
                # The lock is acquired before the row is written, so that no process finds the row without the lock.
                await connection.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, number)
                await connection.execute(
                    f"INSERT INTO holders SELECT $1, $3, $4, pg_postmaster_start_time(), {_EXPIRY}",
                    number,
                    self._seconds,
                    (self._host if self._node is None else self._node.id).encode(),
                    os.getpid(),
                )
                if self._node is not None:
                    await announce(connection, self._node, number, self._former)
                    self._announced = number
                await connection.execute(
                    "DELETE FROM holders WHERE number = $1"
                    " OR expires_at < clock_timestamp() - make_interval(secs => $2::double precision)",
                    self._former,
                    FORGET_SECONDS,
                )
        except BaseException as error:
            lost = isinstance(error, Exception) and is_lost(error, connection)
            connection.terminate()
            if lost:
                raise ConnectionError(reason_of(error)) from None
            raise
        if self._former is not None:  # the process has given up its leases, and is connected again
            self._steals_after = loop.time() + 2 * self._seconds
        self._former = self.number = number
        self._is_locked = True
        self._use(connection)
        self._renewed(sent)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew_forever())
        return number

    def _use(self, connection: Connection) -> None:
        """Use `connection` for all renewals from now on.

        A listener detects the loss of the connection immediately. This is necessary because the advisory lock is
        lost together with the connection.
        """
        self._connection = connection
        self._is_cut = cut = asyncio.Event()
        connection.add_termination_listener(lambda _: cut.set())

    def _renewed(self, sent: float) -> None:
        """Record that the row of this process was renewed, and postpone the time at which the leases are given up.

        `sent` is the time, on the event loop's clock, at which the renewal was sent.
        """
        if self._expiry is not None:
            self._expiry.cancel()
        self._stop_alarm()
        self._database.availability.answered("leases")
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_at(sent + self._seconds * GIVE_UP_SHARE, self._give_up)

    def _give_up(self) -> None:
        """Give up all leases, because they could not be renewed in time. The turns of this process stop. This
        process registers again when the database can be reached.
        """
        log.error("%s: the leases could not be renewed in time and are given up", self._database.location)
        self._unregister()
        for held in self.held.values():
            held.is_given_up = True
        for held in tuple(self.held.values()):
            self.lose(held)
        self._on_given_up()
        self._database.availability.gave_up()
        self._joining = asyncio.ensure_future(self._join_again())

    async def _join_again(self) -> None:
        """Register this process again. If this fails, try again until it succeeds.

        After the registration, this process can store the ends of the turns that it has stopped, and other nodes
        can find this node.
        """
        backoff = Backoff()
        while self.number is None:
            try:
                await self.register()
            except Exception as error:
                log.debug("%s: failed to register again: %s", self._database.location, reason_of(error))
                await backoff.pause()

    async def join(self, node: Node, load: Callable[[], NodeLoad] | None, db: Connection) -> None:
        """Register this process as the node `node`. `load` is a function that returns the current load of the node;
        None if the load is not stored. `db` is any connection to the database.

        If another process has the same node id, wait until that process has exited or its row has expired.

        Raises:
            NodeIdTaken: another process still has the node id after the wait.
            Exception: any other error from the database or the connection.
        """
        self._node, self._load = node, load
        until = asyncio.get_running_loop().time() + self._seconds + JOIN_AGAIN_SECONDS
        while True:
            try:
                number = await self.register()
                if self._announced != number:  # the process was registered before it became a node
                    await announce(db, node, number, None)
                    self._announced = number
                return
            except NodeIdTaken:
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(JOIN_AGAIN_SECONDS)

    def renew_now(self) -> None:
        """Renew the row of this process and store the load of the node now, without waiting for the next regular
        renewal.
        """
        self._is_cut.set()

    def note_refused(self, url: str) -> None:
        """Record that a connection to the node at `url` was refused, which means that the node has exited. For
        `REFUSED_SECONDS`, the leases of the node can be acquired as soon as its advisory lock is free.
        """
        self._refused[url] = asyncio.get_running_loop().time()

    def refused(self) -> list[bytes]:
        """Return the encoded URLs of the nodes that refused a connection within the last `REFUSED_SECONDS`."""
        since = asyncio.get_running_loop().time() - REFUSED_SECONDS
        self._refused = {url: at for url, at in self._refused.items() if at >= since}
        return [url.encode() for url in self._refused]

    def _unregister(self) -> None:
        self.number = None
        self._stop_alarm()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    def lose(self, held: HeldLease) -> None:
        """Mark the given lease as lost, and call its callback `on_lost`, unless the lease was already lost."""
        held.is_lost = True
        if self.held.get(held.id) is held:
            del self.held[held.id]
            held.on_lost()

    async def _renew_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._seconds / RENEWALS):
                    await self._is_cut.wait()
            except TimeoutError:
                pass
            if self._connection is not None and not self._connection.is_closed():
                self._is_cut.clear()  # `renew_now` has set the event
            self._start_alarm()
            try:
                await self._renew()
            except ParleyError as error:
                log.warning("%s: the leases cannot be renewed: %s", self._database.location, error)
            except Exception as error:
                connection = self._connection
                if not is_lost(error, connection) and not is_rolled_back(error):
                    log.warning("%s: the leases cannot be renewed: %s", self._database.location, reason_of(error))
                await self._reconnect()

    def _start_alarm(self) -> None:
        """Start a timer that records the database as unreachable if no renewal succeeds within `NO_ANSWER_SECONDS`.
        Do nothing if the timer is already running.
        """
        if self._alarm is None:
            fail = self._database.availability.failed
            self._alarm = asyncio.get_running_loop().call_later(NO_ANSWER_SECONDS, fail, "leases", "no answer")

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _renew(self) -> None:
        assert self._connection is not None
        loop = asyncio.get_running_loop()
        sent = loop.time()
        async with asyncio.timeout(self._seconds / RENEWALS):
            if not self._is_locked:
                await self._lock(self._connection)
            renewed = await self._connection.fetchval(
                f"UPDATE holders SET expires_at = {_EXPIRY}, server = CASE WHEN $3 THEN pg_postmaster_start_time()"
                " ELSE server END WHERE number = $1 RETURNING number",
                self.number,
                self._seconds,
                self._is_locked,
            )
            if self._load is not None:
                await announce_load(self._connection, self.number, self._load())
        if renewed is None:  # the row had expired long ago, and another process has removed it
            self._give_up()
            return
        self._renewed(sent)

    async def _lock(self, connection: Connection) -> None:
        """Try to acquire the advisory lock of this process again. If this fails, the next renewal tries again.

        The attempts fail until the database server has closed the lost connection, which still holds the lock.
        During this time, other processes correctly see the lock as held.
        """
        for _ in range(5):  # a process that examines the lock holds it for a moment
            if await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", LOCKS, self.number):
                self._is_locked = True
                return
            await asyncio.sleep(RELOCK_SECONDS)

    async def _reconnect(self) -> None:
        """Reconnect to the database, retrying until this succeeds, and detect the leases that were lost in the
        meantime.
        """
        loop = asyncio.get_running_loop()
        if self._connection is not None:
            self._connection.terminate()
        self._connection, self._is_locked = None, False
        self._steals_after = float("inf")
        backoff = Backoff()
        while True:
            try:
                self._use(await self._database.connect())
                self._steals_after = loop.time() + 2 * self._seconds
                await self._renew()
                await self.verify()
                return
            except Exception as error:
                if self._connection is not None:
                    self._connection.terminate()
                self._connection, self._is_locked = None, False
                log.debug("%s: reconnecting: %s", self._database.location, reason_of(error))
                await backoff.pause()

    async def verify(self) -> None:
        """Detect the leases that this process has lost, and call the callback `on_lost` of each of these leases.

        Raises:
            StoreFailed: the database cannot be reached.
        """
        before = tuple(self.held.values())
        if not before:
            return

        async def epochs(db: Connection, _: bool) -> dict[int, int]:
            rows = await db.fetch(
                "SELECT number, epoch FROM conversations WHERE number = ANY($1::bigint[])",
                [held.number for held in before],
            )
            return {row[0]: row[1] for row in rows}

        found = await self._database.run(epochs)
        for held in before:
            is_lost_now = found.get(held.number) != held.epoch and not held.is_deleting
            if is_lost_now and self.held.get(held.id) is held:
                self.lose(held)

    async def close(self) -> None:
        """Release all leases without calling their callbacks, and unregister this process."""
        self.held.clear()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.wait((self._joining,))
        if self._registering is not None and not self._registering.done():
            self._registering.cancel()
            await asyncio.wait((self._registering,))
        # a registration may have completed while it was being cancelled
        number, connection, renewing = self.number, self._connection, self._renewing
        self._connection = None
        self._unregister()
        if renewing is not None:
            await asyncio.wait((renewing,))
        if number is None:
            return

        async def leave(db: Connection, _: bool) -> None:
            await db.execute("DELETE FROM nodes WHERE holder = $1", number)
            await db.execute("DELETE FROM holders WHERE number = $1", number)  # release all leases of this process

        try:
            await self._database.run(leave)
        except ParleyError as error:
            log.warning("%s: the leases were not released and expire later: %s", self._database.location, error)
        if connection is not None:
            await close(connection)
