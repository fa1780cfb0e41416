"""Notes for the model of a host, which are added to the result of `codex` and `codex-reply`.

A host shows the result to its model, but no events and no approvals. Therefore, the notes name the conversation and
explain how to continue it. The notes also name actions that were not performed because no person answered. If the
host stopped waiting for an earlier turn, the notes report how that turn ended.
"""

from __future__ import annotations

from typing import Final

import msgspec

from parley.conversation.log import Entry
from parley.conversation.records import ApprovalRequest, ApprovalSettlement, record_type
from parley.runtime.approvals import DISMISSED, NO_CLIENT
from parley.server.approval_text import what_is_asked
from parley.wire.ids import ApprovalId, ConversationId

__all__ = ["ResultNotes", "returned_approval"]

_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)
_APPROVAL_SETTLEMENT: Final = record_type(ApprovalSettlement)
_REASONS: Final = {NO_CLIENT: "no client could be asked", DISMISSED: "the client dismissed the question"}
EARLIER_LENGTH: Final = 20_000
"""The maximum number of characters that a note quotes from the last message of an earlier turn."""

NOT_DONE: Final = 20
"""The maximum number of denied commands and patches that the notes describe. If more commands and patches were
denied, the notes also contain the number of those that are not described.
"""
NOT_DONE_LENGTH: Final = 500
"""The maximum length, in characters, of the text that describes a denied command or patch."""


class ResultNotes:
    """The notes of one `codex` or `codex-reply` call, collected while the turn of the call is running."""

    def __init__(self, conversation_id: ConversationId) -> None:
        self._conversation_id = conversation_id
        self._asked: dict[ApprovalId, str] = {}
        self._not_done: list[str] = []
        self._denied = 0
        self._earlier: str | None = None

    def passed(self, entry: Entry) -> None:
        """Read the next entry of the turn. If the entry denies an action without a decision of a person, add a note
        about this action.
        """
        if entry.type == _APPROVAL_REQUEST:
            asked = msgspec.json.decode(entry.encoded, type=ApprovalRequest)
            self._asked[asked.approval_id] = _cut(what_is_asked(asked), NOT_DONE_LENGTH)
        elif entry.type == _APPROVAL_SETTLEMENT:
            settled = msgspec.json.decode(entry.encoded, type=ApprovalSettlement)
            what = self._asked.pop(settled.approval_id, None)
            if what is not None and (why := _REASONS.get(settled.reason or "")) is not None:
                self._denied += 1
                if self._denied <= NOT_DONE:
                    self._not_done.append(f"Not done, because {why}: {what}.")

    def earlier_turn(self, text: str) -> None:
        """Add a note about a turn for which an earlier call stopped waiting. `text` describes how the turn
        ended.
        """
        cut = _cut(text, EARLIER_LENGTH)
        self._earlier = f"An earlier call stopped waiting before its turn ended. That turn ended with:\n{cut}"

    @property
    def work_notes(self) -> str:
        """The notes about actions that were not performed, and about the end of an earlier turn; empty if there are
        none.
        """
        more = self._denied - len(self._not_done)
        rest = f"Not done for the same reasons: {more} more." if more else None
        return "\n".join((*self._not_done, *filter(None, (rest, self._earlier))))

    @property
    def text(self) -> str:
        """All notes: `work_notes`, and then the id of the conversation and how to continue the conversation."""
        how = (
            f"Conversation {self._conversation_id}. To continue it, call `codex-reply` with "
            f'`threadId` "{self._conversation_id}" and a `prompt`.'
        )
        return "\n".join(filter(None, (self.work_notes, how)))


def returned_approval(request: ApprovalRequest, conversation_id: ConversationId, *, may_answer: bool) -> str:
    """Return the result text of a call that ends while the approval `request` is open. Such a call ends because the
    server cannot ask any client to decide the approval.

    `may_answer` is True if the client may answer the approval with `approvalAnswer`.
    """
    if may_answer:
        answer = f'call `approvalAnswer` with `approval_id` "{request.approval_id}" and a `decision`'
    else:
        answer = f"a person has to answer it from another client of Parley (approval {request.approval_id})"
    return (
        f"The agent waits for an approval: {what_is_asked(request)}?\n"
        f"To go on, {answer}. Then call `conversationRead` with `conversation_id` "
        f'"{conversation_id}" to see what the agent does.'
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + " [...]"
