"""The commands of one conversation, and their effects in the process that owns it.

A command is executed again if its owner did not answer, so each command is idempotent. A message and an answer have
an id, an interrupt names its turn, and a title is simply set. Applying a command never waits; the future that it
returns is done when its entries are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import ClassVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from parley.conversation.keys import MESSAGE, SETTLED
from parley.conversation.log import Entry, LogPayload
from parley.conversation.records import QuestionSettled, Renamed
from parley.conversation.state import Phase
from parley.errors import OwnerUnresponsive, TurnIsRunning
from parley.runtime.approvals import OpenApprovals
from parley.runtime.deadline import Deadline
from parley.runtime.durable_log import DurableLog
from parley.runtime.message_intake import Accepted, MessageIntake
from parley.runtime.peer_registry import PeerRegistry
from parley.runtime.settings import ResolveSettings
from parley.runtime.turn_runner import LocalTurn, RemoteTurn, TurnRunner
from parley.wire.ids import START, EventId, MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.peers import AnswerQuestion, InterruptTurn, RenameConversation, Submit, Submitted

__all__ = [
    "AnswerApproval",
    "AppendOutsideTurn",
    "Command",
    "Continue",
    "Delete",
    "Interrupt",
    "Local",
    "Observe",
    "PeerRequest",
    "Rename",
    "StoreCheckpoint",
    "SubmitMessage",
]

PeerRequest = AnswerQuestion | InterruptTurn | RenameConversation | Submit
"""Requests that a process sends to the owner of a conversation."""

OpenRemoteTurn = Callable[[EventId, Seq], RemoteTurn]


class Local(Struct, frozen=True):
    """The parts of a conversation on which its owner applies commands."""

    log: DurableLog
    runner: TurnRunner
    intake: MessageIntake
    approvals: OpenApprovals
    peers: PeerRegistry


class Command:
    """One thing to do in a conversation, once."""

    needs_turn: ClassVar = False
    """True if the command concerns only an unfinished turn. If there is no such turn, it is applied without the
    lease.
    """
    waits_for_write_lock: ClassVar = False
    """True if the command, while a turn runs, waits for the write lock before it is applied."""
    starts_turn: ClassVar = False
    """True if the command begins a turn, and therefore waits for the end of an interrupted one."""
    applies_while_closing: ClassVar = False
    """True if the command is applied even while the server shuts down."""

    def __init__(self, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        self.deadline = deadline
        """When it fails if no process has executed it."""
        self.is_from_peer = is_from_peer
        """Whether another process sent it; it is refused if this process is not the owner."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_fresh = False
        """Whether the log was read after the command came."""
        self.is_writable = False
        """Whether the store could write after the command came."""
        self.was_refused = False
        """Whether the process that it was sent to last said that it is not the owner."""
        self.unanswered: OwnerUnresponsive | None = None
        """The owner that it was sent to, if that has neither executed nor refused it."""

    def apply(self, local: Local) -> asyncio.Future[None] | None:
        """Execute the command in this process. Return a future that is done when its effects are durable; None if
        it is done. Raises the error for the caller."""
        raise NotImplementedError  # only `Delete` has no `apply`: the mailbox executes it

    def request(self, local: Local, unanswered: Collection[MessageId]) -> PeerRequest | None:
        """Return the request to send to the owner; None if there is nothing to send.

        `unanswered` are messages that were sent before this command and are not answered yet.
        """
        return None

    def answered(self, result: Raw, remote_turn: OpenRemoteTurn) -> None:
        """Process the owner's answer, before any reader sees its effects."""

    def is_repeated(self, local: Local) -> bool:
        """Return whether the command was executed before. It is answered when the first execution is durable."""
        return False

    def needs_lookup(self, local: Local) -> bool:
        """Return whether the command refers to an entry that is not in memory and may be in the store."""
        return False

    async def look_up(self, local: Local) -> None:
        """Find the entry that the command refers to in the store. Raises StoreError."""


