"""The conversations of one process: created, loaded on demand, listed, forked, and evicted from memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Final
from uuid import uuid4
from weakref import WeakValueDictionary

from parley.agent.sandbox_policy import Roots
from parley.config.types import SettingsOverrides, StoreSettings
from parley.conversation.log import Entry
from parley.conversation.state import Phase
from parley.errors import (
    ConfigError,
    HomeLost,
    ParleyError,
    ShuttingDown,
    StoreError,
    UnknownConversation,
    Unreadable,
)
from parley.ports.clock import Clock
from parley.ports.commands import CommandRunner
from parley.ports.model import OpenModel
from parley.ports.peers import Peers
from parley.ports.store import ConversationPage, Head, Query, Store
from parley.ports.tools import Tools
from parley.runtime.bulk_create import bulk_create
from parley.runtime.conversation import Conversation
from parley.runtime.corrupt_conversations import CorruptConversations
from parley.runtime.deadline import Deadline
from parley.runtime.deps import RuntimeDeps
from parley.runtime.errors import UnknownApproval
from parley.runtime.grants import SessionGrants
from parley.runtime.log_pages import entries_of_fork
from parley.runtime.no_peers import NoPeers
from parley.runtime.peer_registry import PeerRegistry
from parley.runtime.settings import ResolveSettings, SettingsResolver
from parley.wire.ids import ApprovalId, ConversationId, MessageId, Seq

__all__ = ["ConversationRegistry"]

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""Time between two queries for new entries of other processes in conversations that are read here."""
REEXAMINE_TICKS: Final = 5
"""Number of polls after which all conversations in memory are examined again, including unused ones."""
SOONEST_SECONDS: Final = 1.0
EVICT_SECONDS: Final = 30.0
"""The longest time between two searches for conversations that can be evicted; `SOONEST_SECONDS` is the
shortest."""


