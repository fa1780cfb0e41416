"""Records which clients can answer an approval of one conversation: readers, clients that poll, and clients that
were sent a request.

This module only keeps the data; the module `approvals.py` waits for answers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from msgspec import Struct

from parley.config.types import Approvals
from parley.conversation.approvals import PendingApproval, SettledApproval
from parley.wire.ids import ApprovalId
from parley.wire.principals import PrincipalRef

__all__ = ["FOLLOWERS_SECONDS", "ApprovalRecipient", "ReadingClient", "Recipients"]

FOLLOWERS_SECONDS: Final = 3.0
"""The time, in seconds, in which other clients may begin to follow a turn. The time starts when a client's call
begins to wait for the end of the turn. If no client can be asked when the time is over, the setting `[approvals]
when_nobody` determines what happens to an open approval.
"""


class ApprovalRecipient(Protocol):
    """A client that was sent an approval."""

    def settled(self, approval_id: ApprovalId, settled: SettledApproval) -> None:
        """Report to the client how an approval was settled. The method must not raise an exception."""
        ...


class ReadingClient(Struct, frozen=True, kw_only=True):
    """The properties of a client with a reader. These properties determine how long an open approval waits."""

    principal: PrincipalRef | None
    """The principal of the client. The principal determines which approvals the client may answer. None for a
    client of another process, because that process checks the answers of its own clients.
    """
    can_be_asked: bool
    """True if the client can be asked for approvals."""
    knows_limits: bool
    """True if the client knows the event `limit_reached` and can therefore be asked about limits."""
    waits_for_turn: bool = False
    """True if the reader is a client's call that waits for the end of the turn. The client cannot answer an
    approval during this call.
    """
    may_answer: bool = True
    """True if the role of the principal allows it to answer approvals."""
    may_interrupt: bool = True
    """True if the role of the principal allows it to interrupt the turn. Otherwise the reader does not affect how
    long an approval waits.
    """

    def can_answer(self, approval: PendingApproval | None) -> bool:
        """Return whether the client can be asked for an approval and may answer it.

        If `approval` is None, return only whether the client can be asked.
        """
        if approval is None or self.principal is None:
            return self.can_be_asked
        return self.can_be_asked and approval.may_be_answered_by(self.principal)


class Recipients:
    """The clients that read one conversation, in this process or in a process that follows the conversation, and
    the approvals that were sent to them.
    """

    def __init__(self) -> None:
        self._readers: dict[Hashable, ReadingClient] = {}
        self._delivered: list[tuple[ApprovalRecipient, ApprovalId]] = []
        """The clients that were sent an approval, each with the id of the approval. The approval may already be
        settled.
        """
        self.polled = False
        """True if a client has polled within the last minute. Such a client gets an approval only as the result of
        its next call.
        """
        self.awaited_retry: ApprovalId | None = None
        """The id of an approval that a client's call has returned as its result; None if no call has returned an
        approval. The client may repeat the call and include the answer. Until the approval is settled, the client
        counts as a reader that cannot be asked.
        """
        self._poller_can_answer = False
        """True if a polling client may call `approvalAnswer`."""

    def add(self, reader: Hashable, client: ReadingClient) -> None:
        self._readers[reader] = client

    @property
    def _counted(self) -> list[ReadingClient]:
        """The reading clients that may interrupt the turn. Only these clients affect how long an approval waits."""
        return [one for one in self._readers.values() if one.may_interrupt]

    def remove(self, reader: Hashable) -> bool:
        """Remove a reader. Return whether it was registered."""
        return self._readers.pop(reader, None) is not None

    def note_poll(self, *, can_answer: bool) -> None:
        """Record that a client has polled the conversation. `can_answer` is True if the client may call
        `approvalAnswer`.
        """
        self.polled = True
        self._poller_can_answer = self._poller_can_answer or can_answer

    def forget_polls(self) -> None:
        """Record that no client has polled recently."""
        self.polled = self._poller_can_answer = False

    def deliver(self, recipient: ApprovalRecipient, approval_id: ApprovalId) -> None:
        """Record that the approval `approval_id` was sent to the client `recipient`."""
        self._delivered.append((recipient, approval_id))

    def withdraw(self, recipient: ApprovalRecipient) -> bool:
        """Record that the given client will not answer the approval that was sent to it. Return True if an approval
        was sent to this client; otherwise return False.
        """
        before = len(self._delivered)
        self._delivered = [one for one in self._delivered if one[0] is not recipient]
        return len(self._delivered) < before

    def settle(self, approval_id: ApprovalId, settled: SettledApproval) -> None:
        """Notify the clients that were sent the given approval that it has been settled."""
        recipients = [one for one, about in self._delivered if about == approval_id]
        self._delivered = [one for one in self._delivered if one[1] != approval_id]
        for recipient in recipients:
            recipient.settled(approval_id, settled)

    @property
    def delivered_ids(self) -> set[ApprovalId]:
        """The ids of the approvals that were sent to clients. `settle` removes the id of a settled approval."""
        return {approval_id for _, approval_id in self._delivered}

    @property
    def is_empty(self) -> bool:
        """True if no client is reading the conversation, has recently polled it, or has been sent an approval."""
        return not (self._readers or self._delivered or self.polled or self.awaited_retry)

    @property
    def is_read(self) -> bool:
        """True if a client that may interrupt the turn is reading the conversation or has recently polled it."""
        return bool(self._counted) or self.polled or self.awaited_retry is not None

    def can_be_asked(self, approval: PendingApproval | None) -> bool:
        """Return whether there is a client that can be asked for `approval`, the open approval. `approval` is None
        if no approval is open.
        """
        return bool(self._delivered) or any(one.can_answer(approval) for one in self._readers.values())

    def can_answer_limit(self, approval: PendingApproval | None) -> bool:
        """Return whether there is a client that can be asked whether the turn may exceed a limit.

        `approval` is the open approval if it asks whether a turn may exceed a limit; otherwise None.
        """
        is_delivered = approval is not None and approval.approval_id in self.delivered_ids
        return is_delivered or any(one.can_answer(approval) and one.knows_limits for one in self._readers.values())

    @property
    def all_know_limits(self) -> bool:
        return all(one.knows_limits for one in self._counted)

    @property
    def may_end_at_limit(self) -> bool:
        """True if a client that may answer approvals does not know the event `limit_reached`. The turn may then end
        at a limit without an approval.
        """
        return any(one.may_answer and not one.knows_limits for one in self._counted)

    @property
    def only_waiting_calls(self) -> bool:
        """True if every client that may interrupt the turn is waiting in a call for the end of the turn, and
        therefore cannot answer an approval.
        """
        polls = (self.polled and self._poller_can_answer) or self.awaited_retry is not None
        return not polls and all(one.waits_for_turn for one in self._counted)

    def max_wait_seconds(self, approvals: Approvals, *, about_limit: bool, knows_limits: bool) -> float | None:
        """Return the maximum time in seconds that an open approval waits while no client can be asked; None means
        no limit.

        `about_limit` is True if the approval asks whether a turn may exceed a limit. `knows_limits` is True if a
        client can be asked about the limit, or if every client that is reading the conversation and may interrupt
        the turn knows the event `limit_reached`.

        If `knows_limits` is False, the result for an approval about a limit is 0, with one exception: the setting
        `[approvals] on_timeout` is `hold`, and every client that may answer knows the event.
        """
        is_held = approvals.on_timeout == "hold" and not self.may_end_at_limit
        if about_limit and not knows_limits and not is_held:
            return 0.0  # for older clients the turn ends at the limit (docs/protocol.md#limits)
        if self.only_waiting_calls and approvals.when_nobody != "wait":
            # With "return", the waiting call returns the approval as its result, and the approval stays open.
            return FOLLOWERS_SECONDS if approvals.when_nobody == "deny" else None
        holds = approvals.on_timeout == "hold" or not approvals.timeout_seconds
        return None if holds else float(approvals.timeout_seconds)
