"""The commands of one conversation, and their effects in the process that owns the conversation.

A command to which the owner has not responded is sent again. Each command is therefore idempotent: messages and
answers have ids, an interrupt names its turn, and a title replaces the previous title. `Command.apply` never waits.
The future that `apply` returns is done when the entries of the command are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import ClassVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from parley.conversation.errors import EarlierEntriesNeeded, ParentUnknown
from parley.conversation.keys import MESSAGE, QUEUED, SETTLED
from parley.conversation.log import Entry, LogPayload
from parley.conversation.records import ApprovalSettlement, Renamed
from parley.conversation.settings_history import SettingsChange
from parley.conversation.state import Phase
from parley.errors import OwnerUnresponsive, ShuttingDown, StoreFailed
from parley.ports.nodes import WorkingDirectory
from parley.runtime.approvals import OpenApprovals
from parley.runtime.deadline import Deadline
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import TurnIsRunning
from parley.runtime.message_intake import Accepted, MessageIntake
from parley.runtime.message_queue import MessageQueue
from parley.runtime.peer_registry import PeerRegistry
from parley.runtime.settings import NODE, ResolveSettings
from parley.runtime.turn_runner import LocalTurn, RemoteTurn, TurnRunner
from parley.wire.ids import START, EventId, MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.peers import (
    CompactHistory,
    ContinueTurn,
    EditQueued,
    Enqueue,
    InterruptTurn,
    RemoveQueued,
    RenameConversation,
    ResumeQueue,
    SettleApproval,
    Submit,
    Submitted,
)
from parley.wire.principals import PrincipalRef

__all__ = [
    "AnswerApproval",
    "AppendOutsideTurn",
    "Command",
    "Compact",
    "Continue",
    "Delete",
    "Interrupt",
    "LocalConversation",
    "MoveTurn",
    "Observe",
    "PeerRequest",
    "PlacedRequest",
    "Rename",
    "StoreCheckpoint",
    "SubmitMessage",
]

PeerRequest = (
    SettleApproval | EditQueued | Enqueue | InterruptTurn | RemoveQueued | RenameConversation | ResumeQueue | Submit
)
"""A request that a process sends to the owner of a conversation."""
PlacedRequest = Submit | Enqueue | ResumeQueue | ContinueTurn | CompactHistory
"""A request to begin a turn. A node sends the request to the node that has the working directory."""


OpenRemoteTurn = Callable[[EventId, Seq], RemoteTurn]


class LocalConversation(Struct, frozen=True):
    """The parts of a conversation that commands read and change in the process that owns the conversation."""

    log: DurableLog
    runner: TurnRunner
    intake: MessageIntake
    queue: MessageQueue
    approvals: OpenApprovals
    peers: PeerRegistry


class Command:
    """The base class of the operations that the mailbox executes on a conversation."""

    needs_turn: ClassVar = False
    """True if the command has an effect only on an unfinished turn. If there is no such turn, the command is
    applied without the lease.
    """
    waits_for_write_lock: ClassVar = False
    """True if a command that arrives during a turn waits for the store's write lock before it is applied. If the
    command's write waited in the store's queue instead, later writes of the turn would be queued after it, and
    would fail when the command's deadline expires.
    """
    starts_turn: ClassVar = False
    """True if the command may begin a turn. Such a command waits until the end of the previous turn is durable."""
    applies_while_closing: ClassVar = False
    """True if the command is applied even while the server is shutting down. Other commands then fail with
    `ShuttingDown`.
    """

    def __init__(self, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        self.deadline = deadline
        """The deadline after which the command fails if no process has executed it."""
        self.is_from_peer = is_from_peer
        """True if another process sent the command. Such a command fails with `NotOwned` if this process is not the
        owner.
        """
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_fresh = False
        """True if this process has read the log from the store after the command arrived."""
        self.is_writable = False
        """True if the store has been writable at any time since the command arrived. The command then no longer
        waits for the write lock.
        """
        self.is_executed = False
        """True if this process has executed the command. The effects of the command may not be durable yet."""
        self.was_refused = False
        """True if the process to which the command was last sent has responded that it is not the owner."""
        self.unanswered: OwnerUnresponsive | None = None
        """The error that names the process to which the command was sent and which has not responded; None if there
        is no such process. That process may still execute the command.
        """
        self.is_placed = is_from_peer
        """True if this node was chosen to run the turn that the command begins, or if another process sent the
        command. No node has to be chosen then.
        """
        self.refused_by: set[str] = set()
        """The ids of the nodes that have refused the command or could not be reached."""

    @property
    def has_failed(self) -> bool:
        """True if the future of the command has an error. The owner may still execute the command."""
        return self.done.done() and not self.done.cancelled() and self.done.exception() is not None

    def succeed(self) -> None:
        """Complete the future of the command. Do nothing if the future is already done."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException, *, is_closing: bool) -> None:
        """Set `error` on the future of the command. Do nothing if the future is already done.

        `is_closing` is True if the server is shutting down. An error that may result from the shutdown is then
        replaced. If another process has not responded to the command, the new error is `OwnerUnresponsive`.
        Otherwise, the new error is `ShuttingDown`, except that a `StoreFailed` error is not replaced.
        """
        if self.done.done():
            return
        if is_closing and isinstance(error, ShuttingDown | StoreFailed | OwnerUnresponsive):
            error = self.unanswered or (error if isinstance(error, StoreFailed) else ShuttingDown())
        self.done.set_exception(error)

    def directory(self, local: LocalConversation) -> WorkingDirectory:
        """Return the working directory of the turn that the command begins or resumes. The working directory
        determines the node that runs the turn.
        """
        return _directory_in(local.log.projections.settings_history.now, local)

    def placed_request(self, local: LocalConversation) -> PlacedRequest | None:
        """Return the request that begins the turn on the node that has the working directory. Return None if that
        node only has to take over the conversation.
        """
        return None

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        """Execute the command in this process.

        Return a future that is done when the entries of the command are durable. Return None if the command has
        appended no entries.

        Raises:
            ParleyError: the command cannot be executed. The caller of the command gets this error.
        """
        raise NotImplementedError  # `Delete` and `MoveTurn` have no `apply`: the mailbox executes them itself

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> PeerRequest | None:
        """Return the request to send to the owner; None if nothing has to be sent.

        `unanswered` contains the ids of the messages that were sent to the owner before this command and to which
        the owner has not responded yet. An interrupt contains these ids, and interrupts the turn that handles one
        of these messages.
        """
        return None

    def answered(self, result: Raw, remote_turn: OpenRemoteTurn) -> None:
        """Report `result`, the result that the owner has sent for the command, to the caller of the command. This
        method is called before any reader sees the effects of the command.

        `remote_turn` returns the object for the turn that handles a message in another process. Its arguments are
        the id of the turn and the position of the first entry of the message.
        """

    def is_repeated(self, local: LocalConversation) -> bool:
        """Return whether an earlier command with the same id has already been executed.

        A repeated command succeeds when the effects of the first execution are durable.
        """
        return False

    def needs_lookup(self, local: LocalConversation) -> bool:
        """Return whether the command refers to an entry that is not in memory and may be in the store."""
        return False

    async def look_up(self, local: LocalConversation) -> None:
        """Load the entry that the command refers to from the store.

        Raises:
            StoreError: the store cannot be read.
        """

    def needs_files(self, local: LocalConversation) -> bool:
        """Return whether the command names files that must be read before the command is applied."""
        return False

    async def read_files(self, local: LocalConversation) -> None:
        """Read the files that the command names.

        Raises:
            InvalidRequest: a file cannot be read or used.
            ConfigError: the settings cannot be used.
        """


