"""Asks a client to decide approvals.

An elicitor delivers an approval to one client and passes the decision on. Which clients are asked, and what an
answer does, is decided by `runtime/approvals.py`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, Protocol

from parley.conversation.approvals import PendingApproval
from parley.errors import ApprovalIsSettled, ParleyError
from parley.ports.outbox import Outbox
from parley.runtime.approvals import DISMISSED
from parley.runtime.conversation import Conversation
from parley.server.approval_text import elicitation
from parley.server.hosts import Features
from parley.server.outgoing_requests import OutgoingRequests
from parley.server.sanitize import escape_for_display
from parley.wire.elicitation import ElicitationParams, is_dismissal, read_answer
from parley.wire.events import Settlement
from parley.wire.ids import ApprovalId
from parley.wire.jsonrpc import Message, RequestId, encode

__all__ = ["NO_ELICITOR", "Elicitor", "FormElicitor"]

log = logging.getLogger(__name__)


class Elicitor(Protocol):
    """The interface that asks one client for decisions."""

    @property
    def can_ask(self) -> bool:
        """True if the client can be asked at all."""
        ...

    def ask(self, conversation: Conversation, approval: PendingApproval, *, request: str, out: Outbox) -> None:
        """Deliver an open approval, unless it was delivered before.

        `request` is the id of the client's first request that concerned the conversation; `out` carries the
        approval request.
        """
        ...

    def close(self) -> None:
        """Withdraw all approvals: the client has left, and others may answer them."""
        ...


class _NoElicitor:
    """A client that cannot be asked."""

    can_ask = False

    def ask(self, conversation: Conversation, approval: PendingApproval, *, request: str, out: Outbox) -> None:
        pass

    def close(self) -> None:
        pass


NO_ELICITOR: Final = _NoElicitor()


class FormElicitor:
    """Asks with the request `elicitation/create`, which has a form."""

    can_ask = True

    def __init__(self, requests: OutgoingRequests, features: Features) -> None:
        self._requests, self._features = requests, features
        self._open: dict[ApprovalId, tuple[RequestId, Conversation]] = {}
        """Delivered and undecided approvals."""

    def ask(self, conversation: Conversation, approval: PendingApproval, *, request: str, out: Outbox) -> None:
        approval_id = approval.approval_id
        if approval_id in self._open:
            return
        if approval.request.kind == "limit" and not self._features.full_version:
            return  # the client sees the turn end instead (docs/protocol.md#limits)
        params = elicitation(approval, conversation.id, request=request, features=self._features)
        answered = partial(self._settle, conversation, approval_id)
        request_id = self._requests.send(ElicitationParams.METHOD, encode(params), out=out, answered=answered)
        self._open[approval_id] = request_id, conversation
        conversation.delivered_to(self)

    def _settle(self, conversation: Conversation, approval_id: ApprovalId, answer: Message) -> None:
        """Pass on an answer. Called only while the approval is open: the answer to a withdrawn request is
        ignored."""
        decision, reason = read_answer(answer)
        if self._features.dismissal_denies and is_dismissal(answer):
            decision, reason = "denied", DISMISSED
        settled = conversation.answer_with_retry(
            approval_id, decision, by="client", reason=escape_for_display(reason or "")
        )
        settled.add_done_callback(partial(self._answered, conversation, approval_id))

    def _answered(self, conversation: Conversation, approval_id: ApprovalId, settled: asyncio.Future[None]) -> None:
        """Forget the approval if the answer was refused, so that the client can be asked again."""
        if not settled.cancelled() and (error := settled.exception()) is not None:
            known, is_open = isinstance(error, ParleyError), _is_open(conversation, approval_id)
            level = logging.WARNING if is_open or not known else logging.DEBUG  # another client was faster
            log.log(level, "an answer was refused: %s", error, exc_info=None if known else error)
            self._open.pop(approval_id, None)
            conversation.withdrawn_from(self)

    def settled(self, approval_id: ApprovalId, decision: Settlement) -> None:
        """Withdraw an approval that was decided, unless this client decided it.

        If the approval ended with its turn, clients at older versions are not told: they see the end of the turn.
        """
        if (delivered := self._open.pop(approval_id, None)) is None:
            return
        if decision == "dropped" and not self._features.full_version:
            self._requests.ignore(delivered[0])
        else:
            self._requests.withdraw(delivered[0], reason=str(ApprovalIsSettled(decision)))

    def close(self) -> None:
        self._requests.forget()
        while self._open:
            _, (_, conversation) = self._open.popitem()
            conversation.withdrawn_from(self)


def _is_open(conversation: Conversation, approval_id: ApprovalId) -> bool:
    approval = conversation.open_approval
    return approval is not None and approval.approval_id == approval_id
