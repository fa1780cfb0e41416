"""Notifies other processes that share the database about the conversations that this process has changed, and
receives the notifications from the other processes.

The notifications use a separate connection and are sent after the commit, because a NOTIFY inside a transaction
makes the commits of all processes wait for each other. Notifications can be lost, so each process also queries the
database once a second.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from parley.common.limited_log import LimitedLog
from parley.errors import ParleyError
from parley.stores.postgres.database import Backoff, Database, close
from parley.stores.postgres.driver import Connection, reason_of
from parley.wire.ids import ConversationId

__all__ = ["Notifications"]

log = logging.getLogger(__name__)

CHANNEL: Final = "parley"
BATCH_SECONDS: Final = 0.01
"""The time, in seconds, for which changes are collected before a notification about them is sent."""

PAYLOAD_BYTES: Final = 7500
"""The maximum size of a notification, in bytes. PostgreSQL accepts fewer than 8000 bytes."""

MAX_ID: Final = 100
"""The maximum length of a conversation id in a notification, in bytes. A longer id is not sent; other processes
find the change with their next query.
"""


class Notifications:
    """Sends notifications about conversations that this process has changed, and passes the notifications from
    other processes to callbacks.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed: dict[ConversationId, None] = {}
        self._callbacks: list[Callable[[list[ConversationId]], None]] = []
        self._more = asyncio.Event()
        self._running: Task[None] | None = None
        self._connection: Connection | None = None
        self._log = LimitedLog(log)

    def note(self, changed: Iterable[ConversationId]) -> None:
        """Schedule a notification to other processes that this process has changed the conversations `changed`."""
        self._changed.update(dict.fromkeys(changed))
        self._more.set()
        self._start()

    def listen(self, callback: Callable[[list[ConversationId]], None]) -> None:
        """Register `callback`, which is called on the event loop with the ids of conversations that other processes
        have changed.
        """
        self._callbacks.append(callback)
        self._start()

    def _start(self) -> None:
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    await self._connect()
                    backoff = Backoff()
                await self._more.wait()
                await asyncio.sleep(BATCH_SECONDS)
                self._more.clear()
                await self._send()
            except ParleyError as error:
                if self._database.has_connected:  # otherwise, each call fails with this error
                    self._log.warning("notifications are not sent: %s", error)
                await backoff.pause()
            except Exception as error:
                log.debug("%s: the notifications reconnect: %s", self._database.location, reason_of(error))
                if self._connection is not None:
                    self._connection.terminate()
                await backoff.pause()

    async def _connect(self) -> None:
        self._connection = await self._database.connect()
        await self._connection.execute("SET synchronous_commit = off")
        await self._connection.add_listener(CHANNEL, self._received)
        # The event wakes the task, which opens a lost connection again even if there is nothing to send.
        self._connection.add_termination_listener(lambda _: self._more.set())

    async def _send(self) -> None:
        if self._changed:
            assert self._connection is not None
            changed, self._changed = list(self._changed), {}
            await self._connection.execute(
                "SELECT pg_notify($1, n) FROM unnest($2::text[]) AS n", CHANNEL, list(_payloads(changed))
            )
        else:
            await asyncio.sleep(0)

    def _received(self, connection: Any, sender: int, channel: str, payload: Any) -> None:
        if connection.is_closed() or sender == connection.get_server_pid():
            return
        changed = [ConversationId(one) for one in str(payload).split("\n") if one]
        for callback in self._callbacks:
            callback(changed)

    async def close(self) -> None:
        """Send the remaining notifications if the connection is open, and close the connection."""
        running, connection = self._running, self._connection
        if running is None:
            return
        running.cancel()
        await asyncio.wait((running,))
        if connection is None or connection.is_closed():
            return
        try:
            async with asyncio.timeout(1):
                await self._send()
        except Exception as error:
            log.debug("the last notifications were not sent: %s", reason_of(error))
        await close(connection)


def _payloads(changed: Iterable[ConversationId]) -> Iterator[str]:
    """Yield payloads of at most `PAYLOAD_BYTES` bytes that together contain the ids in `changed`. Ids that are
    longer than `MAX_ID` bytes are left out.
    """
    joined: list[str] = []
    size = 0
    for one in changed:
        length = len(one.encode()) + 1
        if length > MAX_ID or "\0" in one or "\n" in one:
            continue
        if size + length > PAYLOAD_BYTES:
            yield "\n".join(joined)
            joined, size = [], 0
        joined.append(one)
        size += length
    if joined:
        yield "\n".join(joined)
