"""All conversations that a process has to do with: opened, loaded when somebody asks for them, and let go."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import uuid4
from weakref import WeakValueDictionary

from parley.agent.sandbox_policy import Roots
from parley.config.types import SettingsOverrides, StoreSettings
from parley.conversation.log import Entry
from parley.conversation.log_queries import up_to
from parley.conversation.projections import Projections
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
from parley.ports.store import ConversationPage, Head, Query, Store, Summary
from parley.ports.tools import Tools
from parley.runtime.alone import Alone
from parley.runtime.choices import Choices, Choose
from parley.runtime.conversation import Conversation
from parley.runtime.damaged import Damaged
from parley.runtime.deadline import Deadline
from parley.runtime.elsewhere import FOLLOW_SECONDS, Neighbours
from parley.runtime.errors import UnknownQuestion
from parley.runtime.means import Means
from parley.runtime.permits import Trust
from parley.runtime.whole import write_whole
from parley.wire.ids import ApprovalId, ConversationId, MessageId, Seq

__all__ = ["Conversations"]

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.0
"""How often it is looked whether another process has begun something that is read here."""
REEXAMINE_TICKS: Final = 5
"""Number of polls after which all conversations in memory are examined again, even if no call concerned one."""
SOONEST_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 30.0
"""How often it is looked whether some can go."""


class Conversations:
    """All conversations of a home, as far as this process has to do with them."""

    def __init__(
        self,
        *,
        store: Store,
        choose: Choose,
        clock: Clock,
        open_model: OpenModel,
        tools: Tools,
        commands: CommandRunner,
        environ: Mapping[str, str],
        peers: Peers | None = None,
        keeping: Callable[[], StoreSettings] = StoreSettings,
        give_back_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """`commands` and `environ` are those with which the tools run commands; `give_back_memory` is called when
        conversations were let go."""
        self._store, self._environ, self._choose = store, environ, choose
        self._closing = asyncio.Event()
        self._means = Means(
            clock=clock,
            store=store,
            open_model=open_model,
            tools=tools,
            commands=commands,
            neighbours=Neighbours(peers or Alone()),
            started_at=clock.now(),
            closing=self._closing,
        )
        self._damaged = Damaged(store)
        self._is_shared = peers is not None
        self._watching: asyncio.Task[None] | None = None
        self._touched: set[ConversationId] = set()
        """Conversations that a call or another process concerned since they were examined last."""
        self._granted: set[str] = set()
        """Every directory that some conversation was allowed to write to."""
        self._alive: WeakValueDictionary[ConversationId, Conversation] = WeakValueDictionary()
        """Each of them is in memory once, as long as anybody has to do with it."""
        self._kept: dict[ConversationId, Conversation] = {}
        """Those that stay although nobody may have; whoever was asked for last comes last."""
        self._used: dict[ConversationId, float] = {}
        """When somebody last had to do with each of them."""
        self._trust: dict[ConversationId, Trust] = {}
        """Also of those that have left memory: what a person allowed holds until the process ends."""
        store.watch(self._lose)
        self._keeping, self._give_back_memory = keeping, give_back_memory
        self._tending: asyncio.Task[None] | None = None

    async def create(self, wanted: SettingsOverrides) -> Conversation:
        """Open a new conversation.

        Raises:
            ConfigError: the settings cannot be used.
            ShuttingDown: the server ends.
            StoreError: it cannot be written down.
        """
        chosen = self._choose(wanted, None)
        if self._closing.is_set():
            raise ShuttingDown
        conversation = self._made(ConversationId(str(uuid4())))
        await conversation.create(wanted, chosen)
        self._keep(conversation)
        return conversation

    async def find(self, conversation_id: ConversationId) -> Conversation:
        """A conversation as it is now, loaded if it has to be.

        Raises:
            UnknownConversation: there is none of that name.
            StoreError: it cannot be read.
        """
        await self._means.neighbours.listen()
        conversation = self._alive.get(conversation_id)
        if conversation is None or conversation.is_deleted:
            conversation = self._made(conversation_id)
        if not conversation.book.is_ours or conversation.rounds.is_waited_for:
            await conversation.rounds.join(partial(self._look, conversation))
        self._keep(conversation)
        return conversation

    async def _look(self, conversation: Conversation) -> None:
        if conversation.sharing.is_elsewhere:
            await self._hear_of(conversation)
        elif not conversation.book.is_ours:
            await self._read_on(conversation)

    async def _read_on(self, conversation: Conversation) -> None:
        try:
            await conversation.book.load()
        except UnknownConversation:
            self._forget(conversation.id, is_gone=True)
            conversation.mark_deleted()
            raise
        await conversation.sharing.look_after()

    async def _hear_of(self, conversation: Conversation) -> None:
        """Return when it is as it is on disk now."""
        head = await self._store.head(conversation.id)
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                while conversation.sharing.is_elsewhere and conversation.log.durable < head.last:
                    if self.closing:
                        return
                    await conversation.book.wait_beyond(conversation.log.durable)
        except TimeoutError:
            conversation.sharing.follow_no_more()
        if not conversation.sharing.is_elsewhere:
            await conversation.book.load()

    def changed(self, conversation_id: ConversationId) -> None:
        """Another process says that something begins in a conversation, or that it is gone."""
        if (conversation := self._alive.get(conversation_id)) is not None and conversation.is_watched:
            conversation.sharing.catch_up()

    def loaded(self, conversation_id: ConversationId) -> Conversation | None:
        """A conversation, if it is in memory."""
        return self._alive.get(conversation_id)

    async def head(self, conversation_id: ConversationId) -> Head:
        """Raises UnknownConversation, StoreError."""
        return await self._store.head(conversation_id)

    def _made(self, conversation_id: ConversationId) -> Conversation:
        trust = self._trust.get(conversation_id) or Trust(
            Roots(self._environ, self._granted), Choices(self._choose)
        )
        made = self._alive[conversation_id] = Conversation(conversation_id, self._means, trust)
        return made

    # --- questions ---------------------------------------------------------------------

    async def question(self, approval_id: ApprovalId) -> Conversation:
        """The conversation in which it was asked, be it open or settled.

        Raises:
            UnknownQuestion: it was never asked.
            StoreError: it cannot be looked for.
        """
        for conversation in self:
            if approval_id in conversation.questions:
                return conversation
        found = await self._store.find(Query(asked=approval_id, archived=None, limit=1))
        for listed in found.items:
            return await self.find(listed.conversation_id)
        raise UnknownQuestion

    async def asking(self) -> list[Conversation]:
        """Those that wait for an answer.

        Raises:
            StoreError: they cannot be looked for.
        """
        asking: list[Conversation] = []
        query = Query(state="asking", archived=None)
        while True:
            found = await self._store.find(query)
            # At once: each of those whose process was stopped takes its time.
            finding = (self._find_if_possible(listed.conversation_id) for listed in found.items)
            asking += [one for one in await asyncio.gather(*finding) if one is not None]
            if not found.more:
                return [one for one in asking if one.questions.open is not None]
            query = Query(state="asking", archived=None, after=found.items[-1].cursor)

    # --- lists -------------------------------------------------------------------------

    async def page(self, query: Query) -> ConversationPage:
        """One page of all conversations.

        Raises:
            StoreError: they cannot be looked for.
        """
        found = await self._store.find(query)
        left = [one for one in found.items if one.summary.state == "running" and not one.owned]
        if not left:
            return found
        # Concurrently: each takes seconds while another process holds the write lock.
        await asyncio.gather(*(self._find_if_possible(one.conversation_id) for one in left))
        return await self._store.find(query)

    async def _find_if_possible(self, conversation_id: ConversationId) -> Conversation | None:
        """As `find`, for lists: one that cannot be read must not keep the others out of them."""
        try:
            return await self.find(conversation_id)
        except UnknownConversation:
            return None  # it was deleted just now
        except StoreError as error:
            self._damaged.tell(conversation_id, error)
            return None

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        """Raises UnknownConversation, StoreError."""
        await self._store.archive(conversation_id, archived=archived)

    async def delete(self, conversation_id: ConversationId, *, deadline: Deadline | None = None) -> None:
        """Remove a conversation for ever, also one that cannot be read.

        Raises:
            UnknownConversation, TurnIsRunning, ShuttingDown, StoreError: nothing was changed.
        """
        try:
            conversation = await self.find(conversation_id)
            await conversation.delete(deadline=deadline)
        except Unreadable:
            await self._damaged.delete(conversation_id)
            self._means.neighbours.tell(conversation_id)
            if (as_far_as_read := self._alive.get(conversation_id)) is not None:
                as_far_as_read.mark_deleted()
        self._forget(conversation_id, is_gone=True)

    async def fork(self, conversation_id: ConversationId, *, at: MessageId | None) -> ConversationId:
        """A new conversation with all that happened in another one, or up to the end of a turn, and with its title.

        Raises:
            UnknownConversation, UnknownMessage, TurnIsRunning, ShuttingDown, StoreError: nothing was changed.
        """
        conversation = await self.find(conversation_id)
        log = conversation.log
        taken, summary = await asyncio.to_thread(_taken_up_to, log.entries[: log.durable], at)
        forked = ConversationId(str(uuid4()))
        await write_whole(self._store, forked, self._unless_closing(taken), summary)
        return forked

    def _unless_closing(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if self.closing:
                raise ShuttingDown
            yield entry

    # --- those in memory ---------------------------------------------------------------

    def __iter__(self) -> Iterator[Conversation]:
        """Those that are in memory."""
        return iter(tuple(self._alive.values()))

    @property
    def closing(self) -> bool:
        """The server is on its way out."""
        return self._closing.is_set()

    @property
    def running(self) -> list[Conversation]:
        """Those whose turn runs here."""
        return [one for one in self if one.turn is not None]

    async def stop(self) -> None:
        """Take no new work and end every running turn in order. What was asked before can still be answered."""
        self._closing.set()
        for task in (self._tending, self._watching):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(conversation.stop() for conversation in self))

    async def close(self) -> None:
        """Let go of the home, when everything has stopped and nobody asks any more."""
        async with asyncio.TaskGroup() as closing:  # what others wish for may wait for the store to give up
            closing.create_task(self._means.neighbours.close())
            closing.create_task(self._store.close())

    def _keep(self, conversation: Conversation) -> None:
        self._touched.add(conversation.id)
        self._kept.pop(conversation.id, None)
        self._kept[conversation.id] = conversation
        self._trust[conversation.id] = conversation.trust
        self._used[conversation.id] = self._means.clock.now()
        if self.closing:
            return
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())
        if self._watching is None and self._is_shared:
            self._watching = asyncio.create_task(self._watch_others())

    def _forget(self, conversation_id: ConversationId, *, is_gone: bool) -> None:
        trust = self._trust.get(conversation_id)
        if trust is not None and (is_gone or not trust.is_needed):
            del self._trust[conversation_id]
        self._kept.pop(conversation_id, None)
        self._used.pop(conversation_id, None)

    async def _watch_others(self) -> None:
        """While conversations are read here that other processes may write to, look for news once a second: a
        `parley/changed` may be lost, and a process that was killed sends none."""
        polled = _Polled()
        trouble = ""
        for tick in itertools.count():
            await self._means.clock.sleep(WATCH_SECONDS)
            if tick % REEXAMINE_TICKS == 0:
                polled = _Polled()
                self._touched.update(self._alive.keys())
            for conversation_id in self._touched | polled.with_turns:
                polled.examine(conversation_id, self._alive.get(conversation_id))
            self._touched.clear()
            if not polled.watched:
                self._watching = None
                return
            try:
                await self._store.check()
                news = await self._store.changed_since(polled.ends) if polled.ends else ()
                trouble = ""
            except ParleyError as error:
                news = ()
                if str(error) != trouble:
                    log.warning("looking for what other processes have written failed: %s", error)
                trouble = str(error)
            for conversation_id in (*news, *polled.unfinished):
                if (one := self._alive.get(conversation_id)) is not None and one.needs_polling:
                    self._touched.add(conversation_id)
                    one.sharing.catch_up()

    def _lose(self, lost: HomeLost) -> None:
        """End every turn and every stream, because the home is gone. No conversation stays in memory: what is there
        is not what is on disk."""
        for one in self:
            one.lose(lost)
            self._forget(one.id, is_gone=False)

    def _settings(self) -> StoreSettings:
        try:
            return self._keeping()
        except ConfigError:  # whoever opens a conversation is told
            return StoreSettings()

    async def _tend(self) -> None:
        """Let go of those that nobody has to do with, as long as there are any in memory."""
        while self._kept:
            keeping = self._settings()
            await self._means.clock.sleep(max(SOONEST_SECONDS, min(LOOK_SECONDS, keeping.idle_seconds)))
            if self._let_go(keeping):
                self._give_back_memory()
        self._tending = None

    def _let_go(self, keeping: StoreSettings) -> int:
        """How many have gone."""
        now = self._means.clock.now()
        idle = [one for one in self._kept.values() if one.is_idle and one.state.phase is not Phase.RUNNING]
        gone = [
            one
            for surplus, one in enumerate(idle, start=keeping.idle_conversations - len(idle))
            if surplus < 0 or now - self._used[one.id] >= keeping.idle_seconds
        ]
        for one in gone:
            self._forget(one.id, is_gone=one.is_deleted)
        return len(gone)


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
        """Take note of how a conversation is now; `one` is None if it is not in memory any more."""
        self.ends.pop(conversation_id, None)
        for some in (self.watched, self.with_turns, self.unfinished):
            some.discard(conversation_id)
        if one is None or not (one.is_watched or not one.sharing.line.is_empty):
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


def _taken_up_to(entries: Sequence[Entry], at: MessageId | None) -> tuple[Sequence[Entry], Summary]:
    """Called in a thread: a log may be long, and nobody else shall wait for it."""
    taken, folds = up_to(entries, at), Projections()
    folds.replay(taken)
    return taken, Summary.of(folds.state)
