"""The state and the operations of one conversation, for clients and other processes.

A turn belongs to the conversation, not to the client that started the turn. This module knows clients only as
readers. Commands are put into the mailbox (`mailbox.py`), which executes them in the process that owns the
conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from uuid import uuid4

from msgspec import to_builtins

from parley.common.telemetry import telemetry
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.conversation.keys import MESSAGE, TURN
from parley.conversation.log import Entry, LogView
from parley.conversation.settings_history import SettingsChange
from parley.conversation.state import Phase, State
from parley.errors import HomeLost, NotOwned, UnknownConversation
from parley.ports.store import CALL_SECONDS, PAGE, TURN_SECONDS
from parley.runtime.approvals import OpenApprovals
from parley.runtime.commands import (
    AppendOutsideTurn,
    Command,
    Compact,
    Continue,
    Delete,
    Interrupt,
    LocalConversation,
    MoveTurn,
    PeerRequest,
    PlacedRequest,
    Rename,
    StoreCheckpoint,
    SubmitMessage,
)
from parley.runtime.conversation_approvals import ConversationApprovals
from parley.runtime.deadline import Deadline
from parley.runtime.deps import RuntimeDeps
from parley.runtime.durable_log import READ_BYTES, DurableLog
from parley.runtime.errors import MessageIdTaken
from parley.runtime.grants import SessionGrants
from parley.runtime.mailbox import Mailbox
from parley.runtime.message_intake import Accepted, MessageIntake
from parley.runtime.message_queue import MessageQueue, Waiting
from parley.runtime.open_streams import OpenStreams
from parley.runtime.ownership import Ownership, OwnershipState
from parley.runtime.peer_requests import command_for, placed_command
from parley.runtime.permissions import PermissionGate
from parley.runtime.queue_commands import EditMessage, QueueMessage, RemoveMessage, Resume
from parley.runtime.readers import Reader
from parley.runtime.recipients import Recipients
from parley.runtime.remote_owner import FOLLOW_SECONDS
from parley.runtime.settings import ResolveSettings, refuse_looser
from parley.runtime.tool_servers import ToolServers
from parley.runtime.turn_placer import TurnPlacer
from parley.runtime.turn_runner import LocalTurn, Turn, TurnRunner
from parley.wire.events import ErrorEvent, WorkspaceUpdated
from parley.wire.ids import ConversationId, EventId, MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.peers import (
    EditQueued,
    InterruptTurn,
    RemoveQueued,
    RenameConversation,
    ResumeQueue,
    Submit,
)
from parley.wire.principals import PrincipalRef

__all__ = ["Conversation", "PeerRequest", "PlacedRequest"]

log = logging.getLogger(__name__)


class Conversation:
    """The public interface of one conversation in this process."""

    def __init__(self, conversation_id: ConversationId, deps: RuntimeDeps, grants: SessionGrants) -> None:
        self.id = conversation_id
        self.grants = grants
        """The session grants, and the settings that contain secrets. They stay in memory when this object is
        evicted.
        """
        self._deps = deps
        self._log = DurableLog(
            conversation_id,
            deps.store,
            deps.clock,
            on_listing=partial(deps.activity.notify, conversation_id),
            on_attention=partial(deps.on_attention, conversation_id),
        )
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
        self._queue = MessageQueue(self._log, intake, closing=deps.closing)
        local = LocalConversation(self._log, self._runner, intake, self._queue, self._approvals, deps.peers)
        self._mailbox = Mailbox(
            self._ownership,
            local,
            placer=None if deps.placement is None else TurnPlacer(deps.placement, local),
            continues_queue=deps.continues_queues,
            clock=deps.clock,
            is_store_silent=deps.is_store_silent,
            draining=deps.draining,
            closing=deps.closing,
        )
        self.approvals = ConversationApprovals(conversation_id, self._approvals, self._mailbox, deps.clock)
        self._has_tried_checkpoint = False
        self.is_deleted = False
        """True if the conversation has been deleted or the home directory has been lost."""
        self.lost: HomeLost | None = None
        """The reason why the home directory was lost; None if it has not been lost."""
        self._on_deleted: dict[Hashable, Callable[[], None]] = {}
        self._streams = OpenStreams(deps.clock)

    # --- state -------------------------------------------------------------------------

    @property
    def log(self) -> LogView:
        """A read-only view of the log in memory."""
        return self._log.log

    @property
    def state(self) -> State:
        return self._log.projections.state

    @property
    def phase(self) -> Phase:
        """The phase of the conversation after its last durable entry."""
        return self._log.phase

    @property
    def workspace(self) -> WorkspaceUpdated | None:
        """The event that describes the newest commit in the worktree; None if the conversation has not worked in a
        repository.
        """
        return self._log.projections.workspace

    @property
    def settings(self) -> Settings:
        """The settings of the next turn.

        Raises:
            ConfigError: the settings are no longer valid.
        """
        return self.grants.resolver.resolved(self._log.projections.settings_history.now).settings

    def refuse_looser(self, change: SettingsChange) -> None:
        """Check that the settings that apply after `change` are not looser than the settings of the next turn
        (`config/strictness.py`).

        Raises:
            SettingNotAllowed: the settings after `change` are looser.
            ConfigError: the settings are no longer valid.
        """
        resolver, now = self.grants.resolver, self._log.projections.settings_history.now
        refuse_looser(resolver.resolved(change), resolver.resolved(now))

    @property
    def turn(self) -> LocalTurn | None:
        """The turn that is running in this process; None if no turn is running here."""
        return self._runner.running

    @property
    def is_owner(self) -> bool:
        """True if this process holds the lease."""
        return self._log.is_owner

    @property
    def queue_length(self) -> int:
        """The number of queued messages."""
        return len(self._log.queue.waiting)

    @property
    def is_watched(self) -> bool:
        """True if a client is reading the conversation, is waiting for an entry, has recently polled the
        conversation, or has been sent an approval.
        """
        return not self._log.readers.is_empty or not self._recipients.is_empty

    @property
    def needs_polling(self) -> bool:
        """True if other processes can write to the conversation without notifying this process."""
        return self._ownership.state not in (OwnershipState.OWNER, OwnershipState.FOLLOWING)

    @property
    def has_commands(self) -> bool:
        """True if commands of this process are queued or being executed."""
        return self._mailbox.has_commands

    @property
    def is_closing(self) -> bool:
        """True if the server is shutting down."""
        return self._deps.closing.is_set()

    @property
    def is_evictable(self) -> bool:
        """True if the conversation can be removed from memory without an effect on any client."""
        return not (
            self._ownership.state in (OwnershipState.OWNER, OwnershipState.FOLLOWING)
            or self.is_watched
            or not self._mailbox.is_empty
            or self.approvals.is_answering
            or self._tool_servers.is_starting
            or self._log.projections.state.phase is Phase.RUNNING
        )

    async def create(self, overrides: SettingsOverrides, resolved: ResolvedSettings) -> None:
        """Store this object as a new conversation.

        `overrides` are the settings that the client gave, and `resolved` are the complete settings that result.

        Raises:
            StoreFailed: the conversation cannot be stored.
        """
        await self._log.create(self.grants.resolver.record(overrides, resolved))
        self.grants.resolver.remember(self._log.projections.settings_history.now, overrides, resolved)

    # --- reading -----------------------------------------------------------------------

    async def observe(self) -> None:
        """Wait until the log is current and this process follows or has recovered the unfinished turn, if there is
        one.

        If this takes longer than `FOLLOW_SECONDS`, because another process or the database does not respond, only
        load the new entries from the store. The unfinished turn is then followed or recovered after the call.

        Raises:
            UnknownConversation: the conversation does not exist or has been deleted.
            StoreError: the log cannot be read.
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
        else:  # earlier commands wait for a process or a database that does not respond
            await self._read_new_unless(current)

    async def _read_new_unless(self, current: asyncio.Future[None]) -> None:
        """Load new entries from the store. If the future `current` is done first, stop loading. If `current` has
        failed, for example because the database does not respond, raise its exception.
        """
        reading = asyncio.ensure_future(self._ownership.read_new())
        try:
            await asyncio.wait({current, reading}, return_when=asyncio.FIRST_COMPLETED)
            (reading if reading.done() else current).result()
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    def _store_checkpoint(self) -> None:
        """Store a checkpoint of a long log that lacks one, unless another process holds the lease."""
        if self._log.lacks_checkpoint and self._log.phase is Phase.IDLE and not self._has_tried_checkpoint:
            self._has_tried_checkpoint = True
            self._mailbox.post_unawaited(StoreCheckpoint(Deadline(0.0)))

    async def _catch_up(self) -> None:
        """Wait until the log contains all entries that were in the store at the time of the call.

        If the owner does not send these entries within `FOLLOW_SECONDS`, stop following the owner, and load the
        entries from the store.
        """
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
        """Schedule a read of the log. If the log then contains an unfinished turn, this process follows the turn or
        recovers it. Return a future that is done when the log has been read and the turn, if there is one, is
        followed or has been recovered.
        """
        current = self._mailbox.reconcile()
        current.add_done_callback(self._reconciled)
        return current

    def move_turn(self) -> asyncio.Future[None]:
        """Let another node continue the turn that is waiting for an approval. Keep the turn if no other node can
        run it. Return a future that is done when the turn has been moved or kept.
        """
        return self._mailbox.post_unawaited(MoveTurn(Deadline(CALL_SECONDS)))

    async def at_rest(self) -> None:
        """Wait until the mailbox is not executing any command."""
        await self._mailbox.at_rest()

    def _reconciled(self, current: asyncio.Future[None]) -> None:
        if not current.cancelled() and isinstance(error := current.exception(), UnknownConversation):
            log.debug("%s", error)
            self.mark_deleted()

    async def read_after(
        self, after: Seq, *, limit: int = PAGE, max_bytes: int = READ_BYTES, visible_only: bool = False
    ) -> Sequence[Entry]:
        """Return a page of the durable entries after the position `after`. The page is empty if the log has no
        durable entry after this position.

        A page has at most `limit` entries, and ends with the entry that makes the page larger than `max_bytes`
        bytes. If `visible_only` is True, entries that clients do not see may be left out, except the last entry of
        the page.

        Raises:
            UnknownConversation: the conversation has been deleted.
            StoreError: the entries cannot be read.
        """
        return await self._log.read_after(after, limit=limit, max_bytes=max_bytes, visible_only=visible_only)

    async def read_before(self, before: Seq, *, limit: int = PAGE, max_bytes: int = READ_BYTES) -> Sequence[Entry]:
        """Return the last durable entries before the position `before`, in order.

        `limit` and `max_bytes` limit the page as for `read_after`. The errors are also the same as for
        `read_after`.
        """
        return await self._log.read_before(before, limit=limit, max_bytes=max_bytes)

    async def position_of_message(self, message_id: MessageId) -> Seq | None:
        """Return the position of a message in the log; None if there is no such message.

        Raises:
            UnknownConversation: the conversation has been deleted.
            StoreError: the store cannot be read.
        """
        return await self._log.position_of(MESSAGE, message_id)

    async def position_of_turn(self, event_id: EventId) -> Seq | None:
        """Return the position of the record that starts the turn `event_id`; None if there is no such turn.

        Raises:
            UnknownConversation: the conversation has been deleted.
            StoreError: the store cannot be read.
        """
        return await self._log.position_of(TURN, event_id)

    @property
    def lease_ended(self) -> asyncio.Future[None] | None:
        """A future that is done when this process is no longer the owner of the conversation; None if this process
        is not the owner now.
        """
        return self._log.lease_ended

    def attach(self, reader: Reader) -> None:
        """Attach a reader. When the next entry becomes durable, the reader sends all entries after its cursor."""
        self._log.readers.attach(reader)

    def detach(self, reader: Reader) -> None:
        """Remove a reader, and unregister its client as a recipient of approvals."""
        self._log.readers.detach(reader)
        self._approvals.unregister_reader(reader)

    def add_stream(self, stream: Hashable, end: Callable[[str], None]) -> None:
        """Register a stream to a client of this process. When another client takes over the streams of the
        conversation, `end` is called with the name of that client's principal.
        """
        self._streams.add(stream, end)

    def remove_stream(self, stream: Hashable) -> None:
        """Remove the registration of a stream. Do nothing if the stream is not registered."""
        self._streams.remove(stream)

    def end_streams(self, by: str, *, opened_before: float) -> None:
        """End the streams that were opened before a takeover by the principal `by` in another process.

        `opened_before` is the time of the takeover, in seconds since the epoch.
        """
        self._streams.end(by, opened_before=opened_before)

    def take_over_streams(self, stream: Hashable, by: str) -> None:
        """End all streams of the conversation except `stream`, in every process. The principal `by` has opened
        `stream` as an exclusive stream.

        Calls that are waiting for a turn continue to wait.
        """
        at = self._streams.take_over(stream, by)
        self._deps.peers.announce_take_over(self.id, by=by, at=at)

    async def wait_beyond(self, position: Seq) -> None:
        """Wait until the log has a durable entry after `position` or the server shuts down.

        Raises:
            UnknownConversation: the conversation has been deleted.
            HomeLost: the home directory has been lost.
        """
        while self.log.durable <= position and not self._deps.closing.is_set():
            if self.is_deleted:
                raise self.lost or UnknownConversation(self.id)
            await self._log.wait_beyond(position)

    # --- commands ----------------------------------------------------------------------

    async def _execute(self, command: Command) -> None:
        """Put a command into the mailbox, and wait until it is executed and its effects are durable. Raise the
        error of the command if it fails.
        """
        telemetry.cause(self.id)
        try:
            await self._mailbox.post(command)
        except UnknownConversation:
            self.mark_deleted()
            raise

    async def submit(
        self,
        content: tuple[InputItem, ...],
        *,
        principal: PrincipalRef,
        is_limited: bool = False,
        message_id: MessageId | None = None,
        parent_id: MessageId | None = None,
        ignores_unknown_parent: bool = False,
        queued: bool = False,
        event_id: EventId | None = None,
        wanted: SettingsOverrides | None = None,
        resolve: ResolveSettings | None = None,
        deadline: Deadline | None = None,
        accepted: Callable[[Accepted], None],
    ) -> None:
        """Accept a message from a principal.

        The message begins a turn or joins the running turn. If `queued` is True, the message waits in the queue
        instead of joining the running turn.

        `is_limited` is True if the role of the principal is below admin. Neither `wanted` nor the settings at the
        parent message may then loosen the settings of the conversation.

        If `parent_id` is given, the message begins a branch after the parent. If `ignores_unknown_parent` is True,
        an unknown parent id is ignored and raises no error. If `event_id` is given, it is the id of a turn that the
        message begins. `wanted` are settings that apply from this message on. `resolve` resolves the settings of a
        turn that the message begins. The call waits for other processes until `deadline`, by default for
        `CALL_SECONDS`. `accepted` is called when the message becomes durable, before any reader sees it.

        Nothing is changed if an error is raised.

        Raises:
            MessageIdTaken: the id belongs to another message.
            ParentUnknown: no message has the id of the parent.
            TurnIsRunning: a branch can begin only between turns.
            SettingNotAllowed: the message of a limited principal would loosen the settings.
            QueueFull: the queue is full.
            UnsupportedContent: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
            RemoteRefusal: the process that is running the turn has refused the message.
            StoreError: the message cannot be stored.
        """
        message = Submit(
            conversation_id=self.id,
            content=content,
            message_id=message_id or MessageId(str(uuid4())),
            parent_id=parent_id,
            event_id=event_id,
            wanted=None if wanted is None else to_builtins(wanted),
            principal=principal,
            is_limited=is_limited,
        )
        if message.message_id == MessageId(self.id):
            # as the id of a parent, this value means the start of the conversation
            raise MessageIdTaken(message.message_id)
        kind = QueueMessage if queued else SubmitMessage
        await self._execute(
            kind(
                message,
                deadline or Deadline(CALL_SECONDS),
                accepted=accepted,
                resolve=resolve,
                ignores_unknown_parent=ignores_unknown_parent,
            )
        )

    @property
    def is_queue_paused(self) -> bool:
        """True if the queue is paused and not empty. The messages in a paused queue begin no turns."""
        return self._log.queue.is_paused and bool(self._log.queue.waiting)

    @property
    def is_queue_pending(self) -> bool:
        """True if all turns have ended and this process is about to begin a turn with a queued message."""
        return self._queue.is_pending and self._mailbox.continues_queue

    async def queued(self) -> list[Waiting]:
        """Return the queued messages in the order in which they will begin turns.

        Raises:
            StoreError: the messages cannot be read.
        """
        waiting = tuple(self._log.queue.waiting.items())
        return [await self._queue.read(*one) for one in waiting]

    async def edit_queued(
        self,
        message_id: MessageId,
        content: tuple[InputItem, ...],
        *,
        principal: PrincipalRef,
        is_limited: bool = False,
        deadline: Deadline | None = None,
    ) -> None:
        """Replace the content of a queued message. The message then belongs to `principal`. Nothing is changed if
        an error is raised.

        `is_limited` has the same meaning as for `submit`.

        Raises:
            NotQueued: the message is not in the queue.
            SettingNotAllowed: the principal is limited, and the message contains settings of another principal.
            UnsupportedContent: an item of the content cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
            StoreError: the content cannot be stored.
        """
        wanted = EditQueued(
            conversation_id=self.id,
            message_id=message_id,
            content=content,
            principal=principal,
            is_limited=is_limited,
        )
        await self._execute(EditMessage(wanted, deadline or Deadline(CALL_SECONDS)))

    async def remove_queued(
        self, message_id: MessageId, *, principal: PrincipalRef, deadline: Deadline | None = None
    ) -> None:
        """Remove a queued message.

        Raises:
            NotQueued: the message is not in the queue.
            ShuttingDown: the server is shutting down.
            StoreError: the change cannot be stored.
        """
        wanted = RemoveQueued(conversation_id=self.id, message_id=message_id, principal=principal)
        await self._execute(RemoveMessage(wanted, deadline or Deadline(CALL_SECONDS)))

    async def resume_queue(self, *, principal: PrincipalRef, deadline: Deadline | None = None) -> None:
        """Resume the queue if it is paused.

        Raises:
            ShuttingDown: the server is shutting down.
            StoreError: the change cannot be stored.
        """
        wanted = ResumeQueue(conversation_id=self.id, principal=principal)
        await self._execute(Resume(wanted, deadline or Deadline(CALL_SECONDS)))

    async def continue_turn(
        self,
        *,
        principal: PrincipalRef,
        resolve: ResolveSettings | None = None,
        deadline: Deadline | None = None,
        began: Callable[[LocalTurn | None], None],
    ) -> None:
        """Begin a turn without a message, after a turn that did not complete.

        `began` is called when the start of the turn becomes durable, before any reader sees it. The argument of
        `began` is the turn; it is None if another node runs the turn.

        Raises:
            TurnIsRunning: a turn is unfinished.
            NothingToContinue: the last turn completed, or there was no turn.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
            StoreError: the start of the turn cannot be stored.
        """
        deadline = deadline or Deadline(CALL_SECONDS)
        await self._execute(Continue(principal, deadline, began=began, resolve=resolve))

    async def compact(
        self,
        *,
        principal: PrincipalRef,
        resolve: ResolveSettings | None = None,
        deadline: Deadline | None = None,
        began: Callable[[LocalTurn | None], None],
    ) -> None:
        """Begin a turn that replaces the history with a summary.

        The arguments have the same meaning as for `continue_turn`.

        Raises:
            TurnIsRunning: a turn is unfinished.
            NothingToCompact: the history has no messages that a summary could replace.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
            StoreError: the start of the turn cannot be stored.
        """
        deadline = deadline or Deadline(CALL_SECONDS)
        await self._execute(Compact(principal, deadline, began=began, resolve=resolve))

    async def interrupt_unfinished(self, *, principal: PrincipalRef, deadline: Deadline | None = None) -> None:
        """Interrupt the unfinished turn, which may be running in any process. Do nothing if there is no such turn.

        Raises:
            StoreError: the conversation cannot be taken over.
        """
        wanted = InterruptTurn(conversation_id=self.id, principal=principal)
        await self._execute(Interrupt(wanted, deadline or Deadline(CALL_SECONDS)))

    async def interrupt_turn(self, event_id: EventId, *, principal: PrincipalRef, deadline: Deadline) -> None:
        """Interrupt the turn `event_id`, which may be running in any process. Do nothing if the turn has ended.

        Raises:
            StoreError: the conversation cannot be taken over.
        """
        wanted = InterruptTurn(conversation_id=self.id, event_id=event_id, principal=principal)
        await self._execute(Interrupt(wanted, deadline))

    def interrupt(self, turn: Turn | None = None, *, principal: PrincipalRef) -> None:
        """Interrupt the given turn, which may be running in any process. By default, interrupt the turn that is
        running in this process. The call does not wait.

        Do nothing if the work of the turn is already done, or if `turn` is None and no turn is running in this
        process.
        """
        if turn is None and (turn := self._runner.running) is None:
            return
        if turn.work.done():
            return
        wanted = InterruptTurn(conversation_id=self.id, event_id=turn.event_id, principal=principal)
        done = self._mailbox.post(Interrupt(wanted, Deadline(CALL_SECONDS)))
        done.add_done_callback(self._interrupted)

    def _interrupted(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("%s: failed to interrupt the turn: %s", self.id, error)

    async def rename(self, title: str, *, deadline: Deadline | None = None) -> None:
        """Set the title of the conversation.

        Raises:
            StoreError: the title cannot be stored.
        """
        wanted = RenameConversation(conversation_id=self.id, title=title)
        await self._execute(Rename(wanted, deadline or Deadline(CALL_SECONDS)))

    async def delete(self, *, deadline: Deadline | None = None) -> None:
        """Delete the conversation.

        Raises:
            TurnIsRunning: a turn is unfinished.
            ShuttingDown: the server is shutting down.
            StoreError: the conversation cannot be deleted.
        """
        await self._execute(Delete(deadline or Deadline(CALL_SECONDS)))
        self._deps.peers.announce(self.id)
        self.mark_deleted()

    async def execute_for_peer(
        self, request: PeerRequest, deadline: Deadline, *, answered: Callable[[bytes], None]
    ) -> None:
        """Execute a request from another process. `answered` is called with the encoded result before any reader
        sees the effects of the request.

        Raises:
            NotOwned: this process does not own the conversation, or is running no turn of the conversation.
            LeaseLost: another process has acquired the lease.
            ShuttingDown: the server is shutting down.
            ParleyError: the request fails with the same error that a client of this process would get.
        """
        if self.turn is None:
            raise NotOwned
        command = command_for(request, deadline, answered=answered)
        await self._execute(command)
        if not isinstance(command, SubmitMessage):
            answered(b"{}")

    async def execute_placed(
        self, request: PlacedRequest, deadline: Deadline, *, answered: Callable[[bytes], None]
    ) -> None:
        """Execute a request to begin a turn. Another node has sent the request because that node cannot run the
        turn. `answered` is called with the encoded result before any reader sees the effects of the request.

        Raises:
            ParleyError: the request fails with the same error that a client of this process would get.
        """
        command = placed_command(request, deadline, answered=answered)
        await self._execute(command)
        if not isinstance(command, SubmitMessage):
            answered(b"{}")

    # --- tool servers ------------------------------------------------------------------

    def start_tool_servers(self) -> None:
        """Begin to start the tool servers of the current settings, and return immediately."""
        self._tool_servers.begin(self.settings, self._append_outside_turn)

    async def _append_outside_turn(self, event: ErrorEvent) -> None:
        await self._execute(AppendOutsideTurn(event, Deadline(TURN_SECONDS)))

    async def tool_servers_started(self) -> None:
        """Wait until the tool servers have started or failed, or until `stop_waiting_for_tool_servers`
        is called.
        """
        await self._tool_servers.begun()

    def stop_waiting_for_tool_servers(self) -> None:
        """Make `tool_servers_started` return immediately. If a tool server fails to start, the event with its
        failure is appended when the next turn begins.
        """
        self._tool_servers.stop_waiting()

    # --- deletion and shutdown ---------------------------------------------------------

    def on_deleted(self, listener: Hashable, call: Callable[[], None]) -> None:
        """Register `call`, which is called once when the conversation is deleted or the home directory is lost.

        `listener` identifies the callback: a second call with the same listener replaces the callback, and
        `cancel_on_deleted` removes it.
        """
        self._on_deleted[listener] = call

    def cancel_on_deleted(self, listener: Hashable) -> None:
        """Remove the callback that `on_deleted` has registered for `listener`. Do nothing if there is none."""
        self._on_deleted.pop(listener, None)

    def mark_deleted(self) -> None:
        """Mark the conversation as deleted, make its commands fail, and wake its waiters. Call each callback that
        `on_deleted` has registered.
        """
        self.is_deleted = True
        self._mailbox.mark_gone()
        self._log.readers.wake()
        callbacks, self._on_deleted = self._on_deleted, {}
        for call in callbacks.values():
            call()

    def lose(self, lost: HomeLost) -> None:
        """End the running turn, and make all commands fail, because the home directory has been lost. The end of
        the turn is not stored.
        """
        self.lost = lost
        self._runner.lose(lost)
        self._mailbox.lose(lost)
        self.mark_deleted()

    async def stop(self) -> None:
        """End the running turn because the server is shutting down. Return when the end of the turn is durable.

        A turn that is waiting for an approval does not end. Another process can continue it, for example this
        server after a restart.
        """
        self._runner.stop()
        self._log.readers.wake()
        self._tool_servers.stop_waiting()
        await self._mailbox.stop()
        self._runner.stop()  # stop again, because the mailbox may have begun a turn in the meantime
        await self._tool_servers.begun()
        await self._runner.over()
        await asyncio.sleep(0)  # let the mailbox run, because the end of the turn has woken it
        await self._mailbox.at_rest()

    def stop_waiting_for_owner(self) -> None:
        """Stop following the owner, or stop trying to follow it. The commands to which the owner has not responded
        return to the queue, where they fail if the server is shutting down.
        """
        self._mailbox.stop_waiting_for_owner()
