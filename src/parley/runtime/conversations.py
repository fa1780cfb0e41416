"""Conversations: one log each, one writer, many readers, at most one turn at a time.

The turn belongs to the conversation, not to whoever asked for it: clients come and go, and
nothing here knows them but as readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec import UNSET

from parley.agent.attachments import read_content
from parley.agent.bounds import Roots
from parley.agent.compaction import Meter
from parley.agent.notify import run_notify_program
from parley.agent.turn import run_turn
from parley.config.types import Chosen, Settings
from parley.conversation.history import ABORTED, History
from parley.conversation.log import Happened, ItemKind, Log, encode_delta
from parley.conversation.output import encode_output_delta
from parley.conversation.questions import Ledger
from parley.conversation.records import (
    CallOutput,
    CommandOutput,
    InputRead,
    SettingsChosen,
    TurnEnded,
    TurnStarted,
    Why,
)
from parley.conversation.state import Phase, State
from parley.errors import (
    CannotCarry,
    MessageIdTaken,
    ShuttingDown,
    TurnIsRunning,
    UnknownConversation,
    UnknownQuestion,
)
from parley.ports.clock import Clock
from parley.ports.commands import Commands
from parley.ports.model import Model, OpenModel
from parley.ports.tools import Desk, Tools
from parley.runtime.choices import Choices
from parley.runtime.permits import Permits
from parley.runtime.questions import Questions
from parley.runtime.readers import Reader
from parley.runtime.tool_servers import ToolServers
from parley.wire.events import ErrorEvent, OutputStream, TaskComplete, TaskStarted, UserMessage
from parley.wire.ids import ApprovalId, CallId, ConversationId, EventId, MessageId, Seq
from parley.wire.items import InputItem, TextItem, text_of
from parley.wire.text import sayable

__all__ = ["Accepted", "Conversation", "Conversations", "Turn"]

log = logging.getLogger(__name__)

INTERRUPTED: Final = " Turn interrupted"
"""Clients match on it, the leading blank included."""
STOPPED: Final = "Turn interrupted: the server was stopped"


class Turn:
    """A turn that runs."""

    def __init__(self, event_id: EventId, settings: Settings, work: asyncio.Task[TurnEnded]) -> None:
        self.event_id = event_id
        self.settings = settings
        """What it began with; overrides that join it are for the next one."""
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
        chosen: Chosen,
        *,
        clock: Clock,
        open_model: OpenModel,
        tools: Tools,
        commands: Commands,
        roots: Roots,
        closing: asyncio.Event,
    ) -> None:
        self.id = conversation_id
        self._choices = Choices(conversation_id, chosen)
        self.log = Log()
        self.state = State()
        self.history = History()
        self._clock, self._open_model, self._tools, self._closing = clock, open_model, tools, closing
        self._readers: list[Reader] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._model: tuple[Settings, Model] | None = None
        self._meters: dict[tuple[str, str], Meter] = {}
        """One for each model, by its provider and its name."""
        self.tool_servers = ToolServers(tools, self.append)
        self._ledger = Ledger()
        self.questions = Questions(self._ledger, append=self._append, interrupt=self.interrupt, clock=clock)
        self._permits = Permits(self.questions, commands, roots)
        self._turn: Turn | None = None
        self._over: asyncio.Task[None] | None = None
        self._taking = asyncio.Lock()
        """Messages are taken in the order in which they came, also where one has to wait."""
        self._write((_settings_chosen(chosen),))

    @property
    def settings(self) -> Settings:
        """What is in force for the next turn."""
        return self._choices.now.settings

    # --- reading -----------------------------------------------------------------------

    def attach(self, reader: Reader, *, can_be_asked: bool) -> None:
        """Let a reader follow from its cursor on; it says what it lacks when the next entry is shown."""
        self._readers.append(reader)
        self.questions.read_by(reader, can_be_asked=can_be_asked)

    def detach(self, reader: Reader) -> None:
        """Forget a reader; nothing else changes."""
        reader.close()
        if reader in self._readers:
            self._readers.remove(reader)
            self.questions.left_by(reader)

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
        self._append(*happened)

    def _append(self, *happened: Happened) -> None:
        if happened:
            self._show(self._write(happened))

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        for delta in self.log.extend_output(call_id, stream, data):
            # A list of byte values is costly, and while a command floods, often nobody can take it.
            taken = any(reader.keeps_up for reader in self._readers)
            encoded = encode_output_delta(delta) if taken else b""
            for reader in self._readers:
                reader.delta(delta, encoded)

    def kept_output(self, call_id: CallId) -> CommandOutput | None:
        return next(self.log.kept_outputs(call_id), None)

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
            self._ledger.apply(one, at=at)
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
        parent_id: MessageId | None = None,
        event_id: EventId | None = None,
        choose: Callable[[Chosen], Chosen] | None = None,
        accepted: Callable[[Accepted], None],
    ) -> None:
        """Take a message: it starts a turn, or joins the one that runs.

        With `parent_id` it begins a branch behind that message; `choose` makes the settings that hold
        from this message on. `accepted` is called when the message is written down and before any
        reader sees it.

        Raises:
            MessageIdTaken: the id stands for another message.
            ParentUnknown: no message has the id of the parent.
            TurnIsRunning: a branch can begin only while none runs.
            CannotCarry: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server ends.
        In every case nothing was changed.
        """
        message_id = message_id or MessageId(str(uuid4()))
        if message_id == MessageId(self.id):
            raise MessageIdTaken(message_id)  # as a parent it means: before the first message
        async with self._taking:
            while (turn := self.turn) is not None and turn.cut_short and self._over is not None:
                await asyncio.wait({self._over})  # what is said behind an interrupt is not part of it
            if self._is_repeated(message_id, content, accepted):
                return
            if turn is not None and parent_id is not None:
                raise TurnIsRunning
            before = self._choices.behind(parent_id)
            chosen = choose(before) if choose is not None else before
            read = await read_content(content, chosen.settings)
            turn = self.turn  # it may be over by now, or another may have begun
            if turn is not None and parent_id is not None:
                raise TurnIsRunning
            # As it was sent, so that the places are the sender's; what was read from disk can be carried by all.
            self._refuse_what_cannot_be_carried(content, turn.settings if turn is not None else chosen.settings)
            if self._closing.is_set():
                raise ShuttingDown
            said = UserMessage(
                message_id=message_id, parent_message_id=UNSET if parent_id is None else parent_id, content=content
            )
            entries: list[Happened] = [said]
            if read is not content:
                entries.append(InputRead(content=read, message_id=message_id))
            if chosen.settings is not self.settings:
                entries.append(_settings_chosen(chosen))
            if turn is not None:
                first = self._write(tuple(entries))
            else:
                started = TurnStarted(event_id=self.state.next_event_id(event_id))
                first = self._write((started, TaskStarted(), *entries))
                turn = self._turn = Turn(
                    started.event_id, chosen.settings, asyncio.create_task(self._work(chosen.settings))
                )
                self._over = asyncio.create_task(self._see_to_the_end_of(turn))
            self._choices.take(message_id, chosen)
            turn.inputs[message_id] = text_of(content)
            accepted(Accepted(message_id, turn, first))
            self._show(first)

    def _is_repeated(
        self, message_id: MessageId, content: tuple[InputItem, ...], accepted: Callable[[Accepted], None]
    ) -> bool:
        """Whether the message was taken before; it is then answered like the first time."""
        if message_id not in self.state.messages:
            return False
        if self.state.messages[message_id] != content:
            raise MessageIdTaken(message_id)
        turn = self.turn
        took_it = turn is not None and message_id in turn.inputs
        accepted(Accepted(message_id, turn if took_it else None, first=self.log.last))
        return True

    def _refuse_what_cannot_be_carried(self, content: tuple[InputItem, ...], settings: Settings) -> None:
        if all(isinstance(item, TextItem) for item in content):
            return
        model = self._model_for(settings)
        for place, item in enumerate(content):
            if why := model.cannot_carry(item):
                raise CannotCarry(place, why)

    def interrupt(self, turn: Turn | None = None, *, why: Why = "interrupted") -> None:
        """Cut the running turn short, if there is one; if `turn` is given, only that one."""
        running = self.turn
        if running is not None and turn in (None, running):
            running.cut_short = running.cut_short or why
            self.questions.drop()  # at once: an answer that comes a moment later has nothing to settle
            running.work.cancel()

    async def stop(self) -> None:
        """End the running turn because the server ends; return when its end is written down."""
        self.interrupt(why="stopped")
        self._wake()
        self.tool_servers.stop_waiting()
        await self.tool_servers.begun()
        if self._over is not None:
            await asyncio.wait({self._over})

    def _model_for(self, settings: Settings) -> Model:
        if self._model is None or self._model[0] is not settings:
            self._model = settings, self._open_model(settings, self.id)
        return self._model[1]

    async def _work(self, settings: Settings) -> TurnEnded:
        await self.tool_servers.ready(settings)
        desk = Desk(settings=settings, transcript=self, permit=self._permits.for_turn(settings))
        async with self._tools.open(desk) as hands:
            meter = self._meters.setdefault((settings.provider.id, settings.model), Meter())
            return await run_turn(self, self._model_for(settings), hands, settings, self._clock, meter)

    async def _see_to_the_end_of(self, turn: Turn) -> None:
        """Every turn ends exactly once, and the log says how, whatever happened to the work."""
        await asyncio.wait({turn.work})
        if turn.work.cancelled():
            why = turn.cut_short or "stopped"
            message = INTERRUPTED if why == "interrupted" else STOPPED
            await self.append(*self._left_open(), ErrorEvent(message=message), TurnEnded(why=why, message=message))
        elif (bug := turn.work.exception()) is not None:
            log.error("turn of %s failed", self.id, exc_info=bug)
            message = sayable(f"internal error: {type(bug).__name__}: {bug}")
            await self.append(
                *self._left_open(),
                ErrorEvent(message=message),
                TaskComplete(last_agent_message=None),
                TurnEnded(why="failed", message=message),
            )
        elif (ended := turn.work.result()).why == "done" and turn.settings.notify:
            run_notify_program(turn.settings.notify, turn.event_id, tuple(turn.inputs.values()), ended)

    def _left_open(self) -> Iterator[CommandOutput | CallOutput]:
        """What a turn that was cut short leaves to be said: what its command said, and that calls did not end."""
        yield from self.log.kept_outputs()
        for call_id in self.history.unanswered:
            yield CallOutput(call_id=call_id, output=ABORTED)


def _settings_chosen(chosen: Chosen) -> SettingsChosen:
    return SettingsChosen(model=chosen.settings.model, cwd=chosen.settings.cwd)


class Conversations:
    """All conversations of this process."""

    def __init__(
        self, *, clock: Clock, open_model: OpenModel, tools: Tools, commands: Commands, environ: Mapping[str, str]
    ) -> None:
        """`commands` and `environ` are those with which the tools run commands."""
        self._clock, self._open_model, self._tools = clock, open_model, tools
        self._commands, self._environ = commands, environ
        self._granted: set[str] = set()
        """Every directory that some conversation was allowed to write to."""
        self._by_id: dict[ConversationId, Conversation] = {}
        self._closing = asyncio.Event()

    def create(self, chosen: Chosen) -> Conversation:
        """Open a new conversation."""
        if self._closing.is_set():
            raise ShuttingDown
        conversation = Conversation(
            ConversationId(str(uuid4())),
            chosen,
            clock=self._clock,
            open_model=self._open_model,
            tools=self._tools,
            commands=self._commands,
            roots=Roots(self._environ, self._granted),
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

    def question(self, approval_id: ApprovalId) -> Questions:
        """The questions among which this one is, open or settled.

        Raises:
            UnknownQuestion: it was never asked.
        """
        for conversation in self:
            if approval_id in conversation.questions:
                return conversation.questions
        raise UnknownQuestion

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
