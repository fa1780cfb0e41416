"""The approvals of one conversation. A turn requests an approval, and one answer settles it, exactly once.

Decides how long an open approval waits if no client can be asked. Does not know how a client is asked:
`server/elicitor.py` does, and reports which clients were sent an approval (`delivered_to`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, Protocol

from msgspec import UNSET, Struct

from parley.common.shield import run_to_completion
from parley.config.types import Approvals
from parley.conversation.approvals import ApprovalEvent, PendingApproval
from parley.conversation.log import LogPayload
from parley.conversation.records import QuestionAsked, QuestionSettled
from parley.errors import ApprovalIsSettled, HomeLost, LeaseLost, StoreFailed
from parley.ports.clock import Clock
from parley.runtime.durable_log import BETWEEN_TRIES_SECONDS, DurableLog
from parley.runtime.errors import UnknownApproval
from parley.runtime.recipients import FOLLOWERS_SECONDS, ApprovalRecipient, Recipients
from parley.wire.events import ApprovalSettled, Decision, SettledBy, Settlement
from parley.wire.ids import ApprovalId

__all__ = ["DISMISSED", "NOBODY", "Answered", "OpenApprovals", "answered"]

log = logging.getLogger(__name__)

NOBODY: Final = "nobody could be asked"
DISMISSED: Final = "the client dismissed the question"
"""Reasons of denials by which the server, not a person, settles an approval."""
POLL_SECONDS: Final = 60.0
"""How long a client that polls counts as a reader: longer than one `conversationRead` may wait."""


class Answered(Struct, frozen=True, kw_only=True):
    """The answer to an approval, for the turn that asked."""

    decision: Decision
    reason: str | None = None

    @property
    def is_yes(self) -> bool:
        return self.decision in ("approved", "approved_for_session")


class _Turn(Protocol):
    """The turn that asks for the approval."""

    def interrupt(self) -> None: ...


def answered(decision: Settlement, reason: str | None) -> Answered:
    """Return the answer for the turn from a settlement."""
    told: Decision = "denied" if decision == "timed_out" or decision == "dropped" else decision
    return Answered(decision=told, reason=reason)


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
        """Create the approvals of a log. `may_be_followed` returns whether a client that does not follow the
        conversation yet may begin to follow it.
        """
        self._log, self._recipients, self._clock = durable_log, recipients, clock
        self._may_be_followed = may_be_followed
        self._turn: _Turn | None = None
        self._answer: asyncio.Future[Answered] | None = None
        self._not_durable: ApprovalId | None = None
        """An approval that is not durable yet, and may never be."""
        self._approvals = Approvals()
        self._listeners: dict[object, Callable[[], None]] = {}
        self._polled: asyncio.Task[None] | None = None
        self._waits_since = 0.0
        """When the last call began to wait for the turn."""
        self._timeout: asyncio.Task[None] | None = None
        self._timeout_seconds: float | None = None
        """The whole length of the timeout that runs."""
        self._timeout_since = 0.0
        self._spent_seconds = 0.0
        """How much of it passed before it was last paused."""

    @property
    def open(self) -> PendingApproval | None:
        """The approval that waits for an answer, once it is durable."""
        pending = self._log.projections.approvals.open
        return None if pending is None or pending.approval_id == self._not_durable else pending

    @property
    def _open_limit(self) -> ApprovalId | None:
        """The id of the open approval, if it is about a limit."""
        return self.open.approval_id if self.open is not None and self.open.request.kind == "limit" else None

    @property
    def knows_limits(self) -> bool:
        """True if a client can be asked about limits, or if all clients know the event `limit_reached`."""
        return self._recipients.can_answer_limit(self._open_limit) or self._recipients.all_know_limits

    @property
    def seconds_for_followers(self) -> float:
        """Seconds left for another client to follow the turn of a waiting call."""
        left = max(0.0, self._waits_since + FOLLOWERS_SECONDS - self._clock.now())
        return left if left and self._may_be_followed() else 0.0

    @property
    def is_returned(self) -> bool:
        """True if a waiting call gets the open approval as its result, because no client can be asked."""
        return (
            self.open is not None
            and self._log.is_owner
            and self._approvals.when_nobody == "return"
            and self._recipients.only_waiting_calls
            and not self._recipients.can_be_asked
        )

    def __contains__(self, approval_id: ApprovalId) -> bool:
        """Return whether this approval was requested in the conversation; it may be open or settled."""
        return self._is_open(approval_id) or approval_id in self._log.projections.approvals.settled

    # --- asking ------------------------------------------------------------------------

    def attach_turn(self, turn: _Turn | None) -> None:
        """Set the turn that asks for approvals. The answer `abort` interrupts this turn."""
        self._turn = turn

    async def ask(self, shown: ApprovalEvent, asked: QuestionAsked, approvals: Approvals) -> Answered:
        """Ask for an approval, wait for the answer, and return it. At most one approval is open at a time.

        Does not return if the answer is `abort`: the turn is cancelled. An approval whose caller is cancelled is
        dropped, unless it was left open.
        """
        if self._log.projections.approvals.open is not None:
            raise RuntimeError("an approval is open already")
        self._approvals, self._not_durable = approvals, asked.approval_id
        written = self._log.write(shown, asked, on_durable=self._asked)
        return await self.wait_for(self.expect(approvals), written)

    def expect(self, approvals: Approvals) -> asyncio.Future[Answered]:
        """Return the future answer to the open approval, for `wait_for`."""
        self._approvals = approvals
        self._answer = asyncio.get_running_loop().create_future()
        self.recheck()
        return self._answer

    async def wait_for(
        self, answer: asyncio.Future[Answered], written: asyncio.Future[None] | None = None
    ) -> Answered:
        """Return the answer; `written` is done when the approval is durable."""
        try:
            if written is not None:
                await run_to_completion(written)
            result = await answer
            if result.decision == "abort":
                await asyncio.Event().wait()  # until the turn is cancelled
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
        """Return an open approval.

        Raises:
            UnknownApproval: it was never asked in this conversation.
            ApprovalIsSettled: it was answered before.
        """
        if (pending := self.open) is not None and pending.approval_id == approval_id:
            return pending
        if (before := self._log.projections.approvals.settled.get(approval_id)) is not None:
            raise ApprovalIsSettled(before)
        raise UnknownApproval

    def settle(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        *,
        by: SettledBy,
        reason: str | None = None,
        answer_id: str = "",
        until: float | None = None,
    ) -> asyncio.Future[None]:
        """Settle the open approval immediately. The future is done when the settlement is durable.

        Raises:
            UnknownApproval, ApprovalIsSettled: as for `find`.
        """
        return self._settle(
            self.find(approval_id), decision, by=by, reason=reason, answer_id=answer_id, until=until
        )

    def _settle(
        self,
        pending: PendingApproval,
        decision: Settlement,
        *,
        by: SettledBy,
        reason: str | None = None,
        answer_id: str = "",
        until: float | None = None,
    ) -> asyncio.Future[None]:
        written = self._log.write(*_settlement(pending, decision, by, reason, answer_id), until=until)
        settled = partial(self._settled, self._answer, pending.approval_id, decision, reason)
        if written.done():
            settled(written)
        else:
            written.add_done_callback(settled)  # after the log's own: readers have seen it by then
        return written

    def _settled(
        self,
        answer: asyncio.Future[Answered] | None,
        approval_id: ApprovalId,
        decision: Settlement,
        reason: str | None,
        written: asyncio.Future[None],
    ) -> None:
        if written.exception() is not None:
            return
        self._recipients.settle(approval_id, decision)
        self.recheck()
        if answer is not None and not answer.done() and decision != "dropped":
            answer.set_result(answered(decision, reason))
        if decision == "abort" and self._turn is not None:
            self._turn.interrupt()

    def drop(self) -> None:
        """Settle the open approval, if there is one, because its turn ends."""
        if (pending := self._log.projections.approvals.open) is not None and self._log.is_owner:
            self._settle(pending, "dropped", by="interrupt")

    def leave_open(self) -> None:
        """Leave the open approval to another process: cancelling its caller does not drop it."""
        self._answer = None
        for waiting in (self._timeout, self._polled):
            if waiting is not None:
                waiting.cancel()
        self._timeout = self._polled = self._timeout_seconds = None
        self._recipients.polled = False

    # --- who can answer ----------------------------------------------------------------

    def register_reader(
        self, reader: Hashable, *, can_be_asked: bool, knows_limits: bool, waits_for_turn: bool = False
    ) -> None:
        if waits_for_turn:
            self._waits_since = self._clock.now()
        self._recipients.add(
            reader, can_be_asked=can_be_asked, knows_limits=knows_limits, waits_for_turn=waits_for_turn
        )
        self.recheck()

    def unregister_reader(self, reader: Hashable) -> None:
        if self._recipients.remove(reader):
            self.recheck()

    def note_poll(self, *, can_answer: bool = True) -> None:
        """Count a client that polls as a reader for a while; `can_answer` if it is offered `approvalAnswer`."""
        self._recipients.poller_can_answer = can_answer
        if self.open is None:  # its next poll will do
            return
        if self._polled is not None:
            self._polled.cancel()
        self._recipients.polled = True
        self._polled = asyncio.create_task(self._forget_poll())
        self.recheck()

    async def _forget_poll(self) -> None:
        await self._clock.sleep(POLL_SECONDS)
        self._polled, self._recipients.polled = None, False
        self.recheck()

    def delivered_to(self, recipient: ApprovalRecipient) -> None:
        """Record that the open approval was sent to a client."""
        if self.open is not None:
            self._recipients.deliver(recipient, self.open.approval_id)
            self.recheck()

    def withdrawn_from(self, recipient: ApprovalRecipient) -> None:
        """Record that a client will not answer."""
        if self._recipients.withdraw(recipient):
            self.recheck()

    def refresh(self) -> None:
        """Tell clients about settlements that another process has stored."""
        settled = self._log.projections.approvals.settled
        for approval_id in self._recipients.delivered_ids:
            if approval_id in settled:
                self._recipients.settle(approval_id, settled[approval_id])
        self.recheck()

    def to_deliver(self) -> PendingApproval | None:
        """Return the open approval. Clients are told of earlier settlements first."""
        if not self._log.is_owner:
            self.refresh()
        return self.open

    def subscribe(self, listener: object, call: Callable[[], None]) -> None:
        """Call `call` when the set of reading clients, or of clients that can be asked, has changed; until
        `unsubscribe`."""
        self._listeners[listener] = call

    def unsubscribe(self, listener: object) -> None:
        self._listeners.pop(listener, None)

    # --- timeouts ----------------------------------------------------------------------

    def recheck(self) -> None:
        """Start, pause or stop the timeout of the open approval, after the set of clients has changed.

        The timeout runs while clients read and none of them can be asked. It pauses while no client reads. It
        starts from the beginning after a client that could be asked has left.
        """
        for call in tuple(self._listeners.values()):
            call()
        limit = self._open_limit
        can_be_asked = (
            self._recipients.can_answer_limit(limit) if limit is not None else self._recipients.can_be_asked
        )
        # A process that follows leaves the timeout to the owner.
        is_unanswerable = self.open is not None and not can_be_asked and self._log.is_owner
        seconds = self._patience_seconds() if is_unanswerable and self._recipients.is_read else None
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
            self._polled, self._recipients.polled = None, False

    def _patience_seconds(self) -> float | None:
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
            pass  # it was answered after all, or another process asks now
        except Exception:  # a bug; the approval stays open, and a client may still answer it
            log.exception("an approval that no client could be asked was not settled")

    async def _settle_by_timeout(self, approval_id: ApprovalId, decision: Settlement) -> None:
        while True:
            try:
                return await run_to_completion(self.settle(approval_id, decision, by="timeout", reason=NOBODY))
            except HomeLost:
                raise
            except StoreFailed as error:
                log.warning("a timeout is not stored yet: %s", error)
                await self._clock.sleep(BETWEEN_TRIES_SECONDS)

    def _is_open(self, approval_id: ApprovalId) -> bool:
        return self.open is not None and self.open.approval_id == approval_id


def _settlement(
    pending: PendingApproval, decision: Settlement, by: SettledBy, reason: str | None, answer_id: str
) -> tuple[LogPayload, LogPayload]:
    """Return the record and the event of a settlement."""
    approval_id = pending.approval_id
    return (
        QuestionSettled(approval_id=approval_id, decision=decision, by=by, reason=reason, answer_id=answer_id),
        ApprovalSettled(
            approval_id=approval_id,
            call_id=pending.request.call_id,
            decision=decision,
            by=by,
            reason=UNSET if reason is None else reason,
        ),
    )