class Observe(Command):
    """Brings the log up to date, and follows or recovers an unfinished turn."""

    needs_turn = True

    def apply(self, local: LocalConversation) -> None:
        return None


class SubmitMessage(Command):
    """Accepts a message, which begins a turn or joins the running turn."""

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
        """Create the command.

        `accepted` is called when the message becomes durable. `resolve` resolves the settings of a turn that the
        message begins; the default is the function that the conversation used last. If `ignores_unknown_parent` is
        True, an unknown parent id is ignored and raises no error. `is_from_peer` is True if another process sent
        the command.
        """
        super().__init__(deadline, is_from_peer=is_from_peer)
        self.message, self.resolve = message, resolve
        self.files: tuple[InputItem, ...] | None = None
        """The content of the message, including the images that it names; None until the files have been read."""
        self._accepted, self._ignores_unknown_parent = accepted, ignores_unknown_parent
        self.stored: Entry | None = None
        """The entry of a message with the same id, if it is in the store and not in memory; otherwise None."""
        self.queued: Entry | None = None
        """The record that queued a message with the same id, if the record is in the store and not in memory;
        otherwise None.
        """
        self._has_stored_parent = False
        self._searched_up_to = START
        """The last position of the log when the command last searched the store for the ids of its message and its
        parent. The command searches again only if entries after this position are no longer in memory.
        """

    def needs_lookup(self, local: LocalConversation) -> bool:
        log = local.log
        known = log.projections.state.messages.keys() | log.queue.known.keys()
        if log.log.base > self._searched_up_to and not self._ids(local) <= known:
            return True
        return self._has_stored_parent and self._needs_fold(local)

    def _ids(self, local: LocalConversation) -> set[MessageId]:
        """Return the ids of the messages that the command looks up: the message itself and its parent."""
        ids = {self.message.message_id}
        if self.message.parent_id not in (None, MessageId(local.log.id)):
            ids.add(self.message.parent_id)
        return ids

    def _needs_fold(self, local: LocalConversation) -> bool:
        """Return whether the projections must be computed from the first entry of the log, because the message
        begins a branch at a message that is not in the projections in memory.
        """
        parent, log = self.message.parent_id, local.log
        if parent is None or not log.is_owner or log.projections.state.phase is not Phase.IDLE:
            return False
        return not log.projections.knows(parent)

    async def look_up(self, local: LocalConversation) -> None:
        log, last = local.log, local.log.log.durable
        if log.log.base > self._searched_up_to:
            found = {one: await log.position_of(MESSAGE, one) for one in self._ids(local)}
            position = found.pop(self.message.message_id)
            self.stored = None if position is None else await log.entry_at(position)
            queued = await log.position_of(QUEUED, self.message.message_id)
            self.queued = None if queued is None else await log.entry_at(queued)
            self._has_stored_parent = any(one is not None for one in found.values())
            self._searched_up_to = last
        if self._has_stored_parent and self._needs_fold(local):
            await log.fold_whole()

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        self._check_parent(local)
        return local.intake.accept(
            self.message,
            read=self.files,
            stored=self.stored,
            queued=self.queued,
            until=self.deadline.at,
            accepted=self.accepted,
            resolve=self.resolve,
        )

    def accepted(self, message: Accepted) -> None:
        """Report the durable message to the caller of the command, unless the command has already failed."""
        if not self.has_failed:
            self._accepted(message)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> Submit | Enqueue:
        self._check_parent(local)
        return self.message

    def directory(self, local: LocalConversation) -> WorkingDirectory:
        if self.message.wanted is not None and str(self.message.wanted.get("cwd") or "").startswith("/"):
            return WorkingDirectory(path=str(self.message.wanted["cwd"]))
        history = local.log.projections.settings_history
        try:
            return _directory_in(history.after(self.message.parent_id, local.log.id), local)
        except (ParentUnknown, EarlierEntriesNeeded):
            return _directory_in(history.now, local)  # the node that executes the command checks the parent

    def placed_request(self, local: LocalConversation) -> Submit | Enqueue:
        return self.request(local, ())

    def needs_files(self, local: LocalConversation) -> bool:
        return self.files is None and local.intake.needs_files(self.message)

    async def read_files(self, local: LocalConversation) -> None:
        self.files = await local.intake.read_files(
            self.message, stored=self.stored, queued=self.queued, resolve=self.resolve
        )

    def _check_parent(self, local: LocalConversation) -> None:
        """If unknown parents are ignored and the parent of the message does not exist, remove the parent id from
        the message (docs/protocol.md#messages).
        """
        parent, known = self.message.parent_id, local.log.projections.state.messages
        if not self._ignores_unknown_parent or self._has_stored_parent:
            return
        if parent not in (None, MessageId(local.log.id)) and parent not in known:
            self.message = replace(self.message, parent_id=None)

    def is_repeated(self, local: LocalConversation) -> bool:
        return local.intake.is_known(self.message)

    def answered(self, result: Raw, remote_turn: OpenRemoteTurn) -> None:
        answer = msgspec.json.decode(result, type=Submitted)
        turn = None if answer.event_id is None else remote_turn(answer.event_id, answer.first)
        self.accepted(Accepted(self.message.message_id, turn, answer.first, is_queued=answer.is_queued))


