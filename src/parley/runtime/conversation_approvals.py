"""The interface through which the server uses the approvals of one conversation.

The server registers the clients that read the conversation, sends them the open approval, and posts their answers.
Answers are commands, because the turn may be running in another process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from uuid import uuid4

from parley.conversation.approvals import PendingApproval
from parley.errors import HomeLost, LeaseLost, OwnerUnresponsive, StoreFailed
from parley.ports.clock import Clock
from parley.ports.store import CALL_SECONDS
from parley.runtime.approvals import OpenApprovals
from parley.runtime.commands import AnswerApproval
from parley.runtime.deadline import Deadline
from parley.runtime.durable_log import WRITE_RETRY_SECONDS
from parley.runtime.mailbox import Mailbox
from parley.runtime.recipients import ApprovalRecipient, ReadingClient
from parley.wire.events import SettledBy, Settlement
from parley.wire.ids import ApprovalId, ConversationId
from parley.wire.peers import SettleApproval
from parley.wire.principals import PrincipalRef

__all__ = ["ConversationApprovals"]

log = logging.getLogger(__name__)


class ConversationApprovals:
    """The public interface of the approvals of one conversation."""

    def __init__(
        self, conversation_id: ConversationId, approvals: OpenApprovals, mailbox: Mailbox, clock: Clock
    ) -> None:
        self._id, self._approvals, self._mailbox, self._clock = conversation_id, approvals, mailbox, clock
        self._retrying: set[asyncio.Task[None]] = set()

    # --- the open approval -------------------------------------------------------------

    @property
    def open(self) -> PendingApproval | None:
        """The durable approval that is waiting for an answer; None if no approval is waiting."""
        return self._approvals.open

    def to_deliver(self) -> PendingApproval | None:
        """Return the open approval for delivery to a client; None if no approval is open.

        First, notify the clients that were sent an earlier approval if another process has settled that approval.
        """
        return self._approvals.to_deliver()

    def __contains__(self, approval_id: ApprovalId) -> bool:
        """Return whether the given approval is open, or its settlement is in memory. Return False for an approval
        whose settlement is only in the store.
        """
        return approval_id in self._approvals

    @property
    def is_returned(self) -> bool:
        """True if a client's call that waits for the end of the turn returns the open approval as its result,
        because no client can be asked.
        """
        return self._approvals.is_returned

    @property
    def seconds_for_followers(self) -> float:
        """The remaining time, in seconds, for other clients to begin to follow the conversation, so that they can
        be asked to decide an approval. The time starts when a client's call begins to wait for the end of the turn.
        The value is 0 if no other client could begin to follow the conversation.

        If no client can be asked when the time is over, the setting `[approvals] when_nobody` determines whether
        the open approval is denied, is returned as the result of the call, or continues to wait.
        """
        return self._approvals.seconds_for_followers

    # --- clients -----------------------------------------------------------------------

    def register_reader(self, reader: Hashable, client: ReadingClient) -> None:
        """Register the client of a reader, or replace the reader's registered client. The registered clients
        determine how long an open approval waits.
        """
        self._approvals.register_reader(reader, client)

    def unregister_reader(self, reader: Hashable) -> None:
        """No longer count the client of a reader among the clients that determine how long an open approval waits.
        An approval that was already sent to the client is not withdrawn.
        """
        self._approvals.unregister_reader(reader)

    def note_poll(self, *, can_answer: bool) -> None:
        """Record that a client has polled the conversation, for example with `conversationRead`. The client counts
        as a reader for one minute.

        `can_answer` is True if the client may call `approvalAnswer`.
        """
        self._approvals.note_poll(can_answer=can_answer)

    def delivered_to(self, recipient: ApprovalRecipient) -> None:
        """Record that the open approval was sent to the given client."""
        self._approvals.delivered_to(recipient)

    def await_retry(self, approval_id: ApprovalId) -> None:
        """Record that a client's call has returned the given approval as its result. The client may repeat the call
        and include the answer.

        Until the client repeats the call, the timeout for approvals that no client can answer applies to the
        approval.
        """
        self._approvals.await_retry(approval_id)

    def withdrawn_from(self, recipient: ApprovalRecipient) -> None:
        """Record that the given client will not answer the approval that was sent to it."""
        self._approvals.withdrawn_from(recipient)

    # --- answers -----------------------------------------------------------------------

    @property
    def is_answering(self) -> bool:
        """True if `answer_with_retry` is still settling an approval."""
        return bool(self._retrying)

    def answer(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        *,
        by: SettledBy,
        principal: PrincipalRef,
        reason: str | None = None,
        deadline: Deadline | None = None,
    ) -> asyncio.Future[None]:
        """Settle the given approval with `decision`. The turn that waits for the approval may be running in any
        process. Return a future that is done when the settlement is durable.

        `by` is the origin of the settlement, for example `client` or `timeout`. Errors are set on the future. The
        method itself does not raise them.

        Fails with:
            UnknownApproval: this conversation never requested the approval.
            ApprovalIsSettled: the approval has already been settled.
            MayNotAnswer: the principal is not allowed to answer the approval.
            ConfigError: the turn would continue, and its settings are no longer valid.
            StoreError: the settlement cannot be stored.
        """
        return self._post(self._answer(approval_id, decision, by, principal, reason), deadline)

    def answer_with_retry(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        *,
        by: SettledBy,
        principal: PrincipalRef,
        reason: str | None = None,
    ) -> asyncio.Future[None]:
        """Settle an approval as `answer` does. If the settlement cannot be stored, try again until it is stored.

        This method is for answers to which the server sends no response, so that a failure could not be reported to
        the client.
        """
        answer = self._answer(approval_id, decision, by, principal, reason)
        return self._in_background(self._repeat(answer, self._post(answer)))

    def _answer(
        self,
        approval_id: ApprovalId,
        decision: Settlement,
        by: SettledBy,
        principal: PrincipalRef,
        reason: str | None,
    ) -> SettleApproval:
        return SettleApproval(
            conversation_id=self._id,
            approval_id=approval_id,
            decision=decision,
            by=by,
            principal=principal,
            reason=reason,
            answer_id=str(uuid4()),
        )

    def _post(self, answer: SettleApproval, deadline: Deadline | None = None) -> asyncio.Future[None]:
        return self._mailbox.post(AnswerApproval(answer, deadline or Deadline(CALL_SECONDS)))

    async def _repeat(self, answer: SettleApproval, answered: asyncio.Future[None]) -> None:
        while True:
            try:
                return await answered
            except HomeLost:
                raise
            except (StoreFailed, LeaseLost, OwnerUnresponsive) as error:
                log.warning("the answer to an approval is not stored yet: %s", error)
                await self._clock.sleep(WRITE_RETRY_SECONDS)
                answered = self._post(answer)

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)
        return task
