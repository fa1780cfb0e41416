"""One conversation, as clients and other processes know it: what it says, and what can be done in it.

The turn belongs to the conversation, not to whoever asked for it: clients come and go, and
nothing here knows them but as readers. What a message does is in `messages.py`, how a turn lives in `turns.py`,
and what other processes have to do with it in `sharing.py`; here they are put together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import assert_never
from uuid import uuid4

import msgspec
from msgspec import Raw, to_builtins

from parley.common.shield import run_to_completion
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.conversation.approvals import Question
from parley.conversation.log import Log
from parley.conversation.state import Phase, State
from parley.errors import (
    ConfigError,
    HomeLost,
    InvalidRequest,
    NotOwned,
    ParleyError,
    ShuttingDown,
    StoreError,
    TurnIsRunning,
    UnknownConversation,
)
from parley.ports.store import CALL_SECONDS, TURN_SECONDS
from parley.runtime.book import Book
from parley.runtime.deadline import Deadline
from parley.runtime.errors import MessageIdTaken
from parley.runtime.here import Here
from parley.runtime.means import Means
from parley.runtime.messages import Accepted, Messages
from parley.runtime.permits import Permits, Trust
from parley.runtime.questions import Asked, Questions
from parley.runtime.readers import Reader
from parley.runtime.rounds import Rounds
from parley.runtime.sharing import Sharing, TheirTurn
from parley.runtime.tool_servers import ToolServers
from parley.runtime.turns import OurTurn, Turn, Turns
from parley.runtime.writing import Writing
from parley.wire.events import SettledBy, Settlement
from parley.wire.ids import ApprovalId, ConversationId, EventId, MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode
from parley.wire.peers import AnswerQuestion, InterruptTurn, RenameConversation, Submit, Submitted

__all__ = ["Conversation", "PeerRequest"]

log = logging.getLogger(__name__)

PeerRequest = AnswerQuestion | InterruptTurn | RenameConversation | Submit
"""Requests that another process sends to the owner of a conversation."""


class Conversation:
    """Writing is for its turn and for `submit`; reading is for everybody."""

    def __init__(self, conversation_id: ConversationId, means: Means, trust: Trust) -> None:
        self.id = conversation_id
        self.trust = trust
        """What was allowed and asked for in it, which outlives it here."""
        self._closing, self._neighbours, self._choices = means.closing, means.neighbours, trust.choices
        self.book = Book(conversation_id, means.store, means.clock)
        self.tool_servers = ToolServers(
            means.tools, lambda failed: self.here.append(failed, deadline=Deadline(TURN_SECONDS))
        )
        self.questions = Questions(
            self.book,
            interrupt=self.interrupt,
            answer=self.answer,
            clock=means.clock,
            has_others=means.neighbours.has_others,
        )
        self._turns = Turns(
            self.book,
            means,
            choices=trust.choices,
            questions=self.questions,
            permits=Permits(self.questions, means.commands, trust),
            tool_servers=self.tool_servers,
        )
        self._writing = Writing(get_ready=self._get_ready, rest=self._rest)
        self._messages = Messages(self.book, trust.choices, self._turns, closing=means.closing)
        self.here = Here(
            self.book,
            self._writing,
            means.neighbours,
            turns=self._turns,
            messages=self._messages,
            questions=self.questions,
        )
        self.sharing = Sharing(
            self.book,
            means.neighbours,
            turns=self._turns,
            writing=self._writing,
            questions=self.questions,
            closing=means.closing,
            gone=self.mark_deleted,
        )
        self.book.on_dropped, self.book.on_lost = self.questions.left_by, self._turns.leave
        self._turns.on_over = self._turn_is_over
        self._under_way: set[asyncio.Task[None]] = set()
        """What nobody waits for."""
        self.rounds = Rounds()
        """In which it is looked what other processes have done, for whoever asks for it."""
        self.is_deleted = False
        """Whether it was deleted, or the home was lost."""
        self.lost: HomeLost | None = None
        """The reason, if the home was lost."""
        self._on_deleted: dict[Hashable, Callable[[], None]] = {}

    # --- what there is -----------------------------------------------------------------

    @property
    def log(self) -> Log:
        return self.book.log

    @property
    def state(self) -> State:
        return self.book.folds.state

    @property
    def settings(self) -> Settings:
        """What is in force for the next turn.

        Raises:
            ConfigError: the settings cannot be used as they are now.
        """
        return self._choices.of(self.book.folds.wishes.now).settings

    @property
    def turn(self) -> OurTurn | None:
        """The turn that runs in this process, if one does."""
        return self._turns.running

    @property
    def phase(self) -> Phase:
        """The phase up to the last durable entry."""
        return self.book.phase

    @property
    def is_watched(self) -> bool:
        """Whether somebody here wants to hear at once what other processes do in it."""
        return self.book.is_read or self.questions.is_watched

    @property
    def needs_polling(self) -> bool:
        """Whether other processes may write to it without telling this process."""
        return not (self.book.is_ours or self.sharing.is_elsewhere)

    @property
    def is_idle(self) -> bool:
        """Whether nobody would notice if it were not in memory."""
        return not (
            self.book.is_ours
            or self.sharing.is_elsewhere
            or self.sharing.is_catching_up
            or self.is_watched
            or not self.sharing.line.is_empty
            or self._writing.lock.locked()
            or self.tool_servers.is_starting
        )

    async def create(self, wanted: SettingsOverrides, chosen: ResolvedSettings) -> None:
        """Begin it.

        Raises:
            StoreFailed: it cannot be written down.
        """
        await self.book.create(self._choices.record(wanted, chosen))
        self._choices.know(self.book.folds.wishes.now, chosen)

    # --- reading -----------------------------------------------------------------------

    def attach(self, reader: Reader) -> None:
        """Send entries after the reader's cursor to it, from the next durable entry on."""
        self.book.attach(reader)

    def detach(self, reader: Reader) -> None:
        """Remove a reader, and what `register_reader` noted of it."""
        if self.book.detach(reader):
            self.questions.left_by(reader)

    def register_reader(
        self, reader: Hashable, *, can_be_asked: bool, knows_limits: bool, waits_for_turn: bool = False
    ) -> None:
        """Note what a reader can be asked, which decides how long an open approval waits.

        `knows_limits` if its client knows the event `limit_reached`; `waits_for_turn` if it is a call that waits
        for the end of the turn, whose client cannot answer meanwhile.
        """
        self.questions.read_by(reader, can_be_asked=can_be_asked, full=knows_limits, only_waits=waits_for_turn)

    def unregister_reader(self, reader: Hashable) -> None:
        """Undo `register_reader`; what was delivered to the client stays open there."""
        self.questions.left_by(reader)

    def note_poll(self, *, can_answer: bool) -> None:
        """Note a client that polls, and so counts as a reader for a while; `can_answer` if it is offered
        `approvalAnswer`."""
        self.questions.read_once(can_answer=can_answer)

    async def wait_beyond(self, position: Seq) -> None:
        """Return when the log has an entry behind `position`, or the server ends.

        Raises:
            UnknownConversation: it was deleted.
        """
        while self.log.durable <= position and not self._closing.is_set():
            if self.is_deleted:
                raise self.lost or UnknownConversation(self.id)
            await self.book.wait_beyond(position)

    # --- messages ----------------------------------------------------------------------

    async def submit(
        self,
        content: tuple[InputItem, ...],
        *,
        message_id: MessageId | None = None,
        parent_id: MessageId | None = None,
        event_id: EventId | None = None,
        wanted: SettingsOverrides | None = None,
        deadline: Deadline | None = None,
        accepted: Callable[[Accepted], None],
    ) -> None:
        """Take a message: it starts a turn, or joins the one that runs.

        With `parent_id` it begins a branch behind that message; `wanted` are settings that hold
        from this message on. Other processes are waited for until `deadline`, by default for `CALL_SECONDS`.
        `accepted` is called when the message is written down and before any reader sees it.

        Raises:
            MessageIdTaken: the id stands for another message.
            ParentUnknown: no message has the id of the parent.
            TurnIsRunning: a branch can begin only while none runs.
            UnsupportedContent: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server ends.
            RemoteRefusal: the process that runs a turn refuses it.
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
            turn = None if answer.event_id is None else self.sharing.their_turn(answer.event_id, answer.first)
            accepted(Accepted(message.message_id, turn, answer.first))

        await self.sharing.here_or_there(
            lambda until: self.here.submit(message, until, accepted=accepted),
            message,
            deadline or Deadline(CALL_SECONDS),
            answered=taken,
        )

    # --- tool servers ------------------------------------------------------------------

    def start_tool_servers(self) -> None:
        """Begin to start the tool servers of the settings in force."""
        self.tool_servers.begin(self.settings)

    async def tool_servers_started(self) -> None:
        """Return when the start of the tool servers has ended, or `stop_waiting_for_tool_servers` was called."""
        await self.tool_servers.begun()

    def stop_waiting_for_tool_servers(self) -> None:
        """Let them start in the background; failures are reported when the next turn begins."""
        self.tool_servers.stop_waiting()

    # --- approvals ---------------------------------------------------------------------

    @property
    def open_approval(self) -> Question | None:
        """The approval that waits for an answer, once it is durable."""
        return self.questions.open

    @property
    def returns_approval(self) -> bool:
        """Whether a call that waits for the turn is to be answered with the open approval."""
        return self.questions.is_returned

    @property
    def seconds_for_followers(self) -> float:
        """Seconds left in which a client of another process may begin to follow the turn."""
        return self.questions.seconds_for_followers

    def delivered_to(self, recipient: Asked) -> None:
        """Note that the open approval was sent to a client."""
        self.questions.put_to(recipient)

    def withdrawn_from(self, recipient: Asked) -> None:
        """Note that a client will not answer."""
        self.questions.forgotten_by(recipient)

    def answer_with_retry(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """Like `answer`, and repeat it while it cannot be stored: the client that gave it cannot be told."""
        return self.questions.insist(approval_id, decision, by=by, reason=reason)

    def answer(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        *,
        by: SettledBy,
        reason: str | None = None,
        deadline: Deadline | None = None,
    ) -> asyncio.Future[None]:
        """Settle a question: at once where its turn runs here, else when that has been taken over.

        The result is there when the answer is on disk. Fails with UnknownQuestion, QuestionIsSettled,
        OwnedElsewhere, ConfigError or StoreFailed, and raises none of them.
        """
        if self.turn is None:
            until = deadline or Deadline(CALL_SECONDS)
            return asyncio.ensure_future(self._answer_what_was_left(approval_id, decision, by, reason, until))
        if self._messages.are_entering:
            return asyncio.ensure_future(self._answer_after_messages(approval_id, decision, by, reason, deadline))
        try:
            return self._turns.answer(approval_id, decision, by=by, reason=reason)
        except (InvalidRequest, StoreError, ConfigError) as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _answer_after_messages(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        by: SettledBy,
        reason: str | None,
        deadline: Deadline | None,
    ) -> None:
        await self._messages.entered()
        await run_to_completion(self.answer(approval_id, decision, by=by, reason=reason, deadline=deadline))

    async def _answer_what_was_left(
        self, approval_id: ApprovalId, decision: Settlement, by: SettledBy, reason: str | None, deadline: Deadline
    ) -> None:
        wish = AnswerQuestion(
            conversation_id=self.id, approval_id=approval_id, decision=decision, by=by, reason=reason
        )
        await self.rounds.pass_by()  # what was wished for before may stand there
        await self.sharing.here_or_there(
            lambda until: self.here.answer(wish, until),
            wish,
            deadline,
            is_done=lambda: self.book.folds.ledger.settled.get(approval_id) == decision,
        )

    # --- turns -------------------------------------------------------------------------

    def interrupt(self, turn: Turn | None = None) -> None:
        """Cut the running turn short, if there is one; if `turn` is given, only that one, also elsewhere."""
        running = self.turn
        if running is not None:
            if turn is not None and turn.event_id != running.event_id:
                return
            if self._messages.are_entering:
                self._do_in_background(self._interrupt_after_messages(running))
            else:
                self._turns.interrupt()
        elif isinstance(turn, TheirTurn) and not turn.work.done():
            self._do_in_background(self._interrupt_if_possible(turn.event_id))

    def _do_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _interrupt_after_messages(self, turn: Turn) -> None:
        await self._messages.entered()
        self.interrupt(turn)

    async def _interrupt_if_possible(self, event_id: EventId) -> None:
        await self.rounds.pass_by()  # what was wished for before may stand there
        try:
            await self.interrupt_wherever(event_id)
        except ParleyError as error:
            log.warning("%s: the turn goes on: %s", self.id, error)

    async def interrupt_wherever(
        self, event_id: EventId | None = None, *, deadline: Deadline | None = None
    ) -> None:
        """As `interrupt`, also where another process has the turn, or none any more; if one is named, only that.

        Raises:
            StoreError: it cannot be taken over.
        """
        wish = InterruptTurn(conversation_id=self.id, event_id=event_id)
        await self.sharing.here_or_there(
            lambda until: self.here.interrupt(wish, until),
            wish,
            deadline or Deadline(CALL_SECONDS),
            holds_up=event_id is None,
        )

    def _turn_is_over(self, turn: Turn) -> None:
        self.sharing.let_go_of_their_turn()
        self._writing.rest_soon()
        if turn.is_left and not self._closing.is_set():
            self.sharing.catch_up()  # another process goes on with it

    # --- requests of other processes ---------------------------------------------------

    async def execute_for_peer(
        self, request: PeerRequest, deadline: Deadline, *, answered: Callable[[bytes], None]
    ) -> None:
        """Execute a request of another process; call `answered` with the encoded result before any reader sees its
        effects.

        Raises:
            OwnedElsewhere, NotOwned, LeaseLost, ShuttingDown: this process does not own the conversation.
            ParleyError: as for a client of this process.
        """
        if self.turn is None:
            raise NotOwned

        def accepted(message: Accepted) -> None:
            event_id = None if message.turn is None else message.turn.event_id
            answered(encode(Submitted(event_id=event_id, first=message.first)))

        match request:
            case Submit():
                await self.here.submit(request, deadline, accepted=accepted)
                return
            case AnswerQuestion():
                await self.here.answer(request, deadline)
            case InterruptTurn():
                await self.here.interrupt(request, deadline)
            case RenameConversation():
                await self.here.rename(request, deadline)
            case _:
                assert_never(request)
        answered(b"{}")

    # --- writing -----------------------------------------------------------------------

    async def _get_ready(self, deadline: Deadline) -> None:
        """Acquire the lease, then end or resume a turn that no process runs any more.

        Raises:
            ShuttingDown: the server ends, and whoever begins something now could not end it.
        """
        if self._closing.is_set():
            raise ShuttingDown
        await self._turns.ending_is_over(
            deadline
        )  # a message after an interrupt does not belong to the interrupted turn
        await self._neighbours.listen()
        await self.book.open(address=self._neighbours.address, until=deadline.at)
        self.sharing.follow_no_more()
        await self._turns.pick_up(deadline)
        self.sharing.let_go_of_their_turn()
        self.sharing.line.move()  # there may be a turn here now

    async def _rest(self) -> None:
        """Let others write, unless a turn runs."""
        if not self._turns.has_one:
            await self.book.close()

    # --- its life ----------------------------------------------------------------------

    async def rename(self, title: str, *, deadline: Deadline | None = None) -> None:
        """Raises StoreError."""
        wish = RenameConversation(conversation_id=self.id, title=title)
        await self.sharing.here_or_there(
            lambda until: self.here.rename(wish, until), wish, deadline or Deadline(CALL_SECONDS)
        )

    async def delete(self, *, deadline: Deadline | None = None) -> None:
        """Remove it for ever.

        Raises:
            TurnIsRunning: not while one runs.
            ShuttingDown: the server ends.
            StoreError: it cannot be.
        """
        with self.sharing.line.place() as place:
            await place.begin()
            async with self._writing.lock:
                await self.sharing.open_between_turns(deadline or Deadline(CALL_SECONDS))
                if self.state.phase is not Phase.IDLE:
                    await self._rest()
                    raise TurnIsRunning
                await self.book.delete()
        self._neighbours.tell(self.id)
        self.mark_deleted()

    def on_deleted(self, owner: Hashable, call: Callable[[], None]) -> None:
        """Have `call` called once when the conversation is deleted or lost; one callback for each owner."""
        self._on_deleted[owner] = call

    def cancel_on_deleted(self, owner: Hashable) -> None:
        """Remove the callback of an owner, if it has one."""
        self._on_deleted.pop(owner, None)

    def mark_deleted(self) -> None:
        """Tell readers and waiters that the conversation was deleted."""
        self.is_deleted = True
        self.book.wake()
        callbacks, self._on_deleted = self._on_deleted, {}
        for call in callbacks.values():
            call()

    def lose(self, lost: HomeLost) -> None:
        """End the running turn because the home is gone. Its end cannot be written."""
        self.lost = lost
        self._turns.lose(lost)
        self.sharing.lose(lost)
        self.mark_deleted()

    async def stop(self) -> None:
        """End the running turn because the server ends; return when its end is written down.

        One that waits for an answer stays open, for whoever comes.
        """
        self._turns.stop()
        self.book.wake()
        self.tool_servers.stop_waiting()
        await self.sharing.stop()
        async with self._writing.lock:
            self._turns.stop()  # a message that was being taken has begun its turn by now
        await self.tool_servers.begun()
        await self._turns.last_is_over()
        await self._writing.rested()