class Continue(Command):
    """Begins a turn without a message, after a turn that was interrupted or failed.

    The command fails with `TurnIsRunning` if a turn is unfinished in this or in another process.
    """

    starts_turn = waits_for_write_lock = True

    def __init__(
        self,
        principal: PrincipalRef,
        deadline: Deadline,
        *,
        began: Callable[[LocalTurn | None], None],
        resolve: ResolveSettings | None,
    ) -> None:
        """Create the command.

        `began` is called when the start of the turn is durable. The argument of `began` is the turn; it is None if
        another node runs the turn. `resolve` resolves the settings of the turn; the default is the function that
        the conversation used last.
        """
        super().__init__(deadline)
        self._principal, self._began, self._resolve = principal, began, resolve

    def apply(self, local: LocalConversation) -> asyncio.Future[None]:
        return local.intake.continue_turn(
            self._principal, until=self.deadline.at, began=self._report, resolve=self._resolve
        )

    def _report(self, turn: LocalTurn | None) -> None:
        if not self.has_failed:
            self._began(turn)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> None:
        raise TurnIsRunning

    def placed_request(self, local: LocalConversation) -> ContinueTurn | CompactHistory:
        return ContinueTurn(conversation_id=local.log.id, principal=self._principal)

    def answered(self, result: Raw, remote_turn: OpenRemoteTurn) -> None:
        self._began(None)


