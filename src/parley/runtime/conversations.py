"""Conversations: one log each, one writer, many readers, at most one turn at a time.

The turn belongs to the conversation, not to whoever asked for it: clients come and go, and
nothing here knows them but as readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from uuid import uuid4

from parley.agent.notify import run_notify_program
from parley.agent.turn import run_turn
from parley.config.types import Settings
from parley.conversation.history import ABORTED, History
from parley.conversation.log import Happened, ItemKind, Log, encode_delta
from parley.conversation.records import CallOutput, SettingsChosen, TurnEnded, TurnStarted, Why
from parley.conversation.state import Phase, State
from parley.errors import MessageIdTaken, ShuttingDown, UnknownConversation
from parley.ports.clock import Clock
from parley.ports.model import Model, OpenModel
from parley.runtime.readers import Reader
from parley.wire.events import ErrorEvent, TaskComplete, TaskStarted, UserMessage
from parley.wire.ids import ConversationId, EventId, MessageId, Seq
from parley.wire.items import InputItem, text_of
from parley.wire.text import sayable

__all__ = ["Accepted", "Conversation", "Conversations", "Turn"]

log = logging.getLogger(__name__)

INTERRUPTED: Final = " Turn interrupted"
"""Clients match on it, the leading blank included."""
STOPPED: Final = "Turn interrupted: the server was stopped"


class Turn:
    """A turn that runs."""

    def __init__(self, event_id: EventId, work: asyncio.Task[TurnEnded]) -> None:
        self.event_id = event_id
        self.work = work
        self.inputs: dict[MessageId, str] = {}
        """What the user said in it."""
        self.cut_short: Why | None = None
        """Why it was told to end before its time."""


class Accepted(NamedTuple):
    """A message that was taken."""

    message_id: MessageId
    turn: Turn | None
    """The turn that took it; None: it was sent before, and its turn is over."""
    first: Seq
    """The position of the first entry that it caused."""


class Conversation:
    """One conversation. Writing is for its turn and for `submit`; reading is for everybody."""

    def __init__(
        self,
        conversation_id: ConversationId,
        settings: Settings,
        *,
        clock: Clock,
        open_model: OpenModel,
        closing: asyncio.Event,
    ) -> None:
        self.id = conversation_id
        self.settings = settings
        self.log = Log()
        self.state = State()
        self.history = History()
        self._clock, self._open_model, self._closing = clock, open_model, closing
        self._readers: list[Reader] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._model: Model | None = None
        self._turn: Turn | None = None
        self._over: asyncio.Task[None] | None = None
        self._taking = asyncio.Lock()
        """Messages are taken in the order in which they came, also where one has to wait."""
        self._write((SettingsChosen(model=settings.model, cwd=settings.cwd),))

    # --- reading -----------------------------------------------------------------------

    def attach(self, reader: Reader) -> None:
        """Let a reader follow from its cursor on; it says what it lacks when the next entry is shown."""
        self._readers.append(reader)

    def detach(self, reader: Reader) -> None:
        """Forget a reader; nothing else changes."""
        reader.close()
        if reader in self._readers:
            self._readers.remove(reader)

    async def wait_beyond(self, position: Seq) -> None:
        """Return when the log has an entry behind `position`, or the server ends."""
        while self.log.last <= position and not self._closing.is_set():
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            try:
                await changed
            finally:
                if changed in self._waiting:
                    self._waiting.remove(changed)

    # --- writing -----------------------------------------------------------------------

    async def append(self, *happened: Happened) -> None:
        if happened:
            self._show(self._write(happened))

    def unfinished(self, kind: ItemKind) -> str:
        item = self.log.open.get(kind)
        return item.text() if item else ""

    def extend(self, kind: ItemKind, text: str) -> None:
        delta = self.log.extend(kind, text)
        if self._readers:
            encoded = encode_delta(delta)
            for reader in self._readers:
                reader.delta(delta, encoded)

    def _write(self, happened: tuple[Happened, ...]) -> Seq:
        at = self._clock.now()
        first = self.log.append(happened, at=at)[0].seq  # this can fail, and then nothing has happened
        for one in happened:
            self.state.apply(one, at=at)
            self.history.apply(one)
        return first

    def _show(self, first: Seq) -> None:
        for reader in tuple(self._readers):
            try:
                reader.appended(first)
            except Exception:  # a bug of ours; it may cost this reader, never the turn
                log.exception("a reader of %s failed and was dropped", self.id)
                self.detach(reader)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    # --- turns -------------------------------------------------------------------------

    @property
    def turn(self) -> Turn | None:
        """The turn that runs, if one does."""
        return None if self.state.phase is Phase.IDLE else self._turn

    async def submit(
        self,
        content: tuple[InputItem, ...],
        *,
        message_id: MessageId | None = None,
        event_id: EventId | None = None,
        accepted: Callable[[Accepted], None],
    ) -> None:
        """Take a message: it starts a turn, or joins the one that runs.

        `accepted` is called when the message is written down and before any reader sees it.

        Raises:
            MessageIdTaken: the id stands for another message; nothing was changed.
            ShuttingDown: the server ends; nothing was changed.
        """
        async with self._taking:
            while (turn := self.turn) is not None and turn.cut_short and self._over is not None:
                await asyncio.wait({self._over})  # what is said behind an interrupt is not part of it
        message_id = message_id or MessageId(str(uuid4()))
        if message_id in self.state.messages:
            if self.state.messages[message_id] != content:
                raise MessageIdTaken(message_id)
            took_it = turn is not None and message_id in turn.inputs
            accepted(Accepted(message_id, turn if took_it else None, first=self.log.last))
            return
        if self._closing.is_set():
            raise ShuttingDown
        said = UserMessage(message_id=message_id, content=content)
        if turn is not None:
            first = self._write((said,))
        else:
            started = TurnStarted(event_id=self.state.next_event_id(event_id))
            first = self._write((started, TaskStarted(), said))
            turn = self._turn = Turn(started.event_id, asyncio.create_task(self._work()))
            self._over = asyncio.create_task(self._see_to_the_end_of(turn))
        turn.inputs[message_id] = text_of(content)
        accepted(Accepted(message_id, turn, first))
        self._show(first)

    def interrupt(self, turn: Turn | None = None, *, why: Why = "interrupted") -> None:
        """Cut the running turn short, if there is one; if `turn` is given, only that one."""
        running = self.turn
        if running is not None and turn in (None, running):
            running.cut_short = running.cut_short or why
            running.work.cancel()

    async def stop(self) -> None:
        """End the running turn because the server ends; return when its end is written down."""
        self.interrupt(why="stopped")
        self._wake()
        if self._over is not None:
            await asyncio.wait({self._over})

    async def _work(self) -> TurnEnded:
        if self._model is None:
            self._model = self._open_model(self.settings, self.id)
        return await run_turn(self, self._model, self.settings, self._clock)

    async def _see_to_the_end_of(self, turn: Turn) -> None:
        """Every turn ends exactly once, and the log says how, whatever happened to the work."""
        await asyncio.wait({turn.work})
        if turn.work.cancelled():
            why = turn.cut_short or "stopped"
            message = INTERRUPTED if why == "interrupted" else STOPPED
            await self.append(
                *self._aborted_calls(), ErrorEvent(message=message), TurnEnded(why=why, message=message)
            )
        elif (bug := turn.work.exception()) is not None:
            log.error("turn of %s failed", self.id, exc_info=bug)
            message = sayable(f"internal error: {type(bug).__name__}: {bug}")
            await self.append(
                *self._aborted_calls(),
                ErrorEvent(message=message),
                TaskComplete(last_agent_message=None),
                TurnEnded(why="failed", message=message),
            )
        elif (ended := turn.work.result()).why == "done" and self.settings.notify:
            run_notify_program(self.settings.notify, turn.event_id, tuple(turn.inputs.values()), ended)

    def _aborted_calls(self) -> Iterator[CallOutput]:
        return (CallOutput(call_id=call_id, output=ABORTED) for call_id in self.history.unanswered)


class Conversations:
    """All conversations of this process."""

    def __init__(self, *, clock: Clock, open_model: OpenModel) -> None:
        self._clock, self._open_model = clock, open_model
        self._by_id: dict[ConversationId, Conversation] = {}
        self._closing = asyncio.Event()

    def create(self, settings: Settings) -> Conversation:
        """Open a new conversation."""
        if self._closing.is_set():
            raise ShuttingDown
        conversation = Conversation(
            ConversationId(str(uuid4())),
            settings,
            clock=self._clock,
            open_model=self._open_model,
            closing=self._closing,
        )
        self._by_id[conversation.id] = conversation
        return conversation

    def find(self, conversation_id: ConversationId) -> Conversation:
        """Raises UnknownConversation."""
        try:
            return self._by_id[conversation_id]
        except KeyError:
            raise UnknownConversation(conversation_id) from None

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._by_id.values())

    @property
    def closing(self) -> bool:
        """The server is on its way out."""
        return self._closing.is_set()

    @property
    def running(self) -> list[Conversation]:
        """Those whose turn runs."""
        return [one for one in self if one.state.phase is not Phase.IDLE]

    async def stop(self) -> None:
        """Take no new work and end every running turn in order."""
        self._closing.set()
        await asyncio.gather(*(conversation.stop() for conversation in self))
