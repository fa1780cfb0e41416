"""Delivers notifications in the background with retries. Only the newest notification for each key is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from parley.common.limited_log import LimitedLog
from parley.ports.clock import Clock

__all__ = ["Deliveries"]

MAX_CONCURRENT: Final = 4
"""The maximum number of notifications that are sent at the same time."""
MAX_ATTEMPTS: Final = 10
FIRST_DELAY_SECONDS: Final = 1.0
MAX_DELAY_SECONDS: Final = 60.0
"""The maximum delay before a retry, in seconds. The first delay is `FIRST_DELAY_SECONDS`, and each retry doubles
the delay.
"""
DRAIN_SECONDS: Final = 1.0
"""The maximum time, in seconds, for which a shutdown waits for attempts in progress."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Deliveries(Generic[K, T]):
    """The notifications that have not been delivered yet, and the tasks that deliver them.

    A new notification replaces an older notification with the same key.
    """

    def __init__(
        self,
        kind: str,
        attempt: Callable[[K, T], Awaitable[str | None]],
        clock: Clock,
        log: LimitedLog,
        *,
        max_waiting: int,
    ) -> None:
        """Create an empty collection of notifications.

        `kind` is a name for the notifications in log messages, such as `webhook`. `attempt` tries once to send a
        notification. The arguments of `attempt` are the key and the notification. `attempt` returns None if no
        retry is needed, and otherwise a description of the problem. `max_waiting` is the maximum number of
        undelivered notifications.
        """
        self._kind, self._attempt, self._clock, self._log = kind, attempt, clock, log
        self._max_waiting = max_waiting
        self._due: dict[K, T] = {}
        """The newest undelivered notification for each key."""
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._delayed: set[K] = set()
        """The keys whose notifications are waiting for the next attempt."""
        self._room = asyncio.Semaphore(MAX_CONCURRENT)
        self._closed = False

    def put(self, key: K, notification: T) -> None:
        """Deliver a notification in the background. This method returns immediately and never raises an error.

        The notification replaces an undelivered notification with the same key. If the maximum number of
        undelivered notifications is reached, a notification with a new key is discarded.
        After `close`, every notification is discarded.
        """
        if self._closed:
            return
        if key not in self._due and len(self._due) >= self._max_waiting:
            self._log.warning("discarded a %s notification: %d others are waiting", self._kind, len(self._due))
            return
        self._due[key] = notification
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._deliver(key))

    async def close(self, *, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until the attempts in progress have ended, and discard all other notifications. Wait at most
        `seconds` or `DRAIN_SECONDS`, whichever is less.
        """
        self._closed = True
        for key in self._delayed:
            self._tasks[key].cancel()
        if tasks := tuple(self._tasks.values()):
            await asyncio.wait(tasks, timeout=min(seconds, DRAIN_SECONDS))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._due:
            self._log.warning(
                "discarded %d %s notifications: the server is shutting down", len(self._due), self._kind
            )

    def __len__(self) -> int:
        """Return the number of undelivered notifications."""
        return len(self._due)

    @property
    def is_idle(self) -> bool:
        """True if no notification is waiting or being delivered."""
        return not self._tasks

    async def _deliver(self, key: K) -> None:
        """Deliver the notification with the key `key`. Each failed attempt is followed by a retry after a delay.
        After `MAX_ATTEMPTS` attempts, the notification is discarded.

        If a newer notification with the same key arrives before the delivery, the newer notification is delivered
        instead. Return when no notification with the key is left.
        """
        try:
            await self._deliver_all(key)
        finally:
            del self._tasks[key]

    async def _deliver_all(self, key: K) -> None:
        sent: T | None = None
        attempts = 0
        while key in self._due:
            waits = self._room.locked()
            async with self._room:
                if waits and self._closed:
                    return
                due = self._due[key]  # read here, so that the newest notification is sent
                if due is not sent:
                    sent, attempts = due, 0
                trouble = await self._attempt(key, due)
            attempts += 1
            if self._due.get(key) is not due:
                continue  # a newer notification has arrived: send it now
            if trouble is None or attempts == MAX_ATTEMPTS or self._closed:
                del self._due[key]
                if trouble is not None:
                    self._log.warning(
                        "discarded a %s notification after %d attempts: %s", self._kind, attempts, trouble
                    )
                continue
            self._delayed.add(key)
            try:
                await self._clock.sleep(min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (attempts - 1)))
            finally:
                self._delayed.discard(key)
