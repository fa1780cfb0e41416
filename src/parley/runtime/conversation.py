"""One conversation: messages become turns, at most one at a time, and each turn reaches exactly one end.

The turn belongs to the conversation, not to whoever asked for it: clients come and go, and
nothing here knows them but as readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, convert, to_builtins

from parley.agent.attachments import read_content
from parley.agent.compaction import Meter
from parley.agent.limits import end_at
from parley.agent.notify import run_notify_program
from parley.agent.turn import run_turn
from parley.config.kept import kept, wanted_again
from parley.config.types import Chosen, Settings, Wanted
from parley.conversation.history import ABORTED, History
from parley.conversation.log import Happened, ItemKind, Log
from parley.conversation.records import (
    CallOutput,
    CommandOutput,
    InputRead,
    Renamed,
    SettingsChosen,
    TurnEnded,
    TurnStarted,
    Why,
)
from parley.conversation.spending import Spending
from parley.conversation.state import Phase, State
from parley.errors import (
    CannotCarry,
    Fenced,
    MessageIdTaken,
    NotOwned,
    OwnedElsewhere,
    OwnerSilent,
    ParleyError,
    PeerError,
    ShuttingDown,
    StoreError,
    StoreFailed,
    TurnIsRunning,
    UnknownConversation,
)
from parley.ports.clock import Clock
from parley.ports.commands import Commands
from parley.ports.model import Model, OpenModel
from parley.ports.store import Store
from parley.ports.tools import Desk, Tools
from parley.runtime.book import Book, outlast
from parley.runtime.choices import Choose
from parley.runtime.elsewhere import FOLLOW_SECONDS, Elsewhere, Neighbours
from parley.runtime.permits import Permits, Resumed, Trust
from parley.runtime.questions import Questions
from parley.runtime.readers import Reader
from parley.runtime.tool_servers import ToolServers
from parley.wire.events import (
    ErrorEvent,
    LimitReached,
    OutputStream,
    SettledBy,
    Settlement,
    TaskComplete,
    TaskStarted,
    UserMessage,
    event_type,
)
from parley.wire.ids import ApprovalId, CallId, ConversationId, EventId, MessageId, Seq
from parley.wire.items import InputItem, TextItem
from parley.wire.jsonrpc import encode
from parley.wire.peers import AnswerQuestion, InterruptTurn, RenameConversation, Submit, Submitted
from parley.wire.text import sayable

__all__ = ["ENDINGS", "Accepted", "Conversation", "Means", "Turn"]

log = logging.getLogger(__name__)

ENDINGS: Final[dict[Why, str]] = {
    "interrupted": " Turn interrupted",  # clients match on it, the leading blank included
    "stopped": "Turn interrupted: the server was stopped",
    "restarted": "Turn interrupted: the server was restarted",
}
"""What is said of a turn that was cut short."""
LOST: Final = "The server stopped while this ran; it may have taken effect."
"""What the model is told of a call that ended with its server."""
_SAID: Final = event_type(UserMessage)
BETWEEN_LOOKS_SECONDS: Final = 0.05
"""How long until it is looked again who has a conversation."""
PATIENCE_SECONDS: Final = 30.0
"""How long whoever has it may take to do what it is asked. One that lives does so at once, if its disk does not
hang."""
BETWEEN_TRIES_SECONDS: Final = 1.0
"""How long until it is tried again to write down the end of a turn."""


class Means(NamedTuple):
    """What all conversations of a process have in common."""

    clock: Clock
    store: Store
    choose: Choose
    open_model: OpenModel
    tools: Tools
    commands: Commands
    """With which the tools run commands."""
    neighbours: Neighbours
    closing: asyncio.Event
    """Set when the server is on its way out."""


class Turn:
    """A turn that runs, wherever that is."""

    def __init__(self, event_id: EventId, work: asyncio.Future[TurnEnded]) -> None:
        self.event_id = event_id
        self.work = work
        """Done when there is nothing more to do but to write down how it ended."""
        self.is_left = False
        """Whether it goes without an end, for another process to go on with."""


class _OurTurn(Turn):
    """A turn that runs in this process."""

    def __init__(self, event_id: EventId, work: asyncio.Future[TurnEnded], settings: Settings) -> None:
        super().__init__(event_id, work)
        self.settings = settings
        """What it began with; overrides that join it are for the next one."""
        self.cut_short: Why | None = None
        """Why it was told to end before its time."""


class _TheirTurn(Turn):
    """A turn that another process began; its work is cancelled when it is over, whoever had it last."""

    def __init__(self, event_id: EventId, first: Seq) -> None:
        super().__init__(event_id, asyncio.get_running_loop().create_future())
        self.first = first
        """Who has the log up to here knows that it began."""


class Accepted(NamedTuple):
    """A message that was taken."""

    message_id: MessageId
    turn: Turn | None
    """The turn that took it; None: it was sent before, and its turn is over."""
    first: Seq
    """The position of the first entry that it caused."""


class Conversation:
    """One conversation. Writing is for its turn and for `submit`; reading is for everybody."""

    def __init__(self, conversation_id: ConversationId, means: Means, trust: Trust) -> None:
        self.id = conversation_id
        self._means = means
        self.book = Book(conversation_id, means.store, means.clock)
        self.book.on_dropped, self.book.on_lost, self.book.on_taken = self._dropped, self._lost, self._noticed
        self._elsewhere: Elsewhere | None = None
        """Where its turn runs, if that is another process."""
        self._joining = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._look_again = False
        self._trouble = ""
        """Why that was in vain, the last time."""
        self._foreign: _TheirTurn | None = None
        """The turn there that took a message from here."""
        self._under_way: set[asyncio.Task[None]] = set()
        """What nobody waits for."""
        self.is_gone = False
        """Whether somebody has deleted it."""
        self.when_gone: dict[object, Callable[[], None]] = {}
        """What is to be called then, by who wants it."""
        self._choices = trust.choices
        self._model: tuple[Settings, Model] | None = None
        self._meters: dict[tuple[str, str], Meter] = {}
        """One for each model, by its provider and its name."""
        self.tool_servers = ToolServers(means.tools, self._append_between_turns)
        self.questions = Questions(self.book, interrupt=self.interrupt, answer=self.answer, clock=means.clock)
        self.questions.on_audience = self._audience_changed
        self._permits = Permits(self.questions, means.commands, trust)
        self._turn: _OurTurn | None = None
        self._over: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._taking = asyncio.Lock()
        """Messages are taken in the order in which they came, also where one has to wait."""

    # --- what there is -----------------------------------------------------------------

    @property
    def log(self) -> Log:
        return self.book.log

    @property
    def state(self) -> State:
        return self.book.folds.state

    @property
    def history(self) -> History:
        return self.book.folds.history

    @property
    def spending(self) -> Spending:
        return self.book.folds.spending

    @property
    def settings(self) -> Settings:
        """What is in force for the next turn.

        Raises:
            ConfigError: the settings cannot be used as they are now.
        """
        return self._choices.of(self.book.folds.wishes.now).settings

    @property
    def turn(self) -> _OurTurn | None:
        """The turn that runs in this process, if one does. What has begun and is not on disk yet does not run."""
        turn, state = self._turn, self.state
        runs = turn is not None and state.phase is not Phase.IDLE and state.event_id == turn.event_id
        return turn if runs else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process has its turn, and tells us of it."""
        return self._elsewhere is not None

    @property
    def is_catching_up(self) -> bool:
        """Whether it is being seen to what other processes have done."""
        return self._catching_up is not None and not self._catching_up.done()

    @property
    def is_watched(self) -> bool:
        """Whether somebody here wants to hear at once what other processes do in it."""
        return self.book.is_read or self.questions.is_watched

    @property
    def is_idle(self) -> bool:
        """Whether nobody would notice if it were not in memory."""
        return not (
            self.book.is_ours
            or self._elsewhere is not None
            or self.is_catching_up
            or self.book.is_read
            or self.questions.is_watched
            or self._taking.locked()
            or self.tool_servers.is_starting
        )

    async def create(self, wanted: Wanted, chosen: Chosen) -> None:
        """Begin it.

        Raises:
            StoreFailed: it cannot be written down.
        """
        await self.book.create(self._settings_chosen(wanted, chosen))
        self._choices.know(self.book.folds.wishes.now, chosen)

    def _settings_chosen(self, wanted: Wanted, chosen: Chosen) -> SettingsChosen:
        settings, asked = chosen.settings, kept(wanted)
        self._choices.has_secrets |= wanted_again(asked) != wanted
        return SettingsChosen(model=settings.model, cwd=settings.cwd, asked={**asked, "cwd": settings.cwd})

    # --- reading -----------------------------------------------------------------------

    def attach(self, reader: Reader, *, can_be_asked: bool, full: bool) -> None:
        """Let a reader follow from its cursor on; it says what it lacks when the next entry is shown."""
        self.book.attach(reader)
        self.questions.read_by(reader, can_be_asked=can_be_asked, full=full)

    def detach(self, reader: Reader) -> None:
        """Forget a reader; nothing else changes."""
        if self.book.detach(reader):
            self.questions.left_by(reader)

    async def wait_beyond(self, position: Seq) -> None:
        """Return when the log has an entry behind `position`, or the server ends.

        Raises:
            UnknownConversation: it was deleted.
        """
        while self.log.durable <= position and not self._means.closing.is_set():
            if self.is_gone:
                raise UnknownConversation(self.id)
            await self.book.wait_beyond(position)

    # --- writing -----------------------------------------------------------------------

    async def append(self, *happened: Happened) -> None:
        await self.book.append(*happened)

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        self.book.extend_output(call_id, stream, data)

    def kept_output(self, call_id: CallId) -> CommandOutput | None:
        return next(self.log.kept_outputs(call_id), None)

    def unfinished(self, kind: ItemKind) -> str:
        item = self.log.open.get(kind)
        return item.text() if item else ""

    def extend(self, kind: ItemKind, text: str) -> None:
        self.book.extend(kind, text)

    async def rename(self, title: str) -> None:
        """Raises StoreError."""
        wish = RenameConversation(conversation_id=self.id, title=title)
        await self._here_or_there(lambda: self.rename_here(title), wish.METHOD, wish)

    async def rename_here(self, title: str) -> None:
        """Raises OwnedElsewhere, StoreFailed."""
        await self._append_between_turns(Renamed(title=title))
        self._means.neighbours.tell(self.id)

    async def delete(self) -> None:
        """Remove it for ever.

        Raises:
            TurnIsRunning: not while one runs.
            StoreError: it cannot be.
        """
        async with self._taking:
            await self._open_to_delete()
            if self.state.phase is not Phase.IDLE:
                await self._rest()
                raise TurnIsRunning
            await self.book.delete()
        self._means.neighbours.tell(self.id)
        self.go()

    async def _open_to_delete(self) -> None:
        """Raises TurnIsRunning, also where another process does not give back the right to write."""
        until = _moment_in(FOLLOW_SECONDS)
        while self.state.phase is Phase.IDLE:
            try:
                await self.book.open(address=self._means.neighbours.address)
                return
            except OwnedElsewhere:
                if _is_past(until):
                    break
                await asyncio.sleep(BETWEEN_LOOKS_SECONDS)
                await self.book.load()
        raise TurnIsRunning

    async def _append_between_turns(self, *happened: Happened) -> None:
        """Write down what is no turn's, also while none runs.

        Raises:
            OwnedElsewhere: another process runs one.
            StoreFailed: it cannot be written down.
        """
        if self.turn is not None:
            await self.append(*happened)
            return
        async with self._writing():
            await self.append(*happened)

    def _writing(self) -> _Writing:
        return _Writing(self)

    # --- messages ----------------------------------------------------------------------

    async def submit(
        self,
        content: tuple[InputItem, ...],
        *,
        message_id: MessageId | None = None,
        parent_id: MessageId | None = None,
        event_id: EventId | None = None,
        wanted: Wanted | None = None,
        accepted: Callable[[Accepted], None],
    ) -> None:
        """Take a message: it starts a turn, or joins the one that runs.

        With `parent_id` it begins a branch behind that message; `wanted` are settings that hold
        from this message on. `accepted` is called when the message is written down and before any
        reader sees it.

        Raises:
            MessageIdTaken: the id stands for another message.
            ParentUnknown: no message has the id of the parent.
            TurnIsRunning: a branch can begin only while none runs.
            CannotCarry: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server ends.
            Relayed: the process that runs a turn refuses it.
            StoreError: it cannot be written down.
        In every case nothing was changed.
        """
        message = Submit(
            conversation_id=self.id,
            content=content,
            message_id=message_id or MessageId(str(uuid4())),
            parent_id=parent_id,
            event_id=event_id,
            wanted=None if wanted is None else to_builtins(wanted),
        )
        if message.message_id == MessageId(self.id):
            raise MessageIdTaken(message.message_id)  # as a parent it means: before the first message

        def taken(result: Raw) -> None:
            answer = msgspec.json.decode(result, type=Submitted)
            turn = None if answer.event_id is None else self._turn_elsewhere(answer.event_id, answer.first)
            accepted(Accepted(message.message_id, turn, answer.first))
            if turn is not None and self._elsewhere is None:
                self.catch_up()  # the turn that was followed is over, and the message began the next

        await self._here_or_there(
            lambda: self.submit_here(message, accepted=accepted), message.METHOD, message, answered=taken
        )

    async def submit_here(self, message: Submit, *, accepted: Callable[[Accepted], None]) -> None:
        """As `submit`, in this process.

        Raises:
            OwnedElsewhere: another process runs a turn, and takes messages.
        """
        content, message_id, parent_id = message.content, message.message_id, message.parent_id
        wanted = None if message.wanted is None else convert(message.wanted, Wanted)
        async with self._writing():
            if self._is_repeated(message_id, content, accepted):
                return
            if self.turn is not None and parent_id is not None:
                raise TurnIsRunning
            before = self._choices.of(self.book.folds.wishes.behind(parent_id, self.id))
            chosen = self._means.choose(wanted, before) if wanted is not None else before
            read = await read_content(content, chosen.settings)
            turn = self.turn  # it may be over by now
            # As it was sent, so that the places are the sender's; what was read from disk can be carried by all.
            self._refuse_what_cannot_be_carried(content, turn.settings if turn is not None else chosen.settings)
            if self._means.closing.is_set():
                raise ShuttingDown
            said = UserMessage(
                message_id=message_id, parent_message_id=UNSET if parent_id is None else parent_id, content=content
            )
            entries: list[Happened] = [said]
            if read is not content:
                entries.append(InputRead(content=read, message_id=message_id))
            if chosen.settings is not self.settings:
                entries.append(self._settings_chosen(wanted or Wanted(), chosen))
            first = Seq(self.log.last + 1)
            if turn is None:
                started = TurnStarted(event_id=self.state.next_event_id(message.event_id))
                entries = [started, TaskStarted(), *entries]

            def taken() -> None:
                begun = turn or self._begin(chosen.settings, self._work(chosen.settings))
                self._choices.know(self.book.folds.wishes.behind(message_id, self.id), chosen)
                accepted(Accepted(message_id, begun, first))

            await outlast(self.book.write(*entries, shown=taken))

    def _is_repeated(
        self, message_id: MessageId, content: tuple[InputItem, ...], accepted: Callable[[Accepted], None]
    ) -> bool:
        """Whether the message was taken before; it is then answered like the first time."""
        if message_id not in self.state.messages:
            return False
        if self.state.messages[message_id] != content:
            raise MessageIdTaken(message_id)
        took_it = message_id in self.state.inputs
        accepted(Accepted(message_id, self.turn if took_it else None, first=self._place_of(message_id)))
        return True

    def _place_of(self, message_id: MessageId) -> Seq:
        """Where a message stands that was taken before."""
        name = encode(message_id)
        places = (one.seq for one in self.log.entries if one.type == _SAID and name in one.encoded)
        return next(places, self.log.durable)

    def _refuse_what_cannot_be_carried(self, content: tuple[InputItem, ...], settings: Settings) -> None:
        if all(isinstance(item, TextItem) for item in content):
            return
        model = self._model_for(settings)
        for place, item in enumerate(content):
            if why := model.cannot_carry(item):
                raise CannotCarry(place, why)

    # --- questions ---------------------------------------------------------------------

    def answer(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """Settle a question: at once where its turn runs here, else when that has been taken over.

        The result is there when the answer is on disk. Fails with UnknownQuestion, QuestionIsSettled,
        OwnedElsewhere, ConfigError or StoreFailed, and raises none of them.
        """
        if self.turn is None:
            return asyncio.ensure_future(self._answer_what_was_left(approval_id, decision, by, reason))
        try:
            return self.questions.settle(approval_id, decision, by=by, reason=reason)
        except (PeerError, StoreError) as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _answer_what_was_left(
        self, approval_id: ApprovalId, decision: Settlement, by: SettledBy, reason: str | None
    ) -> None:
        question = AnswerQuestion(
            conversation_id=self.id, approval_id=approval_id, decision=decision, by=by, reason=reason
        )
        await self._here_or_there(lambda: self.answer_here(question), question.METHOD, question)

    async def answer_here(self, answer: AnswerQuestion) -> None:
        """As `answer`, in this process.

        Raises:
            OwnedElsewhere: another process runs the turn.
            UnknownQuestion, QuestionIsSettled, ConfigError, StoreFailed: nothing was changed.
        """
        self.questions.find(answer.approval_id)
        async with self._writing():
            settled = self.questions.settle(answer.approval_id, answer.decision, by=answer.by, reason=answer.reason)
            await outlast(settled)

    # --- turns -------------------------------------------------------------------------

    def interrupt(self, turn: Turn | None = None, *, why: Why = "interrupted") -> None:
        """Cut the running turn short, if there is one; if `turn` is given, only that one, also elsewhere."""
        running = self.turn
        if running is not None:
            if turn is None or turn.event_id == running.event_id:
                running.cut_short = running.cut_short or why
                self.questions.drop()  # at once: an answer that comes a moment later has nothing to settle
                running.work.cancel()
        elif isinstance(turn, _TheirTurn) and not turn.work.done():
            interrupting = asyncio.create_task(self._interrupt_if_possible(turn.event_id))
            self._under_way.add(interrupting)
            interrupting.add_done_callback(self._under_way.discard)

    async def _interrupt_if_possible(self, event_id: EventId) -> None:
        try:
            await self.interrupt_wherever(event_id)
        except ParleyError as error:
            log.warning("%s: the turn goes on: %s", self.id, error)

    async def interrupt_wherever(self, event_id: EventId | None = None) -> None:
        """As `interrupt`, also where another process has the turn, or none any more; if one is named, only that.

        Raises:
            ConfigError, StoreError: it cannot be taken over.
        """
        wish = InterruptTurn(conversation_id=self.id, event_id=event_id)
        await self._here_or_there(lambda: self.interrupt_here(event_id), wish.METHOD, wish)

    async def interrupt_here(self, event_id: EventId | None = None) -> None:
        """As `interrupt`, also where no process has the turn any more.

        Raises:
            OwnedElsewhere: another process has it.
            ConfigError, StoreFailed: it cannot be taken over.
        """
        if self.turn is None and self.state.phase is not Phase.IDLE:
            async with self._writing():
                pass
        if event_id in (None, self.state.event_id):
            self.interrupt()

    # --- turns of other processes ------------------------------------------------------

    async def look_after(self) -> None:
        """See to a turn that another process has, or had: one that runs is followed; one whose process is gone is
        ended if it ran, and goes on asking here if it asked.

        Returns when that is so, or cannot be, or takes too long because a process does not answer.
        """
        if self.turn is None and self._elsewhere is None and self.state.phase is not Phase.IDLE:
            await asyncio.wait({self.catch_up()}, timeout=FOLLOW_SECONDS)

    def catch_up(self) -> asyncio.Task[None]:
        """Soon, see what other processes have done, and have done with what they left."""
        self._look_again = True
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())
        return self._catching_up

    async def _catch_up(self) -> None:
        while self._look_again and not self._means.closing.is_set():
            self._look_again = False
            try:
                if not self.book.is_ours and self._elsewhere is None:
                    await self.book.load()
                    await self._follow_or_take_over()
            except UnknownConversation:
                self.go()
            except ParleyError as error:
                if str(error) != self._trouble:
                    log.warning("%s: the turn of another process cannot be seen to: %s", self.id, error)
                self._trouble = str(error)

    async def _follow_or_take_over(self) -> None:
        until = _moment_in(PATIENCE_SECONDS)
        async with self._joining:
            while self._turn is None and self._elsewhere is None and self.state.phase is not Phase.IDLE:
                try:
                    async with self._writing():
                        return
                except OwnedElsewhere as owner:
                    if _is_past(until):
                        raise OwnerSilent(pid=owner.pid) from None
                    await self._join(owner)

    async def _join(self, owner: OwnedElsewhere) -> None:
        """Follow what another process does, unless it is over by now."""
        try:
            elsewhere = await self._means.neighbours.follow(self.book, owner, over=self._left_alone)
        except NotOwned:
            await asyncio.sleep(BETWEEN_LOOKS_SECONDS)  # it is about to begin or to end, or was killed just now
            await self.book.load()
            return
        if not elsewhere.is_over:
            self._elsewhere = elsewhere
            self._audience_changed()

    async def _here_or_there(
        self,
        here: Callable[[], Awaitable[None]],
        method: str,
        params: Struct,
        *,
        answered: Callable[[Raw], None] = lambda result: None,
    ) -> None:
        """Do it where the turn runs; repeat it where that is not known, or has changed meanwhile.

        Raises:
            OwnerSilent: another process has the turn and does not answer. It may do it all the same.
            ShuttingDown: the server ends.
        """
        until = _moment_in(PATIENCE_SECONDS)
        while True:
            there = self._elsewhere
            try:
                if there is None:
                    await here()
                else:
                    async with asyncio.timeout_at(until):
                        await there.ask(method, params, answered=answered)
                return
            except TimeoutError:
                raise OwnerSilent(pid=0 if there is None else there.pid) from None
            except NotOwned:
                if there is self._elsewhere:
                    await asyncio.sleep(BETWEEN_LOOKS_SECONDS)  # it is about to end there, and we shall hear so
            except OwnedElsewhere as owner:
                if _is_past(until):
                    raise OwnerSilent(pid=owner.pid) from None
                async with self._joining:
                    if self._elsewhere is None:
                        await self._join(owner)
            except StoreFailed:
                if not self._means.closing.is_set():
                    raise
            if self._means.closing.is_set():
                raise ShuttingDown

    def _turn_elsewhere(self, event_id: EventId, first: Seq) -> Turn:
        if self._foreign is None or self._foreign.event_id != event_id or self._foreign.work.done():
            self._foreign = _TheirTurn(event_id, first)
        return self._foreign

    def _noticed(self) -> None:
        """Another process has written something."""
        self.questions.changed()
        self._let_go_of_their_turn()

    def _let_go_of_their_turn(self) -> None:
        if (turn := self._foreign) is None or self.log.durable < turn.first:
            return
        if self.state.phase is Phase.IDLE or self.state.event_id != turn.event_id:
            turn.work.cancel()
            self._foreign = None

    def follow_no_more(self) -> None:
        """Whoever has the turn does not tell us: what is on disk has to do, until it answers again."""
        if self._elsewhere is not None:
            self._elsewhere.lost()

    def _left_alone(self) -> None:
        """What ran elsewhere is over, or its process is gone. Something else may have begun since."""
        self._elsewhere = None
        self.book.wake()
        if not self._means.closing.is_set():
            self.catch_up()

    def go(self) -> None:
        """It was deleted: whoever reads it hears so."""
        self.is_gone = True
        self.book.wake()
        gone, self.when_gone = self.when_gone, {}
        for tell in gone.values():
            tell()

    def _audience_changed(self) -> None:
        if self._elsewhere is not None:
            there = self.questions
            self._elsewhere.read_by(is_read=there.is_watched, can_be_asked=there.can_be_asked, full=there.full)

    async def stop(self) -> None:
        """End the running turn because the server ends; return when its end is written down.

        One that waits for an answer stays open, for whoever comes.
        """
        self._stop_turn()
        if self._catching_up is not None:
            self._catching_up.cancel()
        if self._elsewhere is not None:
            self._elsewhere.lost()
        if self._foreign is not None:
            self._foreign.is_left = True
            self._foreign.work.cancel()
        self.book.wake()
        async with self._taking:  # a message that was being taken has begun its turn by now
            self._stop_turn()
        self.tool_servers.stop_waiting()
        await self.tool_servers.begun()
        if self._over is not None:
            await asyncio.wait({self._over})
        if self._resting is not None:
            await asyncio.wait({self._resting})

    def _stop_turn(self) -> None:
        turn = self.turn
        if turn is None or turn.is_left or turn.cut_short is not None:
            return
        if self.questions.open is None:
            self.interrupt(why="stopped")
        else:
            turn.is_left = True
            self.questions.leave_open()
            turn.work.cancel()

    async def _get_ready(self) -> None:
        """Have the right to write, and no turn that nobody has."""
        while (turn := self.turn) is not None and turn.cut_short and self._over is not None:
            await asyncio.wait({self._over})  # what is said behind an interrupt is not part of it
        await self._means.neighbours.listen()
        await self.book.open(address=self._means.neighbours.address)
        self.follow_no_more()
        if self._turn is None and self.state.phase is Phase.RUNNING:
            await self.append(*self._end_of_cut("restarted"))
            self._let_go_of_their_turn()
        elif self._turn is None and self.state.phase is Phase.ASKING:
            settings = self._choices.of(self.book.folds.wishes.of_turn).settings
            self._begin(settings, self._go_on(settings))
            await asyncio.sleep(0)  # it asks before anybody answers

    async def _rest(self) -> None:
        """Let others write, unless a turn runs."""
        if self._turn is None:
            await self.book.close()

    async def _rest_soon(self) -> None:
        async with self._taking:
            await self._rest()

    def _begin(self, settings: Settings, work: Awaitable[TurnEnded]) -> Turn:
        event_id = self.state.event_id
        assert event_id is not None  # a turn has started
        self._means.neighbours.tell(self.id)
        turn = self._turn = _OurTurn(event_id, asyncio.ensure_future(work), settings)
        self._over = asyncio.create_task(self._see_to_the_end_of(turn))
        return turn

    def _dropped(self, reader: Reader) -> None:
        self.questions.left_by(reader)

    def _lost(self) -> None:
        """Another process has taken over: what runs here has no place to say anything any more."""
        if (turn := self._turn) is not None:
            turn.is_left = True
            self.questions.leave_open()
            turn.work.cancel()

    def _model_for(self, settings: Settings) -> Model:
        if self._model is None or self._model[0] is not settings:
            self._model = settings, self._means.open_model(settings, self.id)
        return self._model[1]

    async def _work(self, settings: Settings, resumed: Resumed | None = None) -> TurnEnded:
        await self.tool_servers.ready(settings)
        desk = Desk(settings=settings, transcript=self, permit=self._permits.for_turn(settings, resumed))
        async with self._means.tools.open(desk) as hands:
            meter = self._meters.setdefault((settings.provider.id, settings.model), Meter())
            model, ask_to_go_on = self._model_for(settings), self._permits.to_go_on(settings)
            return await run_turn(self, model, hands, settings, self._means.clock, meter, ask_to_go_on)

    async def _go_on(self, settings: Settings) -> TurnEnded:
        """With a turn that was left while it waited for an answer."""
        question = self.questions.open
        assert question is not None  # by the phase
        answered = await self.questions.ask_again(settings.approvals)
        if isinstance(reached := question.shown, LimitReached) and not answered.is_yes:
            return await end_at(reached, self)
        return await self._work(settings, Resumed(question.asked, answered))

    async def _see_to_the_end_of(self, turn: _OurTurn) -> None:
        """Every turn ends exactly once, and the log says how, whatever happened to the work."""
        await asyncio.wait({turn.work})
        try:
            if not turn.is_left:
                await self._end(turn)
        finally:
            if self._turn is turn:  # another may have begun already
                self._turn = None
            self._let_go_of_their_turn()
            self._resting = asyncio.create_task(self._rest_soon())
            if turn.is_left and not self._means.closing.is_set():
                self.catch_up()  # another process goes on with it

    async def _end(self, turn: _OurTurn) -> None:
        if turn.work.cancelled():
            await self._write_end(lambda: self._end_of_cut(turn.cut_short or "stopped"))
        elif isinstance(bug := turn.work.exception(), Fenced):
            log.warning("%s: %s", self.id, bug)  # who took over has written the end, or will
        elif bug is not None:
            if not isinstance(bug, StoreFailed):
                log.error("turn of %s failed", self.id, exc_info=bug)
            message = str(bug) if isinstance(bug, StoreFailed) else f"internal error: {type(bug).__name__}: {bug}"
            await self._write_end(lambda: self._end_of_failed(sayable(message)))
        elif (ended := turn.work.result()).why == "done" and turn.settings.notify:
            run_notify_program(turn.settings.notify, turn.event_id, tuple(self.state.inputs.values()), ended)

    async def _write_end(self, end: Callable[[], tuple[Happened, ...]]) -> None:
        """Until it is written, or we end: then whoever comes next finds a turn without one."""
        while True:
            try:
                self.questions.drop()  # again, where that could not be written down either
                await self.append(*end())
            except Fenced:
                return
            except StoreFailed:
                if self._means.closing.is_set():
                    return
                await self._means.clock.sleep(BETWEEN_TRIES_SECONDS)
            else:
                return

    def _end_of_cut(self, why: Why) -> tuple[Happened, ...]:
        message = ENDINGS[why]
        left = self._left_open(ABORTED if why == "interrupted" else LOST)
        return (*left, ErrorEvent(message=message), TurnEnded(why=why, message=message))

    def _end_of_failed(self, message: str) -> tuple[Happened, ...]:
        ended = TurnEnded(why="failed", message=message)
        return (
            *self._left_open(ABORTED),
            ErrorEvent(message=message),
            TaskComplete(last_agent_message=None),
            ended,
        )

    def _left_open(self, output: str) -> Iterator[CommandOutput | CallOutput]:
        """What a turn that was cut short leaves to be said: what its command said, and that calls did not end."""
        yield from self.log.kept_outputs()
        for call_id in self.history.unanswered:
            yield CallOutput(call_id=call_id, output=output)


def _moment_in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _is_past(moment: float) -> bool:
    return asyncio.get_running_loop().time() > moment


class _Writing:
    """One after another, with the right to write; it is given back where no turn needs it."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    async def __aenter__(self) -> None:
        await self._conversation._taking.acquire()
        try:
            await self._conversation._get_ready()
        except BaseException:
            await self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        try:
            await self._conversation._rest()
        finally:
            self._conversation._taking.release()
