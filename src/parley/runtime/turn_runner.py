"""Runs the turns of one conversation in this process, one at a time. Each turn ends exactly once.

The module starts, resumes and interrupts turns, and hands turns over to other processes. The caller holds the
lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.agent.compaction import TokenMeter
from parley.agent.notify import run_notify_program
from parley.agent.turn import BeforeEnd, compact_turn, end_at_limit, run_turn
from parley.common.os_errors import limit_reached
from parley.common.telemetry import Operation, telemetry
from parley.config.types import Approvals, Settings
from parley.conversation.approvals import PendingApproval
from parley.conversation.log import LogPayload
from parley.conversation.log_queries import last_text
from parley.conversation.records import TurnEnded
from parley.conversation.state import Phase
from parley.conversation.turn_ends import CUT_OFF, KILLED, KILLED_OR_CUT_OFF, Interruption, turn_end
from parley.errors import (
    INTERNAL_ERROR,
    RESOURCE_LIMIT,
    ConfigError,
    HomeLost,
    LeaseLost,
    StoreError,
    WorkspaceUnavailable,
)
from parley.ports.model import Model
from parley.ports.tools import ToolContext
from parley.runtime.approvals import Answered, OpenApprovals, answered
from parley.runtime.deadline import Deadline
from parley.runtime.deps import RuntimeDeps
from parley.runtime.durable_log import WRITE_RETRY_SECONDS, DurableLog
from parley.runtime.errors import MayNotAnswer
from parley.runtime.permissions import PermissionGate, Resumed
from parley.runtime.settings import SettingsResolver
from parley.runtime.tool_servers import ToolServers
from parley.runtime.turn_workspace import TurnWorkspace
from parley.wire.events import LimitReached, TurnEndReason, UserMessage
from parley.wire.ids import EventId, Seq
from parley.wire.items import text_of
from parley.wire.peers import SettleApproval
from parley.wire.principals import LOCAL, PrincipalRef
from parley.wire.text import replace_surrogates

__all__ = ["LocalTurn", "RemoteTurn", "Turn", "TurnRunner"]

log = logging.getLogger(__name__)

_messages: Final = msgspec.json.Decoder(UserMessage)


class Turn:
    """A turn that is running in this process or in another process."""

    def __init__(self, event_id: EventId) -> None:
        self.event_id = event_id
        self.work: asyncio.Future[TurnEnded] = asyncio.get_running_loop().create_future()
        """A future that is done when the work of the turn is finished and only the end of the turn remains to be
        stored.
        """
        self.handed_over = False
        """True if the turn was handed over unfinished to another process."""
        self.lost: HomeLost | None = None
        """The reason why the end of the turn can never be stored; None if the end can be stored."""


class RemoteTurn(Turn):
    """A turn that is running in another process and handles a message that this process has sent.

    `work` is cancelled when the turn is over.
    """

    def __init__(self, event_id: EventId, first: Seq) -> None:
        super().__init__(event_id)
        self.first = first
        """The position of the first entry of the message."""


class LocalTurn(Turn):
    """A turn that is running in this process."""

    def __init__(self, event_id: EventId, settings: Settings | None) -> None:
        super().__init__(event_id)
        self.settings = settings
        """The settings at the start of the turn. The overrides of messages that join the turn apply to the next
        turn. None if the turn was resumed and its settings are no longer valid.
        """
        self.cut_short: Interruption | None = None
        """The reason why the turn was interrupted; None if the turn was not interrupted."""
        self.interrupted_by: PrincipalRef | None = None
        """The principal that interrupted the turn; None if no principal did."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A future that is done when the end of the turn is stored or the turn has been handed over."""
        self.task: asyncio.Task[None] | None = None
        """The task that runs the turn; None until the start of the turn is durable."""
        self.operation: Operation | None = None
        """The telemetry operation that reports the turn to logs, metrics and traces; None if there are no
        observers.
        """

    def interrupt(self, why: Interruption = "interrupted", *, principal: PrincipalRef | None = None) -> None:
        """Interrupt the turn for the reason `why`, at the request of `principal`. If the turn has already been
        interrupted, the first reason and the first principal are kept.
        """
        if self.cut_short is None:
            self.cut_short, self.interrupted_by = why, principal
        self.cancel()

    def cancel(self) -> None:
        if self.task is not None:
            self.work.cancel()

    @property
    def is_ending(self) -> bool:
        """True if the turn is about to end and messages can no longer join it."""
        return self.handed_over or self.cut_short is not None or self.work.done()

    @property
    def failure(self) -> BaseException | None:
        """The exception of the finished turn; None if there is no exception or the turn was cancelled."""
        return None if self.work.cancelled() else self.work.exception()


