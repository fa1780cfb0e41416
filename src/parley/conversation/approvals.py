"""The approvals of one log: the open one, and how each earlier one was settled.

A projection: it is given every entry as it is appended. Does not know which clients are asked, nor who waits for
the answer.
"""

from __future__ import annotations

from msgspec import UNSET, Struct
from msgspec.structs import replace

from parley.conversation.log import LogPayload
from parley.conversation.records import QuestionAsked, QuestionSettled, SessionGranted, TurnStarted
from parley.wire.events import ApplyPatchApprovalRequest, ExecApprovalRequest, LimitReached, Settlement
from parley.wire.ids import ApprovalId, CallId, EventId

__all__ = ["ApprovalEvent", "ApprovalState", "PendingApproval"]

ApprovalEvent = ExecApprovalRequest | ApplyPatchApprovalRequest | LimitReached
"""The event that shows an approval request to clients."""


class PendingApproval(Struct, frozen=True, kw_only=True):
    """An approval that is open."""

    request: QuestionAsked
    event: ApprovalEvent
    event_id: EventId
    """The id of the turn that waits for the answer."""
    at: float
    """When it was asked, in seconds since the epoch."""

    @property
    def approval_id(self) -> ApprovalId:
        return self.request.approval_id


class ApprovalState:
    """The projection of the approvals of one log."""

    __slots__ = ("_event", "_event_id", "answer_ids", "granted", "open", "settled")

    def __init__(self) -> None:
        self.open: PendingApproval | None = None
        self.settled: dict[ApprovalId, Settlement] = {}
        self.answer_ids: set[str] = set()
        """The ids of the answers that settled an approval."""
        self._event: ApprovalEvent | None = None
        self._event_id = EventId("")
        self.granted: dict[str, float] = {}
        """What was approved for the session, by its key, and when."""

    @classmethod
    def restored(cls, event_id: EventId | None, granted: dict[str, float]) -> ApprovalState:
        """Return a state in which no approval is open. It has no earlier settlements, because a store finds them
        by their keys.
        """
        approvals = cls()
        approvals.granted = granted
        approvals._event_id = event_id or EventId("")
        return approvals

    def copy(self) -> ApprovalState:
        """Return an independent copy."""
        approvals = ApprovalState.restored(self._event_id, dict(self.granted))
        approvals.open, approvals._event = self.open, self._event
        approvals.settled, approvals.answer_ids = dict(self.settled), set(self.answer_ids)
        return approvals

    @property
    def is_settled(self) -> bool:
        """True if no approval is open or about to be asked."""
        return self.open is None and self._event is None

    def learn(self, settled: QuestionSettled) -> None:
        """Add an earlier settlement that a store has found."""
        self.settled[settled.approval_id] = settled.decision
        if settled.answer_id:
            self.answer_ids.add(settled.answer_id)

    def apply(self, payload: LogPayload, *, at: float) -> None:
        """Apply one entry.

        Raises:
            ValueError: the entry contradicts the log. A request differs from the event before it, has no such event
                or was made before, or a settlement is for an approval that is not open.
        """
        match payload:
            case TurnStarted(event_id=event_id):
                self._event_id, self._event = event_id, None
            case ExecApprovalRequest() | ApplyPatchApprovalRequest() | LimitReached():
                self._event = payload
            case QuestionAsked(approval_id=approval_id):
                if self._event is None or self.open is not None or approval_id in self.settled:
                    raise ValueError(f"the question {approval_id} cannot be asked here")
                if payload != _expected_record(self._event, payload):
                    raise ValueError(f"the question {approval_id} is not the one that was shown")
                self.open = PendingApproval(request=payload, event=self._event, event_id=self._event_id, at=at)
                self._event = None
            case QuestionSettled(approval_id=approval_id, decision=decision, answer_id=answer_id):
                if self.open is None or self.open.approval_id != approval_id:
                    raise ValueError(f"the question {approval_id} is not open")
                self.open = None
                self.settled[approval_id] = decision
                if answer_id:
                    self.answer_ids.add(answer_id)
            case SessionGranted(principal=principal, key=key):
                if principal:
                    self.granted[key] = at
            case _:
                pass


def _expected_record(event: ApprovalEvent, request: QuestionAsked) -> QuestionAsked:
    """Return the record that must follow the event, so that an approval allows exactly the action that clients
    were shown.
    """
    match event:
        case ExecApprovalRequest(call_id=call_id, command=command, cwd=cwd, reason=reason):
            return replace(
                request,
                kind="exec",
                call_id=call_id,
                reason=None if reason is UNSET else reason,
                command=command,
                cwd=cwd,
                changes={},
            )
        case ApplyPatchApprovalRequest(call_id=call_id, changes=changes, reason=reason):
            return replace(
                request,
                kind="patch",
                call_id=call_id,
                reason=None if reason is UNSET else reason,
                command=(),
                cwd="",
                changes=changes,
                escalated=False,
            )
        case LimitReached():
            return QuestionAsked(approval_id=request.approval_id, kind="limit", call_id=CallId(""))
