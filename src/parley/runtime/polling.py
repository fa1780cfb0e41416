"""Finds entries that other processes have written, in conversations that clients of this process are reading.

Polling is necessary because a notification `parley/changed` may be lost, and a process that was killed sends no
notification.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from parley.conversation.state import Phase
from parley.errors import ParleyError
from parley.ports.clock import Clock
from parley.ports.store import Query, Store
from parley.runtime.activity import Activity
from parley.runtime.conversation import Conversation
from parley.wire.ids import ConversationId, Seq

__all__ = ["Poller", "keep_running"]

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""The interval, in seconds, between two queries of the store for entries from other processes. The store is queried
only while clients are reading conversations or lists.
"""
REEXAMINE_TICKS: Final = 5
"""The number of polls after which every conversation in memory is examined again, even if it was not used since it
was last examined.
"""
RESTART_SECONDS: Final = 10.0
"""The delay, in seconds, before a background loop that has failed is started again."""


class Poller:
    """Queries the store periodically, while clients are reading conversations or lists."""

    def __init__(
        self, store: Store, in_memory: Mapping[ConversationId, Conversation], activity: Activity, clock: Clock
    ) -> None:
        """Create the poller. `in_memory` contains the conversations that are in memory."""
        self._store, self._in_memory, self._activity, self._clock = store, in_memory, activity, clock
        self._task: asyncio.Task[None] | None = None
        self._newest: tuple[ConversationId, str, float] | None = None
        """The conversation that the last query found to be the most recently active, its title, and the time of its
        last activity in seconds since the epoch. None if no query has found a conversation.
        """
        self._touched: set[ConversationId] = set()
        """The conversations that a client or another process has used since they were last examined."""

    def touch(self, conversation_id: ConversationId) -> None:
        """Make the next poll examine a conversation, because the conversation was used."""
        self._touched.add(conversation_id)

    async def prepare(self) -> None:
        """Query the store for the newest activity. Watchers are notified only of activity after this query. The
        caller calls this method before it registers a watcher.

        Raises:
            StoreError: the store cannot be searched.
        """
        if not self._activity.is_watched:
            await self._is_newest_changed()

    def start(self) -> None:
        """Begin to poll. Polling ends when no client is reading a conversation or a list."""
        if self._task is None:
            self._task = asyncio.create_task(keep_running(self._poll, self._clock))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        """Query the store once a second for new entries from other processes, in the conversations that clients of
        this process are reading.
        """
        polled = _Polled()
        last_error = ""
        for tick in itertools.count():
            await self._clock.sleep(POLL_SECONDS)
            if tick % REEXAMINE_TICKS == 0:
                polled = _Polled()
                self._touched.update(self._in_memory.keys())
            for conversation_id in self._touched | polled.with_turns:
                polled.examine(conversation_id, self._in_memory.get(conversation_id))
            self._touched.clear()
            if not polled.watched and not self._activity.is_watched:
                self._task = None
                return
            try:
                await self._store.check()
                news = await self._store.changed_since(polled.ends) if polled.ends else ()
                if self._activity.is_watched:
                    await self._note_activity()
                last_error = ""
            except ParleyError as error:
                news = ()
                if str(error) != last_error:
                    log.warning("other processes' entries cannot be queried: %s", error)
                last_error = str(error)
            for conversation_id in (*news, *polled.unfinished):
                if (one := self._in_memory.get(conversation_id)) is not None and one.needs_polling:
                    self._touched.add(conversation_id)
                    one.reconcile()

    async def _note_activity(self) -> None:
        """Notify the watchers if another process may have changed a conversation."""
        before = self._newest
        if await self._is_newest_changed() and self._newest is not None:
            conversation_id, title, updated_at = self._newest
            one = self._in_memory.get(conversation_id)
            is_known = one is not None and (one.state.title, one.state.updated_at) == (title, updated_at)
            if is_known and before is not None and updated_at > before[2]:
                return  # the watchers were notified when the log in memory changed
            self._activity.notify(conversation_id, before is None or before[:2] != (conversation_id, title))

    async def _is_newest_changed(self) -> bool:
        """Query the store for the most recently active conversation. Return whether the conversation, its title or
        the time of its last activity differs from the result of the last query.
        """
        found = await self._store.find(Query(archived=None, limit=1))
        before = self._newest
        self._newest = next(
            ((one.conversation_id, one.summary.title, one.summary.updated_at) for one in found.items), None
        )
        return before != self._newest


class _Polled:
    """The conversations that clients of this process are reading, grouped by how they are polled."""

    def __init__(self) -> None:
        self.watched: set[ConversationId] = set()
        self.with_turns: set[ConversationId] = set()
        """The conversations with an unfinished turn or a queued message that can begin a turn. They are examined
        with every poll, because their state can change although no entry is stored.
        """
        self.ends: dict[ConversationId, Seq] = {}
        """The conversations without an unfinished turn, each with the last known position in its log."""
        self.unfinished: set[ConversationId] = set()
        """The conversations in `with_turns` whose turn this process neither runs nor follows. Each poll reads their
        logs, because the owner may have died.
        """

    def examine(self, conversation_id: ConversationId, conversation: Conversation | None) -> None:
        """Record how a conversation must be polled.

        `conversation` is None if the conversation is no longer in memory.
        """
        self.ends.pop(conversation_id, None)
        for some in (self.watched, self.with_turns, self.unfinished):
            some.discard(conversation_id)
        if conversation is None or not (conversation.is_watched or conversation.has_commands):
            return
        self.watched.add(conversation_id)
        is_idle = conversation.state.phase is Phase.IDLE and not conversation.is_queue_pending
        if not is_idle:
            self.with_turns.add(conversation_id)
        if conversation.needs_polling:
            if is_idle:
                self.ends[conversation_id] = conversation.log.durable
            else:
                self.unfinished.add(conversation_id)


async def keep_running(work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Run the background loop `work` until it returns. If `work` raises an error, start it again after
    `RESTART_SECONDS`.
    """
    while True:
        try:
            await work()
            return
        # the error is a bug; without this loop, clients would miss entries, or memory would fill up
        except Exception:
            log.exception("a background loop of the conversations failed, and begins again")
            await clock.sleep(RESTART_SECONDS)