class Observe(Command):
    """Make sure that the log is current and that an unfinished turn is followed or recovered. Has no other
    effect."""

    needs_turn = True

    def apply(self, local: Local) -> None:
        return None


class SubmitMessage(Command):
    """Accept a message: it starts a turn, or joins the running one."""

    starts_turn = waits_for_write_lock = True

    def __init__(
        self,
        message: Submit,
        deadline: Deadline,
        *,
        accepted: Callable[[Accepted], None],
        resolve: ResolveSettings | None = None,
        ignores_unknown_parent: bool = False,
        is_from_peer: bool = False,
    ) -> None:
        """Create the command. `resolve` resolves the settings of a turn that the message begins; the default is
        the resolver of this process.
        """
        super().__init__(deadline, is_from_peer=is_from_peer)
        self.message, self.resolve = message, resolve
        self.files: tuple[InputItem, ...] | None = None
        """The content with the images that it names, once they are read."""
        self._accepted, self._ignores_unknown_parent = accepted, ignores_unknown_parent
        self.stored: Entry | None = None
        """The message of the same id, if it is in the store and not in memory."""
        self._has_stored_parent = False
        self._looked_up_to = START
        """The last position when the store was asked; later entries were in memory then."""

    def needs_lookup(self, local: Local) -> bool:
        log = local.log
        if log.log.base > self._looked_up_to and not self._ids(local) <= log.projections.state.messages.keys():
            return True
        return self._has_stored_parent and self._needs_fold(local)

    def _ids(self, local: Local) -> set[MessageId]:
        """Return the ids of the message and of its parent."""
        ids = {self.message.message_id}
        if self.message.parent_id not in (None, MessageId(local.log.id)):
            ids.add(self.message.parent_id)
        return ids

    def _needs_fold(self, local: Local) -> bool:
        """Return whether the message would begin a branch at a message that the projections do not know."""
        parent, log = self.message.parent_id, local.log
        if parent is None or not log.is_owner or log.projections.state.phase is not Phase.IDLE:
            return False
        return not log.projections.knows(parent)

    async def look_up(self, local: Local) -> None:
        log, last = local.log, local.log.log.durable
        if log.log.base > self._looked_up_to:
            found = {one: await log.position_of(MESSAGE, one) for one in self._ids(local)}
            position = found.pop(self.message.message_id)
            self.stored = None if position is None else await log.entry_at(position)
            self._has_stored_parent = any(one is not None for one in found.values())
            self._looked_up_to = last
        if self._has_stored_parent and self._needs_fold(local):
            await log.fold_whole()

    def apply(self, local: Local) -> asyncio.Future[None] | None:
        self._check_parent(local)
        return local.intake.accept(
            self.message,
            read=self.files,
            stored=self.stored,
            until=self.deadline.at,
            accepted=self._accepted,
            resolve=self.resolve,
        )

    def request(self, local: Local, unanswered: Collection[MessageId]) -> Submit:
        self._check_parent(local)
        return self.message

    def _check_parent(self, local: Local) -> None:
        """Drop an unknown parent of an older client (docs/protocol.md#messages)."""
        parent, known = self.message.parent_id, local.log.projections.state.messages
        if not self._ignores_unknown_parent or self._has_stored_parent:
            return
        if parent not in (None, MessageId(local.log.id)) and parent not in known:
            self.message = replace(self.message, parent_id=None)

    def is_repeated(self, local: Local) -> bool:
        return local.intake.is_known(self.message)

    def answered(self, result: Raw, remote_turn: OpenRemoteTurn) -> None:
        answer = msgspec.json.decode(result, type=Submitted)
        turn = None if answer.event_id is None else remote_turn(answer.event_id, answer.first)
        self._accepted(Accepted(self.message.message_id, turn, answer.first))