class Compact(Continue):
    """Begins a turn that replaces the history with a summary.

    The command fails with `TurnIsRunning` if a turn is unfinished in this or in another process.
    """

    def apply(self, local: LocalConversation) -> asyncio.Future[None]:
        return local.intake.compact(
            self._principal, until=self.deadline.at, began=self._report, resolve=self._resolve
        )

    def placed_request(self, local: LocalConversation) -> CompactHistory:
        return CompactHistory(conversation_id=local.log.id, principal=self._principal)


class AnswerApproval(Command):
    """Settles an approval. The command has no effect if the same answer, identified by its `answer_id`, has already
    been applied.
    """

    needs_turn = applies_while_closing = True

    def __init__(self, answer: SettleApproval, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._answer = answer
        self._searched_up_to = START

    def needs_lookup(self, local: LocalConversation) -> bool:
        is_known = self._answer.approval_id in local.approvals
        return local.log.log.base > self._searched_up_to and not is_known

    async def look_up(self, local: LocalConversation) -> None:
        last = local.log.log.durable
        if (position := await local.log.position_of(SETTLED, self._answer.approval_id)) is not None:
            entry = await local.log.entry_at(position)
            settled = msgspec.json.decode(entry.encoded, type=ApprovalSettlement)
            local.log.projections.approvals.add_settlement(settled, at=entry.at)
        self._searched_up_to = last

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        return None if self.is_repeated(local) else local.runner.answer(self._answer, until=self.deadline.at)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> SettleApproval:
        return self._answer

    def is_repeated(self, local: LocalConversation) -> bool:
        return self._answer.answer_id in local.log.projections.approvals.answer_ids


class Interrupt(Command):
    """Interrupts a turn.

    When the command is first sent to the owner, the command stores the id of the unfinished turn. If the command is
    sent again, it therefore cannot interrupt a later turn.
    """

    needs_turn = applies_while_closing = True

    def __init__(self, request: InterruptTurn, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._request = request

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        state, request = local.log.projections.state, self._request
        is_any = request.event_id is None and not request.messages
        if is_any and local.log.is_owner and local.queue.is_pending:
            # A queued message is about to begin a turn.
            return local.queue.pause(principal=request.principal, until=self.deadline.at)
        if is_any or request.event_id == state.event_id or any(one in state.inputs for one in request.messages):
            local.runner.interrupt(principal=request.principal)
        return None

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> InterruptTurn | None:
        state = local.log.projections.state
        if self._request.event_id is None and not self._request.messages:
            event_id = None if state.phase is Phase.IDLE else state.event_id
            self._request = replace(self._request, event_id=event_id, messages=tuple(unanswered))
        is_named = self._request.event_id is not None or self._request.messages
        return self._request if is_named else None


class Rename(Command):
    """Sets the title of the conversation."""

    waits_for_write_lock = True

    def __init__(self, request: RenameConversation, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._request = request

    def apply(self, local: LocalConversation) -> asyncio.Future[None]:
        def announce() -> None:
            local.peers.announce(local.log.id)

        return local.log.write(Renamed(title=self._request.title), on_durable=announce, until=self.deadline.at)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> RenameConversation:
        return self._request


class AppendOutsideTurn(Command):
    """Appends an entry that belongs to no turn, such as the failure of a tool server."""

    waits_for_write_lock = True

    def __init__(self, payload: LogPayload, deadline: Deadline) -> None:
        super().__init__(deadline)
        self._payload = payload

    def apply(self, local: LocalConversation) -> asyncio.Future[None]:
        return local.log.write(self._payload, until=self.deadline.at)


class StoreCheckpoint(Command):
    """Makes this process store a checkpoint of a long log. To apply the command, the mailbox acquires the lease
    with `DurableLog.acquire`, which stores the checkpoint. Therefore, `apply` does nothing.
    """

    def apply(self, local: LocalConversation) -> None:
        return None


class Delete(Command):
    """Deletes the conversation. The command fails with `TurnIsRunning` if a turn is unfinished."""


class MoveTurn(Command):
    """Lets another node continue a turn that waits for an approval. The command has no effect if no other node can
    run the turn.
    """


def _directory_in(change: SettingsChange, local: LocalConversation) -> WorkingDirectory:
    if (repository := _repository_in(change)) is not None:
        last = local.log.projections.workspace
        node = last.node if last is not None and isinstance(last.node, str) else None
        return WorkingDirectory(path="", repository=repository, node=node)
    home = change.asked.get(NODE)
    return WorkingDirectory(path=str(change.asked.get("cwd") or ""), node=home if isinstance(home, str) else None)


def _repository_in(change: SettingsChange) -> str | None:
    """Return the repository that applies after `change`: the repository in `change`, or in the newest change before
    it that names a repository. Return None if no change names a repository.
    """
    step: SettingsChange | None = change
    while step is not None:
        if isinstance(named := step.asked.get("repository"), str):
            return named
        step = step.before
    return None
