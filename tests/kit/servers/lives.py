"""The runtime in this process, without clients. Several runtimes in succession on one store act like restarts of a
server.

A message tells the agent what to do: `say WORDS`, or `run NAME` (several names are separated by commas). A command
needs an approval, and is counted instead of run. A command called `slow` waits until the test continues it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from kit.builders.records import call, message
from kit.builders.tools import NoCommands
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides, StoreSettings
from parley.conversation.history import UserItem
from parley.conversation.records import CallItem
from parley.conversation.state import Phase
from parley.ports.model import CallDone, Chunk, MessageDone, ModelRequest, ResponseDone, ToolSpec
from parley.ports.peers import Peers
from parley.ports.tools import Granted, RejectedByUser, RunCommand, ToolContext, TurnTools
from parley.runtime.conversation import Conversation
from parley.runtime.message_intake import Accepted
from parley.runtime.registry import ConversationRegistry
from parley.wire.events import TokenCount
from parley.wire.ids import ConversationId, MessageId
from parley.wire.items import InputItem, TextItem, text_of
from parley.wire.principals import LOCAL

__all__ = ["Life"]


class Life:
    """The runtime of one server, from start to shutdown. Use `async with Life(home, store) as life`."""

    def __init__(
        self,
        home: str,
        store: SlowStore,
        *,
        peers: Peers | None = None,
        continues_queues: bool = False,
        **store_settings: int,
    ) -> None:
        self.store = store
        self.clock = StandingClock()
        self.ran: list[str] = []
        """The commands that ran, in order."""
        self.requests: list[ModelRequest] = []
        self.settings: list[Settings] = []
        """The settings with which models were opened."""
        self.usage: TokenCount | None = None
        """The usage that every response reports."""
        self.slow = asyncio.Event()
        """An event that is set when a slow command has begun."""
        self.go_on = asyncio.Event()
        """An event that the test sets to let the slow command end."""
        self.gave_back = 0
        """The number of calls of `release_memory`."""
        self._home = home
        self.conversations = ConversationRegistry(
            store=store,
            choose=Loader(environ={"PARLEY_HOME": home}, server_dir=home).choose,
            clock=self.clock,
            open_model=self._open_model,
            tools=self,
            commands=NoCommands(),
            peers=peers,
            store_settings=lambda: StoreSettings(**store_settings),
            release_memory=self._release_memory,
            continues_queues=continues_queues,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.conversations.stop()
            await self.conversations.close()

    def _release_memory(self) -> None:
        self.gave_back += 1
        gc.collect()

    def killed(self, conversation: Conversation) -> None:
        """Remove the lease without notice, as if this process had been killed."""
        self.store.evict(conversation.id)

    # --- operations --------------------------------------------------------------------------

    async def create(self, **config: Any) -> Conversation:
        wanted = SettingsOverrides(
            cwd=self._home, approval_policy="untrusted", sandbox="danger-full-access", config=config or None
        )
        return await self.conversations.create(wanted)

    async def find(self, conversation_id: ConversationId) -> Conversation:
        return await self.conversations.find(conversation_id)

    async def send(
        self,
        conversation: Conversation,
        words: str,
        *,
        message_id: str | None = None,
        wanted: SettingsOverrides | None = None,
    ) -> Accepted:
        """Send a message; return the result when it is accepted."""
        taken: list[Accepted] = []
        named = None if message_id is None else MessageId(message_id)
        await conversation.submit(
            (TextItem(text=words),), message_id=named, wanted=wanted, principal=LOCAL, accepted=taken.append
        )
        return taken[0]

    async def until(self, conversation: Conversation, phase: Phase) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while conversation.state.phase is not phase or not conversation.log.is_durable:
                await conversation._log.wait_beyond(conversation.log.durable)

    async def until_at_rest(self, conversation: Conversation) -> None:
        """Wait until the lease is released."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while conversation._log.is_owner:  # noqa: ASYNC110  # the release is not announced
                await asyncio.sleep(0)

    # --- the agent -------------------------------------------------------------------------

    def _open_model(self, settings: Settings, conversation_id: ConversationId) -> _Model:
        self.settings.append(settings)
        return _Model(self)

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[TurnTools]:
        yield _Tools(self, context)

    async def start_servers(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        return ()

    async def close(self) -> None:
        return


class _Model:
    max_retries = 0

    def __init__(self, life: Life) -> None:
        self._life = life

    def why_unsupported(self, item: InputItem) -> str | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        self._life.requests.append(request)
        last = request.history[-1]
        what, _, words = text_of(last.content).partition(" ") if isinstance(last, UserItem) else ("say", "", "Done")
        if what == "run":
            calls = (CallDone(call(f"call {name}", name)) for name in words.split(","))
            yield [*calls, ResponseDone(self._life.usage)]
        else:
            yield [MessageDone(message(words)), ResponseDone(self._life.usage)]


class _Tools:
    def __init__(self, life: Life, context: ToolContext) -> None:
        self._life, self._context = life, context

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    async def run(self, call: CallItem) -> str:
        action = RunCommand(call_id=call.call_id, argv=("touch", call.arguments), cwd=self._context.settings.cwd)
        verdict = await self._context.authorize(action)
        if isinstance(verdict, RejectedByUser):
            return f"denied: {verdict.reason}"
        assert isinstance(verdict, Granted)
        self._life.ran.append(call.arguments)
        if call.arguments == "slow":
            self._life.slow.set()
            await self._life.go_on.wait()
        return f"{call.arguments} has run"
