"""One conversation, as clients and other processes see it: its state, and the operations on it.

A turn belongs to the conversation and not to the client that started it: clients come and go, and are known here as
readers only. Commands go through the mailbox (`mailbox.py`), which executes them in the process that owns the turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import assert_never
from uuid import uuid4

from msgspec import to_builtins

from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.conversation.approvals import PendingApproval
from parley.conversation.keys import MESSAGE
from parley.conversation.log import Entry, Log
from parley.conversation.state import Phase, State
from parley.errors import (
    HomeLost,
    LeaseLost,
    NotOwned,
    OwnerUnresponsive,
    StoreFailed,
    UnknownConversation,
)
from parley.ports.store import CALL_SECONDS, PAGE, TURN_SECONDS
from parley.runtime.approvals import OpenApprovals
from parley.runtime.commands import (
    AnswerApproval,
    AppendOutsideTurn,
    Command,
    Continue,
    Delete,
    Interrupt,
    Local,
    PeerRequest,
    Rename,
    StoreCheckpoint,
    SubmitMessage,
)
from parley.runtime.deadline import Deadline
from parley.runtime.deps import RuntimeDeps
from parley.runtime.durable_log import BETWEEN_TRIES_SECONDS, READ_BYTES, DurableLog
from parley.runtime.errors import MessageIdTaken
from parley.runtime.grants import SessionGrants
from parley.runtime.mailbox import Mailbox
from parley.runtime.message_intake import Accepted, MessageIntake
from parley.runtime.ownership import Ownership, OwnershipState
from parley.runtime.permissions import PermissionGate
from parley.runtime.readers import Reader
from parley.runtime.recipients import ApprovalRecipient, Recipients
from parley.runtime.remote_owner import FOLLOW_SECONDS
from parley.runtime.settings import ResolveSettings
from parley.runtime.tool_servers import ToolServers
from parley.runtime.turn_runner import LocalTurn, Turn, TurnRunner
from parley.wire.events import ErrorEvent, SettledBy, Settlement
from parley.wire.ids import ApprovalId, ConversationId, EventId, MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode
from parley.wire.peers import AnswerQuestion, InterruptTurn, RenameConversation, Submit, Submitted

__all__ = ["Conversation", "PeerRequest"]

log = logging.getLogger(__name__)


class Conversation:
    """The public interface of one conversation in this process."""

    def __init__(self, conversation_id: ConversationId, deps: RuntimeDeps, grants: SessionGrants) -> None:
        self.id = conversation_id
        self.grants = grants
        """What was approved for the session, and settings that no log holds, which outlive this object."""
        self._deps = deps
        self._log = DurableLog(conversation_id, deps.store, deps.clock)
        self._recipients = Recipients()
        self._approvals = OpenApprovals(
            self._log, self._recipients, clock=deps.clock, may_be_followed=deps.may_be_followed
        )
        self._tool_servers = ToolServers(deps.tools)
        self._runner = TurnRunner(
            self._log,
            deps,
            resolver=grants.resolver,
            approvals=self._approvals,
            gate=PermissionGate(self._log, self._approvals, deps.commands, grants, clock=deps.clock),
            tool_servers=self._tool_servers,
        )
        intake = MessageIntake(self._log, grants.resolver, self._runner, closing=deps.closing)
        self._ownership = Ownership(self._log, self._runner, self._approvals, self._recipients, deps.peers)
        local = Local(self._log, self._runner, intake, self._approvals, deps.peers)
        self._mailbox = Mailbox(self._ownership, local, closing=deps.closing)
        self._background: set[asyncio.Task[None]] = set()
        self._has_tried_checkpoint = False
        self.is_deleted = False
        """Whether it was deleted, or the home was lost."""
        self.lost: HomeLost | None = None
        """The reason, if the home was lost."""
        self._on_deleted: dict[Hashable, Callable[[], None]] = {}

    # --- state -------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        return self._log.log

    @property
    def state(self) -> State:
        return self._log.projections.state

    @property
    def phase(self) -> Phase:
        """The phase up to the last durable entry."""
        return self._log.phase

    @property
    def settings(self) -> Settings:
        """The settings of the next turn.

        Raises:
            ConfigError: the settings cannot be used as they are now.
        """
        return self.grants.resolver.resolved(self._log.projections.settings_history.now).settings

    @property
    def turn(self) -> LocalTurn | None:
        """The turn that runs in this process, if one does."""
        return self._runner.running

    @property
    def is_watched(self) -> bool:
        """True if a client of this process waits for entries of other processes."""
        return self._log.is_read or not self._recipients.is_empty

    @property
    def needs_polling(self) -> bool:
        """True if other processes may write to it without notifying this process."""
        return self._ownership.state not in (OwnershipState.OWNER, OwnershipState.FOLLOWING)

    @property
    def has_commands(self) -> bool:
        """True if commands of this process wait or are being executed."""
        return self._mailbox.has_commands

    @property
    def is_closing(self) -> bool:
        """True if the server shuts down."""
        return self._deps.closing.is_set()

    @property
    def is_evictable(self) -> bool:
        """True if the conversation can be removed from memory without any client noticing."""
        return not (
            self._ownership.state in (OwnershipState.OWNER, OwnershipState.FOLLOWING)
            or self.is_watched
            or not self._mailbox.is_empty
            or self._background
            or self._tool_servers.is_starting
            or self._log.projections.state.phase is Phase.RUNNING
        )

    async def create(self, wanted: SettingsOverrides, chosen: ResolvedSettings) -> None:
        """Store it as a new conversation.

        Raises:
            StoreFailed: nothing was stored.
        """
        await self._log.create(self.grants.resolver.record(wanted, chosen))
        self.grants.resolver.remember(self._log.projections.settings_history.now, wanted, chosen)

    # --- reading -----------------------------------------------------------------------

    async def observe(self) -> None:
        """Wait until the log is current, and an unfinished turn is followed or recovered.

        Waits at most `FOLLOW_SECONDS` for a process that does not answer.

        Raises:
            UnknownConversation: it does not exist, or was deleted.
            StoreError: it cannot be read.
        """
        match self._ownership.state:
            case OwnershipState.OWNER:
                return
            case OwnershipState.FOLLOWING:
                await self._catch_up()
                return
            case _:
                pass
        current = self.reconcile()
        await asyncio.wait({current}, timeout=FOLLOW_SECONDS)
        if current.done():
            current.result()
            self._store_checkpoint()
        else:  # commands before it wait for a process that does not answer
            await self._ownership.read_new()

    def _store_checkpoint(self) -> None:
        """Store the checkpoint of a long log that has none, unless another process writes now."""
        if self._log.lacks_checkpoint and self._log.phase is Phase.IDLE and not self._has_tried_checkpoint:
            self._has_tried_checkpoint = True
            stored = self._mailbox.post(StoreCheckpoint(Deadline(0.0)))
            stored.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _catch_up(self) -> None:
        """Wait until the followed log has all entries that are stored now."""
        head = await self._deps.store.head(self.id)
        ownership = self._ownership
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                while ownership.state is OwnershipState.FOLLOWING and self.log.durable < head.last:
                    if self._deps.closing.is_set():
                        return
                    await self._log.wait_beyond(self.log.durable)
        except TimeoutError:
            ownership.stop_following()
        if ownership.state is not OwnershipState.FOLLOWING:
            await ownership.read_new()

    def reconcile(self) -> asyncio.Future[None]:
        """Schedule a read of the log, after which an unfinished turn is followed or recovered."""
        current = self._mailbox.reconcile()
        current.add_done_callback(self._reconciled)
        return current

    def _reconciled(self, current: asyncio.Future[None]) -> None:
        if not current.cancelled() and isinstance(error := current.exception(), UnknownConversation):
            log.debug("%s", error)
            self.mark_deleted()

    async def read_after(self, after: Seq, *, limit: int = PAGE, max_bytes: int = READ_BYTES) -> Sequence[Entry]:
        """Return a page of the durable entries after a position; none if there are none.

        A page has at most `limit` entries, and ends with the entry that makes it larger than `max_bytes`.

        Raises:
            StoreError: it cannot be read, or was deleted.
        """
        return await self._log.read_after(after, limit=limit, max_bytes=max_bytes)

    async def read_before(self, before: Seq, *, limit: int = PAGE, max_bytes: int = READ_BYTES) -> Sequence[Entry]:
        """Return the last durable entries before a position, in order; otherwise like `read_after`."""
        return await self._log.read_before(before, limit=limit, max_bytes=max_bytes)

    async def position_of_message(self, message_id: MessageId) -> Seq | None:
        """Return the position of a message, of any age; None if there is no such message. Raises StoreError."""
        return await self._log.position_of(MESSAGE, message_id)

    def attach(self, reader: Reader) -> None:
        """Send entries after the reader's cursor to it, from the next durable entry on."""
        self._log.attach(reader)

    def detach(self, reader: Reader) -> None:
        """Remove a reader and its registration."""
        self._log.detach(reader)
        self._approvals.unregister_reader(reader)

    def register_reader(
        self, reader: Hashable, *, can_be_asked: bool, knows_limits: bool, waits_for_turn: bool = False
    ) -> None:
        """Register what a reader can be asked. This decides how long an open approval waits.

        `knows_limits` if its client knows the event `limit_reached`; `waits_for_turn` if it is a call that waits
        for the end of the turn, whose client cannot answer meanwhile.
        """
        self._approvals.register_reader(
            reader, can_be_asked=can_be_asked, knows_limits=knows_limits, waits_for_turn=waits_for_turn
        )

    def unregister_reader(self, reader: Hashable) -> None:
        """Undo `register_reader`. An approval that was delivered to the client stays open there."""
        self._approvals.unregister_reader(reader)

    def note_poll(self, *, can_answer: bool) -> None:
        """Count a client that polls as a reader for a while; `can_answer` if it is offered `approvalAnswer`."""
        self._approvals.note_poll(can_answer=can_answer)

    async def wait_beyond(self, position: Seq) -> None:
        """Wait until the log has an entry after `position`, or the server shuts down.

        Raises:
            UnknownConversation: it was deleted.
        """
        while self.log.durable <= position and not self._deps.closing.is_set():
            if self.is_deleted:
                raise self.lost or UnknownConversation(self.id)
            await self._log.wait_beyond(position)

    # --- commands ----------------------------------------------------------------------

    async def _execute(self, command: Command) -> None:
        """Wait until a command is executed and durable."""
        try:
            await self._mailbox.post(command)
        except UnknownConversation:
            self.mark_deleted()
            raise

    async def submit(
        self,
        content: tuple[InputItem, ...],
        *,
        message_id: MessageId | None = None,
        parent_id: MessageId | None = None,
        ignores_unknown_parent: bool = False,
        event_id: EventId | None = None,
        wanted: SettingsOverrides | None = None,
        resolve: ResolveSettings | None = None,
        deadline: Deadline | None = None,
        accepted: Callable[[Accepted], None],
    ) -> None:
        """Accept a message: it starts a turn, or joins the one that runs.

        With `parent_id` it begins a branch after that message; `wanted` are settings that hold from this message
        on, and `resolve` resolves the settings of a turn that it begins. Other processes are waited for until
        `deadline`, by default for `CALL_SECONDS`. `accepted` is called when the message is durable, before any
        reader sees it.

        Raises:
            MessageIdTaken: the id belongs to another message.
            ParentUnknown: no message has the id of the parent.
            TurnIsRunning: a branch can begin only between turns.
            UnsupportedContent: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server shuts down.
            RemoteRefusal: the process that runs the turn refuses it.
            StoreError: it cannot be stored.
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
        await self._execute(
            SubmitMessage(
                message,
                deadline or Deadline(CALL_SECONDS),
                accepted=accepted,
                resolve=resolve,
                ignores_unknown_parent=ignores_unknown_parent,
            )
        )

    async def continue_turn(
        self,
        *,
        resolve: ResolveSettings | None = None,
        deadline: Deadline | None = None,
        began: Callable[[LocalTurn], None],
    ) -> None:
        """Begin a turn without a message, after one that was interrupted, stopped or restarted, or that failed.

        `began` is called when its start is durable, before any reader sees it.

        Raises:
            TurnIsRunning, NothingToContinue: there is nothing to continue.
            ConfigError, ShuttingDown, StoreError: it cannot begin now.
        """
        await self._execute(Continue(deadline or Deadline(CALL_SECONDS), began=began, resolve=resolve))

    async def interrupt_unfinished(self, *, deadline: Deadline | None = None) -> None:
        """Interrupt the unfinished turn, if there is one, in any process.

        Raises:
            StoreError: it cannot be taken over.
        """
        wanted = InterruptTurn(conversation_id=self.id)
        await self._execute(Interrupt(wanted, deadline or Deadline(CALL_SECONDS)))

    def interrupt(self, turn: Turn | None = None) -> None:
        """Interrupt the turn that runs in this process, or the given turn in any process. Does not wait."""
        if turn is None and (turn := self._runner.running) is None:
            return
        if turn.work.done():
            return
        wanted = InterruptTurn(conversation_id=self.id, event_id=turn.event_id)
        done = self._mailbox.post(Interrupt(wanted, Deadline(CALL_SECONDS)))
        done.add_done_callback(self._interrupted)

    def _interrupted(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("%s: the turn continues: %s", self.id, error)

    async def rename(self, title: str, *, deadline: Deadline | None = None) -> None:
        """Set the title. Raises StoreError."""
        wanted = RenameConversation(conversation_id=self.id, title=title)
        await self._execute(Rename(wanted, deadline or Deadline(CALL_SECONDS)))

    async def delete(self, *, deadline: Deadline | None = None) -> None:
        """Delete it.

        Raises:
            TurnIsRunning: a turn is unfinished.
            ShuttingDown: the server shuts down.
            StoreError: it cannot be deleted.
        """
        await self._execute(Delete(deadline or Deadline(CALL_SECONDS)))
        self._deps.peers.announce(self.id)
        self.mark_deleted()

    async def execute_for_peer(
        self, request: PeerRequest, deadline: Deadline, *, answered: Callable[[bytes], None]
    ) -> None:
        """Execute a request of another process; call `answered` with the encoded result before any reader sees its
        effects.

        Raises:
            NotOwned, LeaseLost, ShuttingDown: this process does not own the conversation.
            ParleyError: as for a client of this process.
        """
        if self.turn is None:
            raise NotOwned

        def accepted(message: Accepted) -> None:
            event_id = None if message.turn is None else message.turn.event_id
            answered(encode(Submitted(event_id=event_id, first=message.first)))

        command: Command
        match request:
            case Submit():
                await self._execute(SubmitMessage(request, deadline, accepted=accepted, is_from_peer=True))
                return
            case AnswerQuestion():
                command = AnswerApproval(request, deadline, is_from_peer=True)
            case InterruptTurn():
                command = Interrupt(request, deadline, is_from_peer=True)
            case RenameConversation():
                command = Rename(request, deadline, is_from_peer=True)
            case _:
                assert_never(request)
        await self._execute(command)
        answered(b"{}")

    # --- tool servers ------------------------------------------------------------------

    def start_tool_servers(self) -> None:
        """Begin to start the tool servers of the settings in force."""
        self._tool_servers.begin(self.settings, self._append_outside_turn)

    async def _append_outside_turn(self, event: ErrorEvent) -> None:
        await self._execute(AppendOutsideTurn(event, Deadline(TURN_SECONDS)))

    async def tool_servers_started(self) -> None:
        """Wait until the start of the tool servers has ended, or `stop_waiting_for_tool_servers` was called."""
        await self._tool_servers.begun()

    def stop_waiting_for_tool_servers(self) -> None:
        """Let the tool servers start in the background; failures are reported when the next turn begins."""
        self._tool_servers.stop_waiting()

    # --- approvals ---------------------------------------------------------------------

    @property
    def open_approval(self) -> PendingApproval | None:
        """The approval that waits for an answer, once it is durable."""
        return self._approvals.open

    def approval_to_deliver(self) -> PendingApproval | None:
        """Return the open approval. Clients are told of earlier settlements first."""
        return self._approvals.to_deliver()

    def has_approval(self, approval_id: ApprovalId) -> bool:
        """Return whether an approval is or was part of this conversation, according to the entries in memory."""
        return approval_id in self._approvals

    @property
    def returns_approval(self) -> bool:
        """True if a call that waits for the turn gets the open approval as its result."""
        return self._approvals.is_returned

    @property
    def seconds_for_followers(self) -> float:
        """Seconds left for a client of another process to begin to follow the turn."""
        return self._approvals.seconds_for_followers

    def delivered_to(self, recipient: ApprovalRecipient) -> None:
        """Record that the open approval was sent to a client."""
        self._approvals.delivered_to(recipient)

    def withdrawn_from(self, recipient: ApprovalRecipient) -> None:
        """Record that a client will not answer."""
        self._approvals.withdrawn_from(recipient)

    def answer(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        *,
        by: SettledBy,
        reason: str | None = None,
        deadline: Deadline | None = None,
    ) -> asyncio.Future[None]:
        """Settle an approval, in whichever process its turn is. The future is done when the settlement is durable.

        The future fails with UnknownApproval, ApprovalIsSettled, ConfigError or StoreError; this method itself
        raises none of them.
        """
        return self._post(self._answer(approval_id, decision, by, reason), deadline)

    def _answer(
        self, approval_id: ApprovalId, decision: Settlement, by: SettledBy, reason: str | None
    ) -> AnswerQuestion:
        return AnswerQuestion(
            conversation_id=self.id,
            approval_id=approval_id,
            decision=decision,
            by=by,
            reason=reason,
            answer_id=str(uuid4()),
        )

    def _post(self, answer: AnswerQuestion, deadline: Deadline | None = None) -> asyncio.Future[None]:
        return self._mailbox.post(AnswerApproval(answer, deadline or Deadline(CALL_SECONDS)))

    def answer_with_retry(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """Answer an approval as `answer` does, but retry while the answer cannot be stored, because the client
        cannot be told that it failed.
        """
        answer = self._answer(approval_id, decision, by, reason)
        return self._in_background(self._repeat(answer, self._post(answer)))

    async def _repeat(self, answer: AnswerQuestion, answered: asyncio.Future[None]) -> None:
        while True:
            try:
                return await answered
            except HomeLost:
                raise
            except (StoreFailed, LeaseLost, OwnerUnresponsive) as error:
                log.warning("an answer is not stored yet: %s", error)
                await self._deps.clock.sleep(BETWEEN_TRIES_SECONDS)
                answered = self._post(answer)

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # --- the end -----------------------------------------------------------------------

    def on_deleted(self, owner: Hashable, call: Callable[[], None]) -> None:
        """Call `call` once when the conversation is deleted or lost. Each owner has one callback."""
        self._on_deleted[owner] = call

    def cancel_on_deleted(self, owner: Hashable) -> None:
        """Remove the callback of an owner, if it has one."""
        self._on_deleted.pop(owner, None)

    def mark_deleted(self) -> None:
        """Tell readers and waiters that the conversation was deleted."""
        self.is_deleted = True
        self._ownership.mark_gone()
        self._log.wake()
        callbacks, self._on_deleted = self._on_deleted, {}
        for call in callbacks.values():
            call()

    def lose(self, lost: HomeLost) -> None:
        """Stop the running turn because the home was lost. Its end cannot be stored."""
        self.lost = lost
        self._runner.lose(lost)
        self._mailbox.lose(lost)
        self.mark_deleted()

    async def stop(self) -> None:
        """End the running turn because the server shuts down; return when its end is durable.

        A turn that waits for an answer is handed over to a later process.
        """
        self._runner.stop()
        self._log.wake()
        self._tool_servers.stop_waiting()
        await self._mailbox.stop()
        self._runner.stop()  # a message that was being accepted has started its turn by now
        await self._tool_servers.begun()
        await self._runner.over()
        await asyncio.sleep(0)  # the end of the turn wakes the mailbox
        await self._mailbox.at_rest()
