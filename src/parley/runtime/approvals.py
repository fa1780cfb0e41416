"""The approvals of one conversation. A turn requests an approval, and each approval is settled exactly once.

This module also determines how long an open approval waits if no client can be asked. The module
`server/elicitor.py` sends approvals to clients and reports each delivery (`delivered_to`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Final, Protocol

from msgspec import UNSET, Struct

from parley.common.shield import run_to_completion
from parley.common.telemetry import telemetry
from parley.config.types import Approvals
from parley.conversation.approvals import ApprovalEvent, PendingApproval
from parley.conversation.records import ApprovalRequest, ApprovalSettlement
from parley.errors import ApprovalIsSettled, HomeLost, LeaseLost, StoreFailed
from parley.ports.clock import Clock
from parley.runtime.durable_log import WRITE_RETRY_SECONDS, DurableLog
from parley.runtime.errors import UnknownApproval
from parley.runtime.recipients import FOLLOWERS_SECONDS, ApprovalRecipient, ReadingClient, Recipients
from parley.wire.events import ApprovalSettled, Decision, SettledBy, Settlement
from parley.wire.ids import ApprovalId
from parley.wire.principals import PrincipalRef, name_of

__all__ = ["DISMISSED", "NO_CLIENT", "Answered", "OpenApprovals", "answered"]

log = logging.getLogger(__name__)

NO_CLIENT: Final = "nobody could be asked"
DISMISSED: Final = "the client dismissed the question"
"""The reason that the server records for a denial if the client closed the approval form without a decision."""
POLL_SECONDS: Final = 60.0
"""The time, in seconds, for which a client counts as a reader after it has polled the conversation, for example
with `conversationRead`. A single poll waits for less than this time, so a client that polls again immediately
remains a reader.
"""


class Answered(Struct, frozen=True, kw_only=True):
    """The answer that a turn receives for its approval request."""

    decision: Decision
    reason: str | None = None
    principal: PrincipalRef | None = None
    """The principal that answered the request; None if no principal answered it."""

    @property
    def is_yes(self) -> bool:
        return self.decision in ("approved", "approved_for_session")


class _Turn(Protocol):
    """The part of a turn that `OpenApprovals` uses to interrupt the turn after the answer `abort`."""

    def interrupt(self, *, principal: PrincipalRef | None) -> None: ...


def answered(decision: Settlement, reason: str | None, principal: PrincipalRef | None = None) -> Answered:
    """Return the answer that the turn receives if its approval is settled with `decision`. An approval that timed
    out or was dropped counts as denied.
    """
    answer: Decision = "denied" if decision == "timed_out" or decision == "dropped" else decision
    return Answered(decision=answer, reason=reason, principal=principal)


class OpenApprovals:
    """The approvals of one conversation. At most one is open."""

    def __init__(
        self,
        durable_log: DurableLog,
        recipients: Recipients,
        *,
        clock: Clock,
        may_be_followed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the object for the conversation whose log is `durable_log`.

        `may_be_followed` returns whether there are clients that do not follow the conversation yet but may begin
        to follow it.
        """
        self._log, self._recipients, self._clock = durable_log, recipients, clock
        self._may_be_followed = may_be_followed
        self._turn: _Turn | None = None
        self._answer: asyncio.Future[Answered] | None = None
        self._not_durable: ApprovalId | None = None
        """The id of the approval whose request is being stored; None if no request is being stored. Storing the
        request may still fail.
        """
        self._approvals = Approvals()
        self._listeners: dict[object, Callable[[], None]] = {}
        self._polled: asyncio.Task[None] | None = None
        self._waits_since = 0.0
        """The time when a client's call last began to wait for the end of the turn, in seconds since the epoch."""
        self._timeout: asyncio.Task[None] | None = None
        self._timeout_seconds: float | None = None
        """The full length of the running timeout, in seconds; None if no timeout is running."""
        self._timeout_since = 0.0
        self._spent_seconds = 0.0
        """The part of the timeout, in seconds, that had already passed when the timeout was last paused."""

    @property
    def open(self) -> PendingApproval | None:
        """The durable approval that is waiting for an answer; None if no approval is waiting."""
        pending = self._log.projections.approvals.open
        return None if pending is None or pending.approval_id == self._not_durable else pending

    @property
    def _open_limit(self) -> PendingApproval | None:
        """The open approval if it asks whether a turn may exceed a limit; otherwise None."""
        return self.open if self.open is not None and self.open.request.kind == "limit" else None

    @property
    def knows_limits(self) -> bool:
        """True if a client can be asked whether the turn may exceed a limit, or if every client that is reading the
        conversation and may interrupt the turn knows the event `limit_reached`.
        """
        return self._recipients.can_answer_limit(self._open_limit) or self._recipients.all_know_limits

    @property
    def seconds_for_followers(self) -> float:
        """The remaining time, in seconds, for other clients to begin to follow the conversation, so that they can
        be asked to decide an approval. The time starts when a client's call begins to wait for the end of the turn.
        The value is 0 if no other client could begin to follow the conversation.

        If no client can be asked when the time is over, the setting `[approvals] when_nobody` determines whether
        the open approval is denied, is returned as the result of the call, or continues to wait.
        """
        left = max(0.0, self._waits_since + FOLLOWERS_SECONDS - self._clock.now())
        return left if left and self._may_be_followed() else 0.0

    @property
    def is_returned(self) -> bool:
        """True if a client's call that waits for the end of the turn returns the open approval as its result,
        because no client can be asked.
        """
        return (
            self.open is not None
            and self._log.is_owner
            and self._approvals.when_nobody == "return"
            and self._recipients.only_waiting_calls
            and not self._recipients.can_be_asked(self.open)
        )

    def __contains__(self, approval_id: ApprovalId) -> bool:
        """Return whether the given approval is open, or its settlement is in memory. Return False for an approval
        whose settlement is only in the store.
        """
        return self._is_open(approval_id) or approval_id in self._log.projections.approvals.settled

    # --- requesting --------------------------------------------------------------------

    def attach_turn(self, turn: _Turn | None) -> None:
        """Set the turn that requests approvals; None means that no turn is running. The answer `abort` interrupts
        this turn.
        """
        self._turn = turn

    async def ask(self, event: ApprovalEvent, request: ApprovalRequest, approvals: Approvals) -> Answered:
        """Request an approval, wait for the answer, and return the answer. At most one approval is open at a time.

        `event` is the event that clients see, `request` is the record of the request, and `approvals` are the
        approval settings of the turn. If the answer is `abort`, the turn is cancelled and the call does not return.
        Cancelling the call settles the approval as dropped, unless `leave_open` was called.
        """
        if self._log.projections.approvals.open is not None:
            raise RuntimeError("an approval is open already")
        self._approvals, self._not_durable = approvals, request.approval_id
        try:
            written = self._log.write(event, request, on_durable=self._asked)
            return await self.report(request, self.wait_for(self.expect(approvals), written))
        finally:
            self._not_durable = None  # a write whose outcome is unknown may become durable later

    async def report(self, request: ApprovalRequest, answer: Coroutine[None, None, Answered]) -> Answered:
        """Await the coroutine `answer`, which waits for the answer to `request`, and return this answer. Report the
        wait to logs, metrics and traces.
        """
        about = {"approval_id": request.approval_id, "kind": request.kind, "call_id": request.call_id}
        with telemetry.operation("approval", conversation_id=self._log.id, **about) as operation:
            result = await answer
            if operation is not None:
                operation.outcome = result.decision
            return result

    def expect(self, approvals: Approvals) -> asyncio.Future[Answered]:
        """Return a future for the answer to the open approval. The caller passes the future to `wait_for`.
        `approvals` are the approval settings of the turn.
        """
        self._approvals = approvals
        self._answer = asyncio.get_running_loop().create_future()
        self.recheck()
        return self._answer

    async def wait_for(
        self, answer: asyncio.Future[Answered], written: asyncio.Future[None] | None = None
    ) -> Answered:
        """Wait for the answer to the open approval, and return the answer.

        `answer` is the future from `expect`. `written` is a future that is done when the approval is durable; None
        if the approval is already durable.
        """
        try:
            if written is not None:
                await run_to_completion(written)
            result = await answer
            if result.decision == "abort":
                await asyncio.Event().wait()  # wait until the turn is cancelled
            return result
        finally:
            if self._answer is answer:
                self._answer = None
                self.drop()

    def _asked(self) -> None:
        self._not_durable = None
        self.recheck()

    # --- settling ----------------------------------------------------------------------

    def find(self, approval_id: ApprovalId) -> PendingApproval:
        """Return the open approval with the given id.

        Raises:
            UnknownApproval: this conversation never requested the approval.
            ApprovalIsSettled: the approval has already been settled.
        """
        if (pending := self.open) is not None and pending.approval_id == approval_id:
            return pending
        if (before := self._log.projections.approvals.settled.get(approval_id)) is not None:
            raise before.error()
        raise UnknownApproval

    def settle(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        *,
        by: SettledBy,
        principal: PrincipalRef | None = None,
        reason: str | None = None,
        answer_id: str = "",
        until: float | None = None,
    ) -> asyncio.Future[None]:
        """Settle the given approval with `decision` immediately. Return a future that is done when the settlement
        is durable.

        `by` is the origin of the settlement, for example `client` or `timeout`. `answer_id` is the id by which a
        repeated answer is recognised; empty if the answer has no id. If another process still holds the write lock
        at the time `until`, the future fails with `WriteLockHeld`.

        Raises:
            UnknownApproval: this conversation never requested the approval.
            ApprovalIsSettled: the approval has already been settled.
        """
        record = ApprovalSettlement(
            approval_id=approval_id,
            decision=decision,
            by=by,
            principal=principal,
            reason=reason,
            answer_id=answer_id,
        )
        return self._settle(self.find(approval_id), record, until=until)

    def _settle(
        self, pending: PendingApproval, record: ApprovalSettlement, *, until: float | None = None
    ) -> asyncio.Future[None]:
        written = self._log.write(record, _settlement_event(pending, record), until=until)
        settled = partial(self._settled, self._answer, record)
        if written.done():
            settled(written)
        else:
            # This callback runs after the callback of the log, which sends the entry to readers.
            written.add_done_callback(settled)
        return written

    def _settled(
        self,
        answer: asyncio.Future[Answered] | None,
        record: ApprovalSettlement,
        written: asyncio.Future[None],
    ) -> None:
        if written.exception() is not None:
            return
        approval_id, principal = record.approval_id, record.principal
        self._recipients.settle(approval_id, self._log.projections.approvals.settled[approval_id])
        self.recheck()
        if answer is not None and not answer.done() and record.decision != "dropped":
            answer.set_result(answered(record.decision, record.reason, principal))
        if record.decision == "abort" and self._turn is not None:
            self._turn.interrupt(principal=principal)

    def drop(self, principal: PrincipalRef | None = None) -> None:
        """Settle the open approval as dropped because its turn is ending. Do nothing if no approval is open.

        `principal` is the principal that interrupted the turn; None if no principal interrupted it.
        """
        if (pending := self._log.projections.approvals.open) is not None and self._log.is_owner:
            record = ApprovalSettlement(
                approval_id=pending.approval_id, decision="dropped", by="interrupt", principal=principal
            )
            self._settle(pending, record)

    def leave_open(self) -> None:
        """Leave the open approval to another process.

        After this call, cancelling the turn does not settle the approval.
        """
        self._answer = None
        for waiting in (self._timeout, self._polled):
            if waiting is not None:
                waiting.cancel()
        self._timeout = self._polled = self._timeout_seconds = None
        self._recipients.forget_polls()

    # --- clients that can answer -------------------------------------------------------

    def register_reader(self, reader: Hashable, client: ReadingClient) -> None:
        if client.waits_for_turn:
            self._waits_since = self._clock.now()
        self._recipients.add(reader, client)
        self.recheck()

    def unregister_reader(self, reader: Hashable) -> None:
        if self._recipients.remove(reader):
            self.recheck()

    def note_poll(self, *, can_answer: bool) -> None:
        """Record that a client has polled the conversation, for example with `conversationRead`. The client counts
        as a reader for the next `POLL_SECONDS`.

        `can_answer` is True if the client may call `approvalAnswer`.
        """
        if self.open is None:  # polls matter only while an approval is open
            return
        if self._polled is not None:
            self._polled.cancel()
        self._recipients.note_poll(can_answer=can_answer)
        self._polled = asyncio.create_task(self._forget_poll())
        self.recheck()

    async def _forget_poll(self) -> None:
        await self._clock.sleep(POLL_SECONDS)
        self._polled = None
        self._recipients.forget_polls()
        self.recheck()

    def delivered_to(self, recipient: ApprovalRecipient) -> None:
        """Record that the open approval was sent to the given client."""
        if self.open is not None:
            self._recipients.deliver(recipient, self.open.approval_id)
            self.recheck()

    def await_retry(self, approval_id: ApprovalId) -> None:
        """Record that a client's call has returned the given approval as its result. The client may repeat the call
        and include the answer.
        """
        if self._is_open(approval_id):
            self._recipients.awaited_retry = approval_id
            self.recheck()

    def withdrawn_from(self, recipient: ApprovalRecipient) -> None:
        """Record that the given client will not answer the approval that was sent to it."""
        if self._recipients.withdraw(recipient):
            self.recheck()

    def refresh(self) -> None:
        """If another process has settled an approval, notify the clients to which this process sent the approval.
        Then call `recheck`.
        """
        settled = self._log.projections.approvals.settled
        for approval_id in self._recipients.delivered_ids:
            if approval_id in settled:
                self._recipients.settle(approval_id, settled[approval_id])
        self.recheck()

    def to_deliver(self) -> PendingApproval | None:
        """Return the open approval for delivery to a client; None if no approval is open.

        If another process has settled an earlier approval, first notify the clients to which it was sent.
        """
        if not self._log.is_owner:
            self.refresh()
        return self.open

    def subscribe(self, listener: object, call: Callable[[], None]) -> None:
        """From now on, call `call` after each change to the set of clients that are reading the conversation, or to
        the set of clients that can be asked to decide an approval.

        `listener` identifies the callback: a second call with the same listener replaces the callback, and
        `unsubscribe` removes it.
        """
        self._listeners[listener] = call

    def unsubscribe(self, listener: object) -> None:
        self._listeners.pop(listener, None)

    # --- timeouts ----------------------------------------------------------------------

    def recheck(self) -> None:
        """Start, pause or stop the timeout of the open approval after the set of clients has changed, and call the
        subscribed listeners.

        The timeout runs while clients are reading the conversation and none of them can be asked. It pauses while
        no client is reading the conversation. It restarts from the beginning when the last client that could be
        asked has left.
        """
        if (retry := self._recipients.awaited_retry) is not None and not self._is_open(retry):
            self._recipients.awaited_retry = None
        for call in tuple(self._listeners.values()):
            call()
        limit = self._open_limit
        can_be_asked = (
            self._recipients.can_answer_limit(limit)
            if limit is not None
            else self._recipients.can_be_asked(self.open)
        )
        # Only the owner runs the timeout.
        is_unanswerable = self.open is not None and not can_be_asked and self._log.is_owner
        seconds = self._max_wait_seconds() if is_unanswerable and self._recipients.is_read else None
        if seconds != self._timeout_seconds:
            if self._timeout is not None:
                self._timeout.cancel()
                self._timeout = None
                self._spent_seconds += max(0.0, self._clock.now() - self._timeout_since)
            if seconds is not None:
                self._timeout_since = self._clock.now()
                self._timeout = asyncio.create_task(self._time_out(seconds))
            self._timeout_seconds = seconds
        if not is_unanswerable:
            self._spent_seconds = 0.0
        if self.open is None and self._polled is not None:
            self._polled.cancel()
            self._polled = None
            self._recipients.forget_polls()

    def _max_wait_seconds(self) -> float | None:
        return self._recipients.max_wait_seconds(
            self._approvals, about_limit=self._open_limit is not None, knows_limits=self.knows_limits
        )

    async def _time_out(self, seconds: float) -> None:
        denies_at_once = self._recipients.only_waiting_calls and self._approvals.when_nobody == "deny"
        left = self.seconds_for_followers if denies_at_once else max(0.0, seconds - self._spent_seconds)
        if seconds and left:
            await self._clock.sleep(left)
        self._timeout = self._timeout_seconds = None
        if (pending := self.open) is None:
            return
        aborts = seconds and not denies_at_once and self._approvals.on_timeout == "abort"
        try:
            await self._settle_by_timeout(pending.approval_id, "abort" if aborts else "timed_out")
        except (ApprovalIsSettled, UnknownApproval, LeaseLost, HomeLost):
            pass  # a client answered just before the timeout, or another process owns the conversation
        except Exception:  # the error is a bug: the approval stays open, and a client may still answer it
            log.exception("failed to settle an approval after its timeout")

    async def _settle_by_timeout(self, approval_id: ApprovalId, decision: Settlement) -> None:
        while True:
            try:
                return await run_to_completion(self.settle(approval_id, decision, by="timeout", reason=NO_CLIENT))
            except HomeLost:
                raise
            except StoreFailed as error:
                log.warning("the settlement of a timed-out approval is not stored yet: %s", error)
                await self._clock.sleep(WRITE_RETRY_SECONDS)

    def _is_open(self, approval_id: ApprovalId) -> bool:
        return self.open is not None and self.open.approval_id == approval_id


def _settlement_event(pending: PendingApproval, record: ApprovalSettlement) -> ApprovalSettled:
    """Return the event that tells clients how an approval was settled."""
    return ApprovalSettled(
        approval_id=pending.approval_id,
        call_id=pending.request.call_id,
        decision=record.decision,
        by=record.by,
        reason=UNSET if record.reason is None else record.reason,
        principal=name_of(record.principal),
    )
