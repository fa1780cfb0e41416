"""Creates, loads, lists, forks and evicts the conversations of one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4
from weakref import WeakValueDictionary

from parley.agent.sandbox_policy import Roots
from parley.config.types import SettingsOverrides, StoreSettings
from parley.conversation.log import Entry
from parley.conversation.projections import Projections
from parley.conversation.state import Phase
from parley.errors import (
    ConfigError,
    HomeLost,
    ShuttingDown,
    StoreError,
    UnknownConversation,
    Unreadable,
)
from parley.ports.availability import AVAILABLE, AvailabilityState, ReportsAvailability
from parley.ports.clock import Clock
from parley.ports.commands import CommandRunner
from parley.ports.model import OpenModel
from parley.ports.nodes import Placement
from parley.ports.peers import Peers
from parley.ports.store import ConversationPage, Head, Query, SearchPage, SearchQuery, Store
from parley.ports.tools import Tools
from parley.ports.workspaces import Workspaces
from parley.runtime.activity import Activity, OnActivity
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
from parley.runtime.polling import Poller, keep_running
from parley.runtime.settings import ResolveSettings, SettingsResolver
from parley.wire.ids import ApprovalId, ConversationId, MessageId, Seq
from parley.wire.tools import AttentionState

__all__ = ["ConversationRegistry"]

log = logging.getLogger(__name__)

MIN_EVICT_SECONDS: Final = 1.0
"""The minimum time, in seconds, between two searches for unused conversations in memory."""
MAX_EVICT_SECONDS: Final = 30.0
"""The maximum time, in seconds, between two searches for unused conversations in memory."""


class ConversationRegistry:
    """Creates, finds and deletes the conversations of a home directory, and keeps in memory the conversations that
    this process uses.
    """

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
        placement: Placement | None = None,
        workspaces: Workspaces | None = None,
        store_settings: Callable[[], StoreSettings] = StoreSettings,
        release_memory: Callable[[], None] = lambda: None,
        has_other_clients: Callable[[], bool] = lambda: False,
        on_attention: Callable[[ConversationId, AttentionState], None] = lambda conversation_id, state: None,
        continues_queues: bool = False,
    ) -> None:
        """Create an empty registry.

        `placement` decides which node runs a turn; None if this process is not a node. `workspaces` prepares and
        saves the worktrees of conversations; None if this process supports no worktrees. `commands` runs the
        commands of the tools. `release_memory` is called after conversations have been evicted. `has_other_clients`
        returns whether this process has more than one client. `on_attention` is called when a conversation of this
        process begins to wait for a person, or when its turn has ended. `continues_queues` is True if loading a
        conversation begins a turn with its next queued message.
        """
        self._store, self._choose = store, choose
        self._draining, self._closing = asyncio.Event(), asyncio.Event()
        registry = PeerRegistry(peers or NoPeers())
        self._deps = RuntimeDeps(
            clock=clock,
            store=store,
            open_model=open_model,
            tools=tools,
            commands=commands,
            peers=registry,
            placement=placement,
            workspaces=workspaces,
            may_be_followed=lambda: has_other_clients() or registry.has_peers(),
            started_at=clock.now(),
            continues_queues=continues_queues,
            is_store_silent=(lambda: store.is_silent) if isinstance(store, ReportsAvailability) else None,
            draining=self._draining,
            closing=self._closing,
            activity=Activity(),
            on_attention=on_attention,
        )
        self._corrupt = CorruptConversations(store)
        self._is_shared = peers is not None
        self._granted: set[str] = set()
        """Every directory that the settings of any conversation have made writable."""
        self._in_memory: WeakValueDictionary[ConversationId, Conversation] = WeakValueDictionary()
        """All conversations that are in memory."""
        self._poller = Poller(store, self._in_memory, self._deps.activity, clock)
        self._cached: dict[ConversationId, Conversation] = {}
        """The conversations that stay in memory until they are evicted, even if no other object refers to them, in
        the order of their last use.
        """
        self._used: dict[ConversationId, float] = {}
        """The time of the last use of each conversation in `_cached`, in seconds since the epoch."""
        self._grants: dict[ConversationId, SessionGrants] = {}
        """The session grants. The grants of an evicted conversation are kept if the log does not contain all their
        data.
        """
        self._store_settings, self._release_memory = store_settings, release_memory
        self._evicting: asyncio.Task[None] | None = None
        store.watch(self._lose)
        if isinstance(store, ReportsAvailability):
            store.on_availability(self._on_availability)

    async def create(self, overrides: SettingsOverrides, resolve: ResolveSettings | None = None) -> Conversation:
        """Create a conversation with the settings that result from `overrides`. `resolve` resolves these settings;
        the default is the resolver of this process.

        Raises:
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
            StoreError: the conversation cannot be stored.
        """
        chosen = (resolve or self._choose)(overrides, None)
        if self._closing.is_set():
            raise ShuttingDown
        conversation = self._open(ConversationId(str(uuid4())))
        conversation.grants.resolver.resolve_for(resolve)
        await conversation.create(overrides, conversation.grants.resolver.placed(chosen))
        self._keep(conversation)
        self._deps.activity.notify(conversation.id, True)
        return conversation

    def get(self, conversation_id: ConversationId) -> Conversation:
        """Return a conversation without checking that it exists. The next command on the conversation performs the
        check.
        """
        conversation = self._in_memory.get(conversation_id)
        if conversation is None or conversation.is_deleted:
            conversation = self._open(conversation_id)
        self._keep(conversation)
        return conversation

    async def find(self, conversation_id: ConversationId) -> Conversation:
        """Return the conversation with the given id. Load it, or read the entries that other processes have added,
        so that its log in memory is current.

        Raises:
            UnknownConversation: the conversation does not exist.
            StoreError: the conversation cannot be read.
        """
        is_new = conversation_id not in self._cached
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
        """Notify the watchers that another process has changed a conversation. If clients of this process are
        waiting for entries of the conversation, schedule a read of its log.
        """
        if (conversation := self._in_memory.get(conversation_id)) is not None and conversation.is_watched:
            conversation.reconcile()
        self._deps.activity.notify(conversation_id, True)

    def streams_taken_over(self, conversation_id: ConversationId, *, by: str, at: float) -> None:
        """End the streams of a conversation in this process, because a client of another process has opened an
        exclusive stream of the conversation.

        `by` is the name of the client's principal. `at` is the time of the takeover, in seconds since the epoch.
        """
        if (conversation := self._in_memory.get(conversation_id)) is not None:
            conversation.end_streams(by, opened_before=at)

    def loaded(self, conversation_id: ConversationId) -> Conversation | None:
        """Return a conversation if it is in memory; otherwise None."""
        return self._in_memory.get(conversation_id)

    async def head(self, conversation_id: ConversationId) -> Head:
        """Return the last position, the owner and the summary of a conversation, as stored.

        Raises:
            UnknownConversation: the conversation does not exist.
            StoreError: the conversation cannot be read.
        """
        return await self._store.head(conversation_id)

    def _open(self, conversation_id: ConversationId) -> Conversation:
        if (grants := self._grants.get(conversation_id)) is None:
            placement, workspaces = self._deps.placement, self._deps.workspaces
            resolver = SettingsResolver(
                self._choose,
                _no_node if placement is None else placement.node_of,
                worktree=None if workspaces is None else partial(workspaces.directory_of, conversation_id),
            )
            grants = SessionGrants(Roots(self._granted, chosen=resolver.real_cwds), resolver)
        conversation = Conversation(conversation_id, self._deps, grants)
        conversation.on_deleted(self, partial(self._forget, conversation_id, is_deleted=True))
        self._in_memory[conversation_id] = conversation
        return conversation

    # --- approvals ---------------------------------------------------------------------

    async def find_by_approval(self, approval_id: ApprovalId) -> Conversation:
        """Return the conversation that requested an approval. The approval may be open or settled.

        Raises:
            UnknownApproval: no conversation requested the approval.
            StoreError: the store cannot be searched.
        """
        for conversation in self:
            if approval_id in conversation.approvals:
                return conversation
        found = await self._store.find(Query(asked=approval_id, archived=None, limit=1))
        for listed in found.items:
            return await self.find(listed.conversation_id)
        raise UnknownApproval

    async def awaiting_approval(self) -> list[Conversation]:
        """Return the conversations that are waiting for the answer to an approval.

        Raises:
            StoreError: the store cannot be searched.
        """
        asking: list[Conversation] = []
        query = Query(state="asking", archived=None)
        while True:
            found = await self._store.find(query)
            # The calls run concurrently, because each call can take seconds if the owner does not respond.
            finding = (self.find_if_possible(listed.conversation_id) for listed in found.items)
            asking += [one for one in await asyncio.gather(*finding) if one is not None]
            if not found.more:
                return [one for one in asking if one.approvals.open is not None]
            query = Query(state="asking", archived=None, after=found.items[-1].cursor)

    # --- lists -------------------------------------------------------------------------

    async def page(self, query: Query) -> ConversationPage:
        """Return one page of the list of conversations that match a query. Orphaned turns of conversations on this
        page are recovered first.

        Raises:
            StoreError: the store cannot be searched.
        """
        found = await self._store.find(query)
        left = [one for one in found.items if one.summary.state == "running" and not one.owned]
        if not left:
            return found
        # The calls run concurrently, because each call can take seconds while another process holds the write lock.
        await asyncio.gather(*(self.find_if_possible(one.conversation_id) for one in left))
        return await self._store.find(query)

    async def search(self, query: SearchQuery) -> SearchPage:
        """Return one page of the messages that match a query, from all conversations or from one conversation.

        Raises:
            UnknownConversation: the conversation does not exist.
            StoreError: the store cannot be searched.
        """
        return await self._store.search(query)

    async def find_if_possible(self, conversation_id: ConversationId) -> Conversation | None:
        """Return a conversation as `find` does; None if the conversation does not exist or cannot be read. If the
        conversation cannot be read, log the reason.
        """
        try:
            return await self.find(conversation_id)
        except UnknownConversation:
            return None
        except StoreError as error:
            self._corrupt.report(conversation_id, error)
            return None

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        """Archive a conversation, or restore an archived conversation if `archived` is False.

        Raises:
            UnknownConversation: the conversation does not exist.
            StoreError: the change cannot be stored.
        """
        await self._store.archive(conversation_id, archived=archived)
        self._deps.activity.notify(conversation_id, True)
        self._deps.peers.announce(conversation_id)

    async def mark_read(self, conversation_id: ConversationId, reader: str, seq: Seq) -> None:
        """Store that a principal has read a conversation up to the position `seq`. An earlier position than the
        stored position is ignored. `reader` is the identity of the principal.

        Raises:
            UnknownConversation: the conversation does not exist.
            StoreError: the mark cannot be stored.
        """
        if await self._store.mark_read(conversation_id, reader, seq):
            self._deps.activity.notify(conversation_id, False, read_by=reader)
            self._deps.peers.announce(conversation_id)

    async def delete(self, conversation_id: ConversationId, *, deadline: Deadline | None = None) -> None:
        """Delete a conversation, even if its log is damaged.

        The call does not wait for a process that runs a turn.

        Raises:
            UnknownConversation: the conversation does not exist.
            TurnIsRunning: a turn is unfinished.
            ShuttingDown: the server is shutting down.
            StoreError: the conversation cannot be deleted.
        """
        is_new = conversation_id not in self._cached
        await self._deps.peers.listen()
        try:
            await self.get(conversation_id).delete(deadline=deadline)
        except Unreadable:
            await self._corrupt.delete(conversation_id)
            self._deps.peers.announce(conversation_id)
            self._deps.activity.notify(conversation_id, True)
            if (loaded := self._in_memory.get(conversation_id)) is not None:
                loaded.mark_deleted()
        except StoreError:
            if is_new:
                self._forget(conversation_id, is_deleted=False)
            raise

    async def fork(
        self, conversation_id: ConversationId, *, at: MessageId | None, is_limited: bool = False
    ) -> ConversationId:
        """Create a conversation with entries of another conversation, and return its id. The entries are copied up
        to the end of the turn that handled the message `at`; if `at` is None, all entries are copied.

        `is_limited` is True if the role of the principal is below admin. The settings of the fork must then not be
        looser than the current settings of the conversation.

        Raises:
            UnknownConversation: the conversation does not exist.
            UnknownMessage: no message has the id `at`.
            TurnIsRunning: the turn of the message `at` has not ended. If `at` is None, the last turn has not ended.
            SettingNotAllowed: the fork of a limited principal would have looser settings.
            ConfigError: the settings can no longer be used.
            ShuttingDown: the server is shutting down.
            StoreError: the new conversation cannot be stored.
        """
        conversation = await self.find(conversation_id)
        is_idle = conversation.phase is Phase.IDLE
        pages = entries_of_fork(conversation, at, last=conversation.log.durable, is_idle=is_idle)
        if is_limited:
            pages = _with_checked_settings(pages, conversation)
        forked = ConversationId(str(uuid4()))
        await bulk_create(self._store, forked, self._unless_closing(pages))
        self._deps.activity.notify(forked, True)
        return forked

    async def _unless_closing(self, pages: AsyncIterable[Sequence[Entry]]) -> AsyncIterator[Sequence[Entry]]:
        async for page in pages:
            if self.closing:
                raise ShuttingDown
            yield page

    async def watch(self, watcher: Hashable, call: OnActivity) -> None:
        """From now on, call `call` after each change to the list of conversations, or to the state of a
        conversation, in any process.

        `watcher` identifies the callback: a second call with the same watcher replaces the callback, and `unwatch`
        removes it.

        Raises:
            StoreError: the store cannot be searched.
        """
        await self._deps.peers.listen()  # another process announces a mark or an archived conversation only once
        await self._poller.prepare()
        self._deps.activity.watch(watcher, call)
        self._start_polling()

    def unwatch(self, watcher: Hashable) -> None:
        """Remove the callback that `watch` has stored for `watcher`. Do nothing if there is none."""
        self._deps.activity.unwatch(watcher)

    # --- conversations in memory -------------------------------------------------------

    def __iter__(self) -> Iterator[Conversation]:
        """Iterate over the conversations in memory."""
        return iter(tuple(self._in_memory.values()))

    @property
    def closing(self) -> bool:
        """True if the server is shutting down."""
        return self._closing.is_set()

    @property
    def begins_turns_of_other_nodes(self) -> bool:
        """True if this process begins turns at the request of other nodes. False if this process is not a node, or
        if it is about to stop.
        """
        placement = self._deps.placement
        return placement is not None and not placement.is_draining and not self.closing

    @property
    def running(self) -> list[Conversation]:
        """The conversations with a turn that is running in this process."""
        return [one for one in self if one.turn is not None]

    async def drain(self) -> None:
        """Begin no more turns. Return when no turn is running and all commands have been executed.

        Turns that wait for an approval continue on another node that can run them. Without such a node, the turns
        remain unfinished. If this process is a node, queued messages begin their turns on other nodes.
        """
        self._draining.set()
        changed, tried = asyncio.Event(), set[ConversationId]()
        self._deps.activity.watch(changed, lambda *_: changed.set())
        try:
            while True:
                changed.clear()
                running = self.running
                waiting = [one for one in running if one.approvals.open is not None]
                for one in waiting:
                    if self._deps.placement is not None and one.id not in tried:
                        tried.add(one.id)
                        one.move_turn()
                await asyncio.gather(*(one.at_rest() for one in self))
                turns = {one.turn.over for one in running if one.turn is not None and one not in waiting}
                if not turns and running == self.running and not changed.is_set():
                    return
                if turns:
                    change = asyncio.ensure_future(changed.wait())
                    awaited: set[asyncio.Future[Any]] = {change, *turns}
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
        finally:
            self._deps.activity.unwatch(changed)

    async def stop(self) -> None:
        """Stop accepting commands, and end every running turn.

        If the call is cancelled, it stops waiting for other processes. The commands to which these processes have
        not responded then fail.
        """
        self._closing.set()
        self._poller.stop()
        if self._evicting is not None:
            self._evicting.cancel()
        try:
            await asyncio.gather(*(conversation.stop() for conversation in self))
        finally:
            for conversation in self:
                conversation.stop_waiting_for_owner()

    async def close(self) -> None:
        """Close the store and the connections to other processes. The caller must call `stop` first."""
        async with asyncio.TaskGroup() as closing:  # requests from other processes may wait for the store
            closing.create_task(self._deps.peers.close())
            closing.create_task(self._store.close())

    def _keep(self, conversation: Conversation) -> None:
        if self._is_shared:  # otherwise, no other process can change the conversation
            self._poller.touch(conversation.id)
        self._cached.pop(conversation.id, None)
        self._cached[conversation.id] = conversation
        self._grants[conversation.id] = conversation.grants
        self._used[conversation.id] = self._deps.clock.now()
        if self.closing:
            return
        if self._evicting is None:
            self._evicting = asyncio.create_task(keep_running(self._evict_unused, self._deps.clock))
        self._start_polling()

    def _start_polling(self) -> None:
        if self._is_shared and not self.closing:
            self._poller.start()

    def _forget(self, conversation_id: ConversationId, *, is_deleted: bool) -> None:
        grants = self._grants.get(conversation_id)
        if grants is not None and (is_deleted or not grants.is_needed):
            del self._grants[conversation_id]
        loaded = self._in_memory.get(conversation_id)
        if is_deleted and loaded is not None and loaded.log.durable:  # the id may belong to no conversation
            self._deps.activity.notify(conversation_id, True)
        self._cached.pop(conversation_id, None)
        self._used.pop(conversation_id, None)

    def _on_availability(self, state: AvailabilityState) -> None:
        """If the store is available again after an outage, store the ends of the turns that were stopped during the
        outage.
        """
        if state == AVAILABLE and not self.closing:
            for one in self:
                if one.needs_polling and one.state.phase is not Phase.IDLE:
                    one.reconcile()

    def _lose(self, lost: HomeLost) -> None:
        """End every turn and every stream, because the home directory has been lost.

        All conversations are removed from memory, because their logs in memory may contain entries that are not in
        the store.
        """
        for one in self:
            one.lose(lost)

    def _settings(self) -> StoreSettings:
        try:
            return self._store_settings()
        except ConfigError:  # the error is reported when a client creates a conversation
            return StoreSettings()

    async def _evict_unused(self) -> None:
        """Evict unused conversations periodically, while there are conversations in memory."""
        while self._cached:
            limits = self._settings()
            await self._deps.clock.sleep(max(MIN_EVICT_SECONDS, min(MAX_EVICT_SECONDS, limits.idle_seconds)))
            if self._evict(limits):
                self._release_memory()
        self._evicting = None

    def _evict(self, limits: StoreSettings) -> int:
        """Remove unused conversations from memory, and return the number of removed conversations.

        A conversation is removed if it was not used for `idle_seconds`. If more than `idle_conversations` are
        unused, the least recently used conversations are removed as well. `limits` contains both settings.
        """
        now = self._deps.clock.now()
        idle = [one for one in self._cached.values() if one.is_evictable]
        evicted = [
            one
            for surplus, one in enumerate(idle, start=limits.idle_conversations - len(idle))
            if surplus < 0 or now - self._used[one.id] >= limits.idle_seconds
        ]
        for one in evicted:
            self._forget(one.id, is_deleted=one.is_deleted)
        return len(evicted)


async def _with_checked_settings(
    pages: AsyncIterable[Sequence[Entry]], conversation: Conversation
) -> AsyncIterator[Sequence[Entry]]:
    """Yield the pages of a fork, and check the settings of the fork after the last page.

    Raises:
        SettingNotAllowed: the settings of the fork are looser than the current settings of the conversation.
        ConfigError: the settings are no longer valid.
    """
    folded = Projections(MessageId(conversation.id))
    async for page in pages:
        folded.replay(page)
        folded.history.drop_texts()
        yield page
    conversation.refuse_looser(folded.settings_history.now)


def _no_node(directory: str) -> None:
    """Return None as the node of any directory, because this process is not a node."""