class ConversationRegistry:
    """The conversations of a home that this process uses."""

    def __init__(
        self,
        *,
        store: Store,
        choose: ResolveSettings,
        clock: Clock,
        open_model: OpenModel,
        tools: Tools,
        commands: CommandRunner,
        peers: Peers | None = None,
        store_settings: Callable[[], StoreSettings] = StoreSettings,
        release_memory: Callable[[], None] = lambda: None,
        has_other_clients: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create an empty registry. `commands` runs the commands of the tools. `release_memory` is called after
        conversations were evicted. `has_other_clients` returns whether this process has more than one client.
        """
        self._store, self._choose = store, choose
        self._closing = asyncio.Event()
        registry = PeerRegistry(peers or NoPeers())
        self._deps = RuntimeDeps(
            clock=clock,
            store=store,
            open_model=open_model,
            tools=tools,
            commands=commands,
            peers=registry,
            may_be_followed=lambda: has_other_clients() or registry.has_peers(),
            started_at=clock.now(),
            closing=self._closing,
        )
        self._corrupt = CorruptConversations(store)
        self._is_shared = peers is not None
        self._polling: asyncio.Task[None] | None = None
        self._touched: set[ConversationId] = set()
        """Conversations that a call or another process concerned since they were examined last."""
        self._granted: set[str] = set()
        """Every directory that some conversation was allowed to write to."""
        self._alive: WeakValueDictionary[ConversationId, Conversation] = WeakValueDictionary()
        """Every conversation in memory, each once."""
        self._kept: dict[ConversationId, Conversation] = {}
        """Those that stay in memory although they may be unused, the last used one last."""
        self._used: dict[ConversationId, float] = {}
        """When each of them was used last."""
        self._grants: dict[ConversationId, SessionGrants] = {}
        """Also of conversations that have left memory: they hold until the process ends."""
        store.watch(self._lose)
        self._store_settings, self._release_memory = store_settings, release_memory
        self._evicting: asyncio.Task[None] | None = None

    async def create(self, wanted: SettingsOverrides, resolve: ResolveSettings | None = None) -> Conversation:
        """Create a conversation. `resolve` resolves its settings; the default is the resolver of this process.

        Raises:
            ConfigError: the settings cannot be used.
            ShuttingDown: the server shuts down.
            StoreError: it cannot be stored.
        """
        chosen = (resolve or self._choose)(wanted, None)
        if self._closing.is_set():
            raise ShuttingDown
        conversation = self._open(ConversationId(str(uuid4())))
        conversation.grants.resolver.resolve_for(resolve)
        await conversation.create(wanted, chosen)
        self._keep(conversation)
        return conversation

    def get(self, conversation_id: ConversationId) -> Conversation:
        """Return a conversation without checking that it exists. The command for which it is used checks that."""
        conversation = self._alive.get(conversation_id)
        if conversation is None or conversation.is_deleted:
            conversation = self._open(conversation_id)
        self._keep(conversation)
        return conversation

    async def find(self, conversation_id: ConversationId) -> Conversation:
        """Return a conversation with a current log.

        Raises:
            UnknownConversation: it does not exist.
            StoreError: it cannot be read.
        """
        is_new = conversation_id not in self._kept
        conversation = self.get(conversation_id)
        await self._deps.peers.listen()
        try:
            await conversation.observe()
        except StoreError:
            if is_new:
                self._forget(conversation_id, is_deleted=False)
            raise
        self._keep(conversation)
        return conversation

    def changed(self, conversation_id: ConversationId) -> None:
        """Schedule a read of a conversation that another process has changed."""
        if (conversation := self._alive.get(conversation_id)) is not None and conversation.is_watched:
            conversation.reconcile()

    def loaded(self, conversation_id: ConversationId) -> Conversation | None:
        """Return a conversation if it is in memory, else None."""
        return self._alive.get(conversation_id)

    async def head(self, conversation_id: ConversationId) -> Head:
        """Return the state of a conversation in the store. Raises UnknownConversation, StoreError."""
        return await self._store.head(conversation_id)

    def _open(self, conversation_id: ConversationId) -> Conversation:
        grants = self._grants.get(conversation_id) or SessionGrants(
            Roots(self._granted), SettingsResolver(self._choose)
        )
        conversation = Conversation(conversation_id, self._deps, grants)
        conversation.on_deleted(self, partial(self._forget, conversation_id, is_deleted=True))
        self._alive[conversation_id] = conversation
        return conversation

    # --- approvals ---------------------------------------------------------------------

    async def find_by_approval(self, approval_id: ApprovalId) -> Conversation:
        """Return the conversation in which an approval was asked, whether it is open or settled.

        Raises:
            UnknownApproval: it was never asked.
            StoreError: the store cannot be searched.
        """
        for conversation in self:
            if conversation.has_approval(approval_id):
                return conversation
        found = await self._store.find(Query(asked=approval_id, archived=None, limit=1))
        for listed in found.items:
            return await self.find(listed.conversation_id)
        raise UnknownApproval

    async def awaiting_approval(self) -> list[Conversation]:
        """Return the conversations that wait for an answer.

        Raises:
            StoreError: the store cannot be searched.
        """
        asking: list[Conversation] = []
        query = Query(state="asking", archived=None)
        while True:
            found = await self._store.find(query)
            # Concurrently: each whose owner does not answer takes seconds.
            finding = (self._find_if_possible(listed.conversation_id) for listed in found.items)
            asking += [one for one in await asyncio.gather(*finding) if one is not None]
            if not found.more:
                return [one for one in asking if one.open_approval is not None]
            query = Query(state="asking", archived=None, after=found.items[-1].cursor)

    # --- lists -------------------------------------------------------------------------

    async def page(self, query: Query) -> ConversationPage:
        """Return one page of all conversations.

        Raises:
            StoreError: the store cannot be searched.
        """
        found = await self._store.find(query)
        left = [one for one in found.items if one.summary.state == "running" and not one.owned]
        if not left:
            return found
        # Concurrently: each takes seconds while another process holds the write lock.
        await asyncio.gather(*(self._find_if_possible(one.conversation_id) for one in left))
        return await self._store.find(query)

    async def _find_if_possible(self, conversation_id: ConversationId) -> Conversation | None:
        """Return a conversation as `find` does; None if it cannot be read, so that lists leave it out."""
        try:
            return await self.find(conversation_id)
        except UnknownConversation:
            return None
        except StoreError as error:
            self._corrupt.report(conversation_id, error)
            return None

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        """Archive a conversation, or restore it to the list. Raises UnknownConversation, StoreError."""
        await self._store.archive(conversation_id, archived=archived)

    async def delete(self, conversation_id: ConversationId, *, deadline: Deadline | None = None) -> None:
        """Delete a conversation, even one that cannot be read.

        Raises:
            UnknownConversation, TurnIsRunning, ShuttingDown, StoreError: nothing was changed.
        """
        try:
            conversation = await self.find(conversation_id)
            await conversation.delete(deadline=deadline)
        except Unreadable:
            await self._corrupt.delete(conversation_id)
            self._deps.peers.announce(conversation_id)
            if (loaded := self._alive.get(conversation_id)) is not None:
                loaded.mark_deleted()

    async def fork(self, conversation_id: ConversationId, *, at: MessageId | None) -> ConversationId:
        """Create a conversation with the entries of another one, all or up to the end of a turn.

        Raises:
            UnknownConversation, UnknownMessage, TurnIsRunning, ShuttingDown, StoreError: nothing was changed.
        """
        conversation = await self.find(conversation_id)
        is_idle = conversation.phase is Phase.IDLE
        pages = entries_of_fork(conversation, at, last=conversation.log.durable, is_idle=is_idle)
        forked = ConversationId(str(uuid4()))
        await bulk_create(self._store, forked, self._unless_closing(pages))
        return forked

    async def _unless_closing(self, pages: AsyncIterable[Sequence[Entry]]) -> AsyncIterator[Sequence[Entry]]:
        async for page in pages:
            if self.closing:
                raise ShuttingDown
            yield page

    # --- those in memory ---------------------------------------------------------------

    def __iter__(self) -> Iterator[Conversation]:
        """Iterate over the conversations in memory."""
        return iter(tuple(self._alive.values()))

    @property
    def closing(self) -> bool:
        """True if the server shuts down."""
        return self._closing.is_set()

    @property
    def running(self) -> list[Conversation]:
        """The conversations whose turn runs here."""
        return [one for one in self if one.turn is not None]

    async def stop(self) -> None:
        """Accept no more commands and end every running turn."""
        self._closing.set()
        for task in (self._evicting, self._polling):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(conversation.stop() for conversation in self))

    async def close(self) -> None:
        """Close the store and the connections to other processes, after `stop`."""
        async with asyncio.TaskGroup() as closing:  # requests of other processes may wait for the store
            closing.create_task(self._deps.peers.close())
            closing.create_task(self._store.close())

    def _keep(self, conversation: Conversation) -> None:
        self._touched.add(conversation.id)
        self._kept.pop(conversation.id, None)
        self._kept[conversation.id] = conversation
        self._grants[conversation.id] = conversation.grants
        self._used[conversation.id] = self._deps.clock.now()
        if self.closing:
            return
        if self._evicting is None:
            self._evicting = asyncio.create_task(self._evict_unused())
        if self._polling is None and self._is_shared:
            self._polling = asyncio.create_task(self._poll())

    def _forget(self, conversation_id: ConversationId, *, is_deleted: bool) -> None:
        grants = self._grants.get(conversation_id)
        if grants is not None and (is_deleted or not grants.is_needed):
            del self._grants[conversation_id]
        self._kept.pop(conversation_id, None)
        self._used.pop(conversation_id, None)

    async def _poll(self) -> None:
        """Query once a second for new entries of conversations that are read here and that other processes may
        write to. A notification `parley/changed` may be lost, and a process that was killed sends none.
        """
        polled = _Polled()
        trouble = ""
        for tick in itertools.count():
            await self._deps.clock.sleep(POLL_SECONDS)
            if tick % REEXAMINE_TICKS == 0:
                polled = _Polled()
                self._touched.update(self._alive.keys())
            for conversation_id in self._touched | polled.with_turns:
                polled.examine(conversation_id, self._alive.get(conversation_id))
            self._touched.clear()
            if not polled.watched:
                self._polling = None
                return
            try:
                await self._store.check()
                news = await self._store.changed_since(polled.ends) if polled.ends else ()
                trouble = ""
            except ParleyError as error:
                news = ()
                if str(error) != trouble:
                    log.warning("other processes' entries cannot be queried: %s", error)
                trouble = str(error)
            for conversation_id in (*news, *polled.unfinished):
                if (one := self._alive.get(conversation_id)) is not None and one.needs_polling:
                    self._touched.add(conversation_id)
                    one.reconcile()

    def _lose(self, lost: HomeLost) -> None:
        """End every turn and every stream because the home was lost. All conversations are removed from memory,
        because the store may lack entries that are there.
        """
        for one in self:
            one.lose(lost)

    def _settings(self) -> StoreSettings:
        try:
            return self._store_settings()
        except ConfigError:  # a client that creates a conversation is told
            return StoreSettings()

    async def _evict_unused(self) -> None:
        """Evict unused conversations from time to time, while there are conversations in memory."""
        while self._kept:
            limits = self._settings()
            await self._deps.clock.sleep(max(SOONEST_SECONDS, min(EVICT_SECONDS, limits.idle_seconds)))
            if self._evict(limits):
                self._release_memory()
        self._evicting = None

    def _evict(self, limits: StoreSettings) -> int:
        """Evict conversations that are not used; return how many."""
        now = self._deps.clock.now()
        idle = [one for one in self._kept.values() if one.is_evictable]
        evicted = [
            one
            for surplus, one in enumerate(idle, start=limits.idle_conversations - len(idle))
            if surplus < 0 or now - self._used[one.id] >= limits.idle_seconds
        ]
        for one in evicted:
            self._forget(one.id, is_deleted=one.is_deleted)
        return len(evicted)


class _Polled:
    """The conversations that are read here and that other processes may write to."""

    def __init__(self) -> None:
        self.watched: set[ConversationId] = set()
        self.with_turns: set[ConversationId] = set()
        """Those whose turn is unfinished. What the store says of all others changes with a write alone."""
        self.ends: dict[ConversationId, Seq] = {}
        """Where the logs of the conversations without a turn end, as far as this process knows."""
        self.unfinished: set[ConversationId] = set()
        """Conversations with a turn of another process that is not followed: its owner may have died."""

    def examine(self, conversation_id: ConversationId, one: Conversation | None) -> None:
        """Record the state of a conversation; `one` is None if it is no longer in memory."""
        self.ends.pop(conversation_id, None)
        for some in (self.watched, self.with_turns, self.unfinished):
            some.discard(conversation_id)
        if one is None or not (one.is_watched or one.has_commands):
            return
        self.watched.add(conversation_id)
        is_idle = one.state.phase is Phase.IDLE
        if not is_idle:
            self.with_turns.add(conversation_id)
        if one.needs_polling:
            if is_idle:
                self.ends[conversation_id] = one.log.durable
            else:
                self.unfinished.add(conversation_id)
