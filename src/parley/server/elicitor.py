"""What one client is asked: each open question of the conversations it follows, once.

Knows which of the client's own requests a conversation came by, and how to read what it answers. Who
else is asked, and what becomes of an answer, is for `runtime/questions.py`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.approvals import Question
from parley.conversation.log import Entry
from parley.conversation.records import QuestionAsked, record_type
from parley.errors import ParleyError, QuestionIsSettled
from parley.runtime.conversation import Conversation
from parley.runtime.questions import DISMISSED
from parley.server.approval_text import elicitation
from parley.server.hosts import PLAIN, Features
from parley.server.outgoing_requests import OutgoingRequests
from parley.server.sanitize import escape_for_display
from parley.wire.elicitation import ElicitationParams, is_dismissal, read_answer
from parley.wire.events import Settlement
from parley.wire.ids import ApprovalId, ConversationId
from parley.wire.jsonrpc import Message, RequestId, encode

__all__ = ["Elicitor"]

log = logging.getLogger(__name__)

_ASKED: Final = record_type(QuestionAsked)


class _Named(Struct):
    approval_id: ApprovalId


_named: Final = msgspec.json.Decoder(_Named)


class Elicitor:
    """One client."""

    def __init__(self, requests: OutgoingRequests) -> None:
        self.can_be_asked = False
        """Whether the client said so."""
        self._requests = requests
        self._features = PLAIN
        self._calls: dict[ConversationId, str] = {}
        """The first request by which the client had to do with a conversation."""
        self._open: dict[ApprovalId, tuple[RequestId, Conversation]] = {}
        """What it was asked and has not answered."""

    def begin(self, features: Features, *, can_be_asked: bool) -> None:
        """What was negotiated."""
        self._features, self.can_be_asked = features, can_be_asked

    def came_by(self, conversation: ConversationId, request_id: RequestId) -> None:
        """The client created, called or streamed a conversation by this request."""
        self._calls.setdefault(conversation, str(request_id))

    # --- asking ------------------------------------------------------------------------

    def passed(self, conversation: Conversation, entry: Entry) -> None:
        """The client was shown all up to this entry: if it is an open question, that is asked now."""
        if entry.type != _ASKED or (question := conversation.open_approval) is None:
            return
        # A client that is behind passes questions that are settled, while a later one is open.
        if _named.decode(entry.encoded).approval_id == question.approval_id:
            self._ask(conversation, question)

    def ask_what_is_open(self, conversation: Conversation) -> None:
        """The client was shown all that happened."""
        if (question := conversation.open_approval) is not None:
            self._ask(conversation, question)

    def _ask(self, conversation: Conversation, question: Question) -> None:
        approval_id = question.approval_id
        if not self.can_be_asked or approval_id in self._open:
            return
        if question.asked.kind == "limit" and not self._features.full_version:
            return  # it sees the turn end instead (docs/protocol.md#limits)
        full = self._features.full_version
        params = elicitation(question, conversation.id, call=self._calls[conversation.id], full=full)
        answered = partial(self._settle, conversation, approval_id)
        request_id = self._requests.send(ElicitationParams.METHOD, encode(params), answered=answered)
        self._open[approval_id] = request_id, conversation
        conversation.delivered_to(self)

    def _settle(self, conversation: Conversation, approval_id: ApprovalId, answer: Message) -> None:
        """What is settled was taken back, and what is taken back is not answered: so this question is open."""
        decision, reason = read_answer(answer)
        if self._features.dismissal_denies and is_dismissal(answer):
            decision, reason = "denied", DISMISSED
        settled = conversation.answer_with_retry(
            approval_id, decision, by="client", reason=escape_for_display(reason or "")
        )
        settled.add_done_callback(partial(self._see_to, conversation, approval_id))

    def _see_to(self, conversation: Conversation, approval_id: ApprovalId, settled: asyncio.Future[None]) -> None:
        """If it could not be settled it stays open, and the client can be asked it again."""
        if not settled.cancelled() and (error := settled.exception()) is not None:
            known, is_open = isinstance(error, ParleyError), self._is_open(conversation, approval_id)
            level = logging.WARNING if is_open or not known else logging.DEBUG  # somebody else was faster
            log.log(level, "an answer was not taken: %s", error, exc_info=None if known else error)
            self._open.pop(approval_id, None)
            conversation.withdrawn_from(self)

    @staticmethod
    def _is_open(conversation: Conversation, approval_id: ApprovalId) -> bool:
        approval = conversation.open_approval
        return approval is not None and approval.approval_id == approval_id

    # --- what becomes of it ------------------------------------------------------------

    def settled(self, approval_id: ApprovalId, decision: Settlement) -> None:
        """Somebody has answered, or nobody needs to; the client is told, unless it was the one who did.

        Of a question that fell with its turn an older client hears nothing but the end of the turn.
        """
        if (asked := self._open.pop(approval_id, None)) is None:
            return
        if decision == "dropped" and not self._features.full_version:
            self._requests.ignore(asked[0])
        else:
            self._requests.take_back(asked[0], reason=str(QuestionIsSettled(decision)))

    def gone(self) -> None:
        """The client is not there any more: what it was asked is for others to answer."""
        self.can_be_asked = False
        self._requests.forget()
        while self._open:
            _, (_, conversation) = self._open.popitem()
            conversation.withdrawn_from(self)