class TurnRunner:
    """Runs the turns of one conversation, one at a time."""

    def __init__(
        self,
        durable_log: DurableLog,
        deps: RuntimeDeps,
        *,
        resolver: SettingsResolver,
        approvals: OpenApprovals,
        gate: PermissionGate,
        tool_servers: ToolServers,
    ) -> None:
        self._log, self._deps = durable_log, deps
        self._resolver, self._approvals, self._gate = resolver, approvals, gate
        self._tool_servers = tool_servers
        self._model: tuple[Settings, Model] | None = None
        self._meters: dict[tuple[str, str], TokenMeter] = {}
        """The token meter of each model, keyed by the id of the provider and the name of the model."""
        self._stopped: EventId | None = None
        """The id of the last turn that this process has stopped because it lost the lease; None if it has stopped
        no turn for this reason.
        """
        self.turn: LocalTurn | None = None
        """The turn of this process; None if this process runs no turn. The attribute is set before the start of the
        turn is durable, and is reset to None when the end of the turn is durable.
        """

    @property
    def running(self) -> LocalTurn | None:
        """The turn whose start is durable and whose end has not been appended yet; None if no turn is running."""
        return self.turn if self._is_unfinished and self.turn is not None and self.turn.task is not None else None

    @property
    def is_ending(self) -> bool:
        """True if there is a turn that messages can no longer join and whose end is not durable yet."""
        return self._is_storing_end or (self.turn is not None and self.turn.is_ending and self._is_unfinished)

    @property
    def _is_unfinished(self) -> bool:
        """True if there is a turn whose end has not been appended yet."""
        turn, state = self.turn, self._log.projections.state
        return turn is not None and state.phase is not Phase.IDLE and state.event_id == turn.event_id

    @property
    def _is_storing_end(self) -> bool:
        """True if there is a turn whose end has been appended and is not durable yet. If the store cannot write the
        end, the turn is unfinished again.
        """
        turn = self.turn
        is_started = turn is not None and turn.task is not None
        return is_started and not self._is_unfinished and self._log.phase is not Phase.IDLE and self._log.is_writing

    # --- starting ----------------------------------------------------------------------

    def prepare(self, event_id: EventId, settings: Settings) -> LocalTurn:
        """Return a turn whose start is about to be appended. The caller calls `start` when the start is durable.

        The caller must not prepare a turn before the end of the previous turn is durable (`is_ending`).
        """
        assert not self.is_ending
        self.turn = LocalTurn(event_id, settings)
        return self.turn

    def start(self, turn: LocalTurn) -> None:
        """Run a prepared turn. If the turn was interrupted after `prepare`, it ends immediately."""
        assert turn.settings is not None
        self._run(turn, self._work(turn.settings))

    def discard(self, turn: LocalTurn) -> None:
        """Discard a prepared turn whose start could not be stored."""
        turn.work.cancel()
        if self.turn is turn:
            self.turn = None
        if not turn.over.done():
            turn.over.set_result(None)

    async def recover(self, deadline: Deadline) -> None:
        """End an orphaned turn that was running, or resume an orphaned turn that was waiting for an approval.

        Raises:
            StoreError: the end of the turn cannot be stored.
        """
        if self.turn is not None:
            return
        if self._log.projections.state.phase is Phase.RUNNING:
            await self._log.append(*self._end_for("restarted", self._orphaned_message()), until=deadline.at)
        elif self._log.projections.state.phase is Phase.ASKING:
            self._resume()

    def _orphaned_message(self) -> str | None:
        """Return a message for clients that says why the orphaned turn was interrupted; None if the reason is that
        this server was restarted.
        """
        state = self._log.projections.state
        if state.event_id == self._stopped:
            return CUT_OFF
        if state.since <= self._deps.started_at:
            return None
        # A turn that began after the start of this server ran in another server.
        return KILLED if self._deps.is_store_silent is None else KILLED_OR_CUT_OFF

    def _resume(self) -> None:
        pending = self._approvals.open
        assert pending is not None  # the phase implies that there is an open approval
        try:
            settings = self._settings_of_turn()
        except ConfigError as error:
            log.warning("%s: the open approval can be denied, but not approved: %s", self._log.id, error)
            settings = None
        turn = self.turn = LocalTurn(self._event_id(), settings)
        approvals = Approvals(on_timeout="hold") if settings is None else settings.approvals
        answer = self._approvals.expect(approvals)
        self._run(turn, self._resume_work(turn, pending, answer))

    def _event_id(self) -> EventId:
        event_id = self._log.projections.state.event_id
        assert event_id is not None  # a turn has started
        return event_id

    def _settings_of_turn(self) -> Settings:
        """Return the settings of the newest turn in the log.

        Raises:
            ConfigError: the settings are no longer valid.
        """
        return self._resolver.resolved(self._log.projections.settings_history.of_turn).settings

    def _run(self, turn: LocalTurn, work: Coroutine[None, None, TurnEnded]) -> None:
        self._deps.peers.announce(self._log.id)
        self._approvals.attach_turn(turn)
        turn.operation = self._reported(turn)
        with telemetry.within(turn.operation):
            turn.work = asyncio.ensure_future(work)
        turn.task = asyncio.create_task(self._run_to_end(turn))
        if turn.cut_short is not None:
            turn.cancel()

    def _reported(self, turn: LocalTurn) -> Operation | None:
        if not telemetry.is_active:
            return None
        return telemetry.start(
            "turn",
            parent=telemetry.take_cause(self._log.id),
            conversation_id=self._log.id,
            turn_id=turn.event_id,
            provider=None if turn.settings is None else turn.settings.provider.id,
            model=None if turn.settings is None else turn.settings.model,
        )

    # --- working -----------------------------------------------------------------------

    def model_for(self, settings: Settings) -> Model:
        if self._model is None or self._model[0] is not settings:
            self._model = settings, self._deps.open_model(settings, self._log.id)
        return self._model[1]

    async def _work(self, settings: Settings, resumed: Resumed | None = None) -> TurnEnded:
        await self._log.hold_texts()
        if self._log.projections.state.compaction == "pending":
            ended = await compact_turn(
                self._log,
                self.model_for(settings),
                settings,
                self._deps.clock,
                self._meter(settings),
                self._gate.ask_to_continue(settings),
            )
            if ended is not None:
                return ended
        if settings.repository is None:
            return await self._run_turn(settings, resumed, None)
        if (workspaces := self._deps.workspaces) is None:
            raise WorkspaceUnavailable(settings.repository, "this process has no worktrees")
        workspace = TurnWorkspace(self._log, workspaces, settings)
        await workspace.prepare()
        try:
            return await self._run_turn(settings, resumed, workspace.save)
        except StoreError:
            raise  # nothing can be stored, or another process owns the conversation
        except BaseException:
            await workspace.save_cut_short()
            raise

    async def _run_turn(
        self, settings: Settings, resumed: Resumed | None, before_end: BeforeEnd | None
    ) -> TurnEnded:
        await self._tool_servers.ready(settings, self._log.append)
        context = ToolContext(
            settings=settings, transcript=self._log, authorize=self._gate.for_turn(settings, resumed)
        )
        async with self._deps.tools.open(context) as turn_tools:
            meter, model = self._meter(settings), self.model_for(settings)
            ask_to_continue = self._gate.ask_to_continue(settings)
            return await run_turn(
                self._log, model, turn_tools, settings, self._deps.clock, meter, ask_to_continue, before_end
            )

    def _meter(self, settings: Settings) -> TokenMeter:
        return self._meters.setdefault((settings.provider.id, settings.model), TokenMeter())

    async def _resume_work(
        self, turn: LocalTurn, pending: PendingApproval, answer: asyncio.Future[Answered]
    ) -> TurnEnded:
        """Wait for `answer`, the answer to the open approval of a turn that another process began. Then continue
        the turn.
        """
        result = await self._approvals.report(pending.request, self._approvals.wait_for(answer))
        if isinstance(reached := pending.event, LimitReached) and not result.is_yes:
            return await end_at_limit(reached, self._log)
        settings = turn.settings or self._settings_of_turn()
        return await self._work(settings, Resumed(pending.request, result))

    def answer(self, answer: SettleApproval, *, until: float) -> asyncio.Future[None]:
        """Settle the open approval with `answer`. Return a future that is done when the settlement is durable. If
        another process still holds the write lock at the time `until`, the future fails with `WriteLockHeld`.

        Raises:
            UnknownApproval: the conversation never requested the approval.
            ApprovalIsSettled: the approval has already been settled.
            MayNotAnswer: the principal is not allowed to answer the approval.
            ConfigError: the turn would continue, and its settings are no longer valid.
        """
        pending = self._approvals.find(answer.approval_id)
        if not pending.may_be_answered_by(answer.principal):
            raise _may_not_answer(pending)
        ends = answer.decision == "abort" or (
            isinstance(pending.event, LimitReached) and not answered(answer.decision, answer.reason).is_yes
        )
        if (turn := self.running) is not None and turn.settings is None and not ends:
            turn.settings = self._settings_of_turn()
        return self._approvals.settle(
            answer.approval_id,
            answer.decision,
            by=answer.by,
            principal=answer.principal,
            reason=answer.reason,
            answer_id=answer.answer_id,
            until=until,
        )

    # --- ending ------------------------------------------------------------------------

    def interrupt(self, why: Interruption = "interrupted", *, principal: PrincipalRef | None = None) -> None:
        """Interrupt the turn for the reason `why`, and settle its open approval as dropped. Do nothing if there is
        no turn.
        """
        if (turn := self.turn) is not None and (turn.task is None or self.running is turn):
            turn.interrupt(why, principal=principal)
            self._approvals.drop(principal)  # settle the approval as dropped now, so that no late answer settles it

    def lose_lease(self) -> None:
        """Stop the turn without storing its end, because this process no longer holds the lease."""
        if self.turn is not None:
            self._stopped = self.turn.event_id
        self.hand_over()

    def hand_over(self) -> None:
        """Stop the running turn without storing its end, so that another process can continue it. Do nothing if
        this process has no turn.
        """
        if self.turn is not None:
            self.turn.handed_over = True
            self._approvals.leave_open()
            self.turn.cancel()

    def lose(self, lost: HomeLost) -> None:
        """Stop the turn without storing its end, because the home directory has been lost. Do nothing if there is
        no turn.
        """
        if self.turn is not None:
            self.turn.lost = lost
            self.hand_over()

    def stop(self) -> None:
        """End the turn because the server is shutting down.

        A turn that is waiting for an approval is handed over to another process.
        """
        turn = self.turn
        if turn is None or turn.handed_over or turn.cut_short is not None:
            return
        if self._approvals.open is None:
            self.interrupt("stopped")
        else:
            self.hand_over()

    async def ended(self, deadline: Deadline) -> None:
        """Wait until no turn is ending. If the end of a turn could not be stored, try again to store it.

        Raises:
            StoreError: the end still cannot be stored.
        """
        while self.is_ending and (turn := self.turn) is not None:
            if turn.task is None:
                await self._log.durable()
                continue
            if self._is_storing_end:
                await self._log.writable(until=deadline.at)
                await self._log.durable()
            await asyncio.wait({turn.work})
            if turn.handed_over:
                await asyncio.wait({turn.over})
            else:
                await self._append_end_of(turn, until=deadline.at)

    async def over(self) -> None:
        """Wait until the turn is over. Return immediately if there is no turn."""
        while (turn := self.turn) is not None:
            if turn.task is not None:
                await asyncio.wait({turn.over})
            elif self._log.is_writing:
                await self._log.durable()
            else:
                return

    async def _run_to_end(self, turn: LocalTurn) -> None:
        """Wait for the work of a turn, and store the end of the turn exactly once, whether the work completed,
        failed or was cancelled.
        """
        await asyncio.wait({turn.work})
        try:
            if not turn.handed_over:
                await self._end(turn)
        finally:
            if turn.operation is not None:
                telemetry.end(turn.operation, _outcome(turn))
            if self.turn in (turn, None):  # another turn may have started already
                self.turn = None
                self._approvals.attach_turn(None)
                self._log.release_texts()
            turn.over.set_result(None)

    async def _end(self, turn: LocalTurn) -> None:
        if not turn.work.cancelled():
            if (failure := turn.work.exception()) is None:
                await self._notify(turn, turn.work.result())
            elif isinstance(failure, LeaseLost):
                log.warning("%s: %s", self._log.id, failure)  # the new owner stores the end
            elif not isinstance(failure, StoreError | ConfigError | WorkspaceUnavailable | MemoryError):
                log.error("turn of %s failed", self._log.id, exc_info=failure)
        while True:  # repeat until the end is stored; on shutdown, the next owner recovers the turn
            try:
                await self._append_end_of(turn)
            except (LeaseLost, HomeLost):
                return
            except StoreError:
                if self._deps.closing.is_set():
                    return
                await self._deps.clock.sleep(WRITE_RETRY_SECONDS)
            else:
                return

    async def _notify(self, turn: LocalTurn, ended: TurnEnded) -> None:
        if ended.why != "done" or turn.settings is None or not turn.settings.notify:
            return
        if self._log.projections.state.only_compacts:
            return
        last = last_text(self._log.log.entries)
        try:
            messages = [await self._log.entry_at(seq) for seq in self._log.projections.state.inputs.values()]
        except StoreError as error:
            log.warning("%s: the notify program is not run: %s", self._log.id, error)
            return
        inputs = tuple(text_of(_messages.decode(entry.encoded).content) for entry in messages)
        run_notify_program(turn.settings, turn.event_id, inputs, last)

    async def _append_end_of(self, turn: LocalTurn, until: float | None = None) -> None:
        """Append the end of a turn, unless the turn has already ended or another process will store its end.
        `until` is the deadline for the write lock, in seconds on the event loop's clock.

        Raises:
            WriteLockHeld: another process still holds the write lock at the time `until`.
            StoreFailed: the end cannot be stored for another reason.
        """
        while self.turn is turn and self._is_storing_end:
            await self._log.durable()  # another task has appended the end
        if self.running is turn and not isinstance(turn.failure, LeaseLost):
            self._approvals.drop(turn.interrupted_by)
            await self._log.append(*self._end_of(turn), until=until)

    def _end_of(self, turn: LocalTurn) -> tuple[LogPayload, ...]:
        if (failure := turn.failure) is None:
            return self._end_for(turn.cut_short or "stopped", principal=turn.interrupted_by)
        if (limit := limit_reached(failure)) is not None:
            return self._end_for("failed", replace_surrogates(limit), RESOURCE_LIMIT)
        if isinstance(failure, StoreError | ConfigError | WorkspaceUnavailable):
            return self._end_for("failed", replace_surrogates(str(failure)), failure.code)
        message = f"internal error: {type(failure).__name__}: {failure}"
        return self._end_for("failed", replace_surrogates(message), INTERNAL_ERROR)

    def _end_for(
        self,
        why: TurnEndReason,
        message: str | None = None,
        code: str | UnsetType = UNSET,
        *,
        principal: PrincipalRef | None = None,
    ) -> tuple[LogPayload, ...]:
        return turn_end(
            why,
            message,
            unanswered=self._log.history.unanswered,
            unreported=self._log.usage.unreported,
            queued=self._log.queue.waiting,
            outputs=self._log.log.output_records(),
            code=code,
            principal=principal,
        )


def _outcome(turn: LocalTurn) -> str:
    """Return the outcome of a turn, for example `done`. If the turn failed, add the error code to the telemetry
    operation of the turn.
    """
    assert turn.operation is not None
    if turn.handed_over:
        return "handed_over"
    if turn.work.cancelled():
        return turn.cut_short or "stopped"
    if (failure := turn.failure) is None:
        ended = turn.work.result()
        turn.operation.add(error=ended.code or None)
        return ended.why
    code = getattr(failure, "code", None)
    turn.operation.add(error=code if isinstance(code, str) else type(failure).__name__)
    return "failed"


def _may_not_answer(pending: PendingApproval) -> MayNotAnswer:
    setting, began_by = pending.request.answers_from, pending.began_by or LOCAL
    is_local = setting == "local" or began_by == LOCAL
    return MayNotAnswer("local clients" if is_local else f"{began_by.name}, which began the turn,", setting=setting)
