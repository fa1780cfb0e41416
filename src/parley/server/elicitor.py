"""Asks a client to decide approvals.

An elicitor sends an approval request to one client, and passes the client's decision to the conversation. The
module `runtime/approvals.py` decides which clients are asked, and handles the answers.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, Protocol

from parley.conversation.approvals import PendingApproval, SettledApproval
from parley.errors import ParleyError
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.server.approval_text import decision_of, elicitation, settled_text
from parley.server.hosts import Features
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.elicitation import ElicitationParams
from parley.wire.ids import ApprovalId
from parley.wire.jsonrpc import Message, RequestId, encode
from parley.wire.principals import PrincipalRef

__all__ = ["NO_ELICITOR", "Elicitor", "FormElicitor"]

log = logging.getLogger(__name__)


class Elicitor(Protocol):
    """Sends approval requests to one client."""

    @property
    def can_ask(self) -> bool:
        """True if the server can ask the client to decide approvals."""
        ...

    def ask(
        self,
        conversation: Conversation,
        approval: PendingApproval,
        *,
        request: str,
        out: Outbox,
        task_id: str | None = None,
    ) -> None:
        """Send an open approval to the client, unless it has already been sent.

        `request` is the id of the client's first request that concerned the conversation. The approval request is
        sent to `out`. `task_id` is the id of the task that the approval request names; None if the approval belongs
        to no task.
        """
        ...

    def withdraw(self, conversation: Conversation, *, reason: str) -> None:
        """Withdraw the unanswered approval requests that the client got for `conversation`, and send `reason` to
        the client.

        Other clients can still answer the approvals.
        """
        ...

    def close(self) -> None:
        """Forget all approval requests, because the client has disconnected. Other clients can still answer the
        approvals.
        """
        ...


class _NoElicitor:
    """The elicitor for a client that cannot be asked to decide approvals."""

    can_ask = False

    def ask(
        self,
        conversation: Conversation,
        approval: PendingApproval,
        *,
        request: str,
        out: Outbox,
        task_id: str | None = None,
    ) -> None:
        pass

    def withdraw(self, conversation: Conversation, *, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


NO_ELICITOR: Final = _NoElicitor()


class FormElicitor:
    """Sends approval requests to the client as `elicitation/create` requests, each of which contains a form."""

    can_ask = True

    def __init__(self, requests: OutgoingRequests, principal: PrincipalRef, features: Features) -> None:
        self._requests, self._principal, self._features = requests, principal, features
        self._open: dict[ApprovalId, tuple[RequestId, Conversation]] = {}
        """The undecided approvals that were sent to the client, each with the id of its `elicitation/create`
        request and with its conversation.
        """

    def ask(
        self,
        conversation: Conversation,
        approval: PendingApproval,
        *,
        request: str,
        out: Outbox,
        task_id: str | None = None,
    ) -> None:
        approval_id = approval.approval_id
        if approval_id in self._open:
            return
        if approval.request.kind == "limit" and not self._features.knows_limits:
            return  # this client is not asked; without another client, the turn ends (docs/protocol.md#limits)
        params = elicitation(approval, conversation.id, request=request, features=self._features, task_id=task_id)
        answered = partial(self._settle, conversation, approval_id)
        request_id = self._requests.send(ElicitationParams.METHOD, encode(params), out=out, answered=answered)
        self._open[approval_id] = request_id, conversation
        conversation.approvals.delivered_to(self)

    def _settle(self, conversation: Conversation, approval_id: ApprovalId, answer: Message) -> None:
        """Settle the approval with the client's answer. If the approval has already been settled, the answer has no
        effect.

        This method is never called for an answer to a withdrawn request.
        """
        decision, reason = decision_of(answer, self._features)
        settled = conversation.approvals.answer_with_retry(
            approval_id,
            decision,
            by="client",
            principal=self._principal,
            reason=reason,
        )
        settled.add_done_callback(partial(self._log_failed_settlement, conversation, approval_id))

    def _log_failed_settlement(
        self, conversation: Conversation, approval_id: ApprovalId, settled: asyncio.Future[None]
    ) -> None:
        """If the attempt to settle the approval with the client's answer failed, log the error and withdraw the
        approval from the client, so that the client can be asked again. `settled` is the finished future of the
        attempt.
        """
        if not settled.cancelled() and (error := settled.exception()) is not None:
            known, is_open = isinstance(error, ParleyError), _is_open(conversation, approval_id)
            # DEBUG, because the usual cause is that another client answered first.
            level = logging.WARNING if is_open or not known else logging.DEBUG
            log.log(level, "an answer was refused: %s", error, exc_info=None if known else error)
            self._open.pop(approval_id, None)
            conversation.approvals.withdrawn_from(self)

    def settled(self, approval_id: ApprovalId, settled: SettledApproval) -> None:
        """Withdraw the request for an approval that has been settled. Do nothing if this client has decided the
        approval.

        If the approval was dropped because its turn ended, clients at protocol version 2025-06-18 and older get no
        withdrawal. For these clients, the end of the turn also ends the request.
        """
        if (delivered := self._open.pop(approval_id, None)) is None:
            return
        if settled.decision == "dropped" and not self._features.describes_approvals:
            self._requests.ignore(delivered[0])
        else:
            self._requests.withdraw(delivered[0], reason=settled_text(settled.error(), self._features))

    def withdraw(self, conversation: Conversation, *, reason: str) -> None:
        for approval_id, (request_id, asked_by) in tuple(self._open.items()):
            if asked_by is conversation:
                del self._open[approval_id]
                self._requests.withdraw(request_id, reason=reason)
        conversation.approvals.withdrawn_from(self)

    def close(self) -> None:
        self._requests.forget()
        while self._open:
            _, (_, conversation) = self._open.popitem()
            conversation.approvals.withdrawn_from(self)


def _is_open(conversation: Conversation, approval_id: ApprovalId) -> bool:
    approval = conversation.approvals.open
    return approval is not None and approval.approval_id == approval_id