class Continue(Command):
    """Begin a turn after one that was interrupted or failed. The command is refused while another process runs a
    turn.
    """

    starts_turn = waits_for_write_lock = True

    def __init__(
        self, deadline: Deadline, *, began: Callable[[LocalTurn], None], resolve: ResolveSettings | None
    ) -> None:
        super().__init__(deadline)
        self._began, self._resolve = began, resolve

    def apply(self, local: Local) -> asyncio.Future[None]:
        return local.intake.continue_turn(until=self.deadline.at, began=self._began, resolve=self._resolve)

    def request(self, local: Local, unanswered: Collection[MessageId]) -> None:
        raise TurnIsRunning


class AnswerApproval(Command):
    """Settle an approval."""

    needs_turn = applies_while_closing = True

    def __init__(self, answer: AnswerQuestion, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._answer = answer
        self._looked_up_to = START

    def needs_lookup(self, local: Local) -> bool:
        is_known = self._answer.approval_id in local.approvals
        return local.log.log.base > self._looked_up_to and not is_known

    async def look_up(self, local: Local) -> None:
        last = local.log.log.durable
        if (position := await local.log.position_of(SETTLED, self._answer.approval_id)) is not None:
            entry = await local.log.entry_at(position)
            settled = msgspec.json.decode(entry.encoded, type=QuestionSettled)
            local.log.projections.approvals.learn(settled)
        self._looked_up_to = last

    def apply(self, local: Local) -> asyncio.Future[None] | None:
        return None if self.is_repeated(local) else local.runner.answer(self._answer, until=self.deadline.at)

    def request(self, local: Local, unanswered: Collection[MessageId]) -> AnswerQuestion:
        return self._answer

    def is_repeated(self, local: Local) -> bool:
        return self._answer.answer_id in local.log.projections.approvals.answer_ids


class Interrupt(Command):
    """Interrupt a turn. The command gets the id of the turn when it is first executed, so that a repetition
    cannot interrupt a later turn.
    """

    needs_turn = applies_while_closing = True

    def __init__(self, wanted: InterruptTurn, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._wanted = wanted

    def apply(self, local: Local) -> None:
        state, wanted = local.log.projections.state, self._wanted
        is_any = wanted.event_id is None and not wanted.messages
        if is_any or wanted.event_id == state.event_id or any(one in state.inputs for one in wanted.messages):
            local.runner.interrupt()

    def request(self, local: Local, unanswered: Collection[MessageId]) -> InterruptTurn | None:
        state = local.log.projections.state
        if self._wanted.event_id is None and not self._wanted.messages:
            event_id = None if state.phase is Phase.IDLE else state.event_id
            self._wanted = replace(self._wanted, event_id=event_id, messages=tuple(unanswered))
        is_named = self._wanted.event_id is not None or self._wanted.messages
        return self._wanted if is_named else None


class Rename(Command):
    """Set the title."""

    waits_for_write_lock = True

    def __init__(self, wanted: RenameConversation, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._wanted = wanted

    def apply(self, local: Local) -> asyncio.Future[None]:
        def announce() -> None:
            local.peers.announce(local.log.id)

        return local.log.write(Renamed(title=self._wanted.title), on_durable=announce, until=self.deadline.at)

    def request(self, local: Local, unanswered: Collection[MessageId]) -> RenameConversation:
        return self._wanted


class AppendOutsideTurn(Command):
    """Append an entry that belongs to no turn, such as the failure of a tool server."""

    waits_for_write_lock = True

    def __init__(self, payload: LogPayload, deadline: Deadline) -> None:
        super().__init__(deadline)
        self._payload = payload

    def apply(self, local: Local) -> asyncio.Future[None]:
        return local.log.write(self._payload, until=self.deadline.at)


class StoreCheckpoint(Command):
    """Acquire the lease, with which the checkpoint of a log is stored (`DurableLog.acquire`)."""

    def apply(self, local: Local) -> None:
        return None


class Delete(Command):
    """Delete the conversation, unless a turn is unfinished."""
