"""The approvals of one log: the open approval, and the settlements of earlier approvals.

The approvals are a projection: each appended entry updates the approvals.
"""

from __future__ import annotations

from msgspec import UNSET, Struct
from msgspec.structs import replace

from parley.conversation.log import LogPayload
from parley.conversation.records import (
    AnswersFrom,
    ApprovalRequest,
    ApprovalSettlement,
    MessageJoined,
    SessionGranted,
    TurnStarted,
)
from parley.errors import ApprovalIsSettled
from parley.wire.events import (
    ApplyPatchApprovalRequest,
    ExecApprovalRequest,
    LimitReached,
    SettledBy,
    Settlement,
)
from parley.wire.ids import ApprovalId, CallId, EventId
from parley.wire.principals import LOCAL, PrincipalRef

__all__ = ["ApprovalEvent", "ApprovalState", "Grant", "PendingApproval", "SettledApproval", "may_answer"]

ApprovalEvent = ExecApprovalRequest | ApplyPatchApprovalRequest | LimitReached
"""An event that tells clients about an approval request."""


def may_answer(answers_from: AnswersFrom, principal: PrincipalRef | None, *, began_by: PrincipalRef | None) -> bool:
    """Return whether `answers_from`, the value of the setting `[approvals] from`, allows `principal` to answer the
    approvals of a turn.

    `began_by` is the principal that began the turn. If an older version of Parley began the turn and did not record
    the principal, `began_by` is None, and the local user counts as this principal.
    """
    match answers_from:
        case "anyone":
            return True
        case "designated":
            return principal == (began_by or LOCAL)
        case "local":
            return principal == LOCAL


class PendingApproval(Struct, frozen=True, kw_only=True):
    """An open approval: the record of the request, the event that tells clients about the request, and the turn
    that is waiting for the decision.
    """

    request: ApprovalRequest
    event: ApprovalEvent
    event_id: EventId
    """The id of the turn that is waiting for the decision. All events of a turn have the id of the turn."""
    at: float
    """The time of the request, in seconds since the epoch."""
    began_by: PrincipalRef | None = None
    """The principal that began the turn; None in logs of older versions of Parley."""

    @property
    def approval_id(self) -> ApprovalId:
        return self.request.approval_id

    def may_be_answered_by(self, principal: PrincipalRef | None) -> bool:
        """Return whether the setting `[approvals] from` allows `principal` to answer this approval. The role of the
        principal is not checked.
        """
        return may_answer(self.request.answers_from, principal, began_by=self.began_by)


class SettledApproval(Struct, frozen=True, kw_only=True):
    """The settlement of an approval: the decision, who or what made the decision, and the reason."""

    decision: Settlement
    by: SettledBy
    principal: PrincipalRef | None
    reason: str | None
    at: float
    """The time of the settlement, in seconds since the epoch."""

    def error(self) -> ApprovalIsSettled:
        """Return the error that a client gets if it answers the settled approval again."""
        return ApprovalIsSettled(
            self.decision,
            by=self.by,
            principal=None if self.principal is None else self.principal.name,
            reason=self.reason,
            at=self.at,
        )


class Grant(Struct, frozen=True, array_like=True):
    """A session grant: the time when a principal approved an action for the session, and the principal."""

    at: float
    """The time of the approval, in seconds since the epoch."""
    principal: PrincipalRef


class ApprovalState:
    """The projection of the approvals of one log."""

    __slots__ = ("_event", "_event_id", "answer_ids", "began_by", "granted", "joined_by", "open", "settled")

    def __init__(self) -> None:
        self.open: PendingApproval | None = None
        self.settled: dict[ApprovalId, SettledApproval] = {}
        self.answer_ids: set[str] = set()
        """The ids of the answers that settled the approvals in `settled`. A later answer with one of these ids is a
        repetition.
        """
        self._event: ApprovalEvent | None = None
        self._event_id = EventId("")
        self.began_by: PrincipalRef | None = None
        """The principal that began the last turn; None if the principal is unknown."""
        self.joined_by: tuple[PrincipalRef | None, ...] = ()
        """The principals, other than `began_by`, whose messages joined the last turn. None represents an unknown
        principal.
        """
        self.granted: dict[str, Grant] = {}
        """Maps the key of each action that was approved for the session (`SessionGranted.key`) to the most recent
        session grant for the action.
        """

    @classmethod
    def restored(
        cls,
        event_id: EventId | None,
        began_by: PrincipalRef | None,
        joined_by: tuple[PrincipalRef | None, ...],
        granted: dict[str, Grant],
    ) -> ApprovalState:
        """Create the state from the values that a checkpoint contains. The new state has no open approval, because
        no checkpoint is made while an approval is open.

        The new state does not contain the settlements before the checkpoint. The store finds them by approval id
        (`conversation/keys.py`), and `learn` adds them.
        """
        approvals = cls()
        approvals.began_by, approvals.joined_by, approvals.granted = began_by, joined_by, granted
        approvals._event_id = event_id or EventId("")
        return approvals

    def copy(self) -> ApprovalState:
        """Return an independent copy."""
        approvals = ApprovalState.restored(self._event_id, self.began_by, self.joined_by, dict(self.granted))
        approvals.open, approvals._event = self.open, self._event
        approvals.settled, approvals.answer_ids = dict(self.settled), set(self.answer_ids)
        return approvals

    @property
    def is_settled(self) -> bool:
        """True if no approval is open and the record of the last approval event has been applied. The record
        directly follows the event in the log.
        """
        return self.open is None and self._event is None

    def add_settlement(self, settled: ApprovalSettlement, *, at: float) -> None:
        """Add the settlement `settled`, for example a settlement from before the checkpoint that was read from the
        store. `at` is the time of the settlement, in seconds since the epoch.
        """
        self.settled[settled.approval_id] = SettledApproval(
            decision=settled.decision,
            by=settled.by,
            principal=settled.principal,
            reason=settled.reason,
            at=at,
        )
        if settled.answer_id:
            self.answer_ids.add(settled.answer_id)

    def apply(self, payload: LogPayload, *, at: float) -> None:
        """Update the approvals with one entry of the log. `at` is the time of the entry, in seconds since the
        epoch.
        """
        match payload:
            case TurnStarted(event_id=event_id, principal=principal):
                self._event_id, self._event, self.began_by, self.joined_by = event_id, None, principal, ()
            case MessageJoined(principal=principal):
                if principal not in (self.began_by, *self.joined_by):
                    self.joined_by += (principal,)
            case ExecApprovalRequest() | ApplyPatchApprovalRequest() | LimitReached():
                self._event = payload
            case ApprovalRequest(approval_id=approval_id):
                if self._event is None or self.open is not None or approval_id in self.settled:
                    raise ValueError(f"the approval {approval_id} cannot be requested here")
                if payload != _expected_record(self._event, payload):
                    raise ValueError(f"the approval {approval_id} is not the one that was shown")
                self.open = PendingApproval(
                    request=payload, event=self._event, event_id=self._event_id, at=at, began_by=self.began_by
                )
                self._event = None
            case ApprovalSettlement(approval_id=approval_id):
                if self.open is None or self.open.approval_id != approval_id:
                    raise ValueError(f"the approval {approval_id} is not open")
                self.open = None
                self.add_settlement(payload, at=at)
            case SessionGranted(principal=name, token_id=token_id, key=key):
                if name:
                    self.granted[key] = Grant(at, PrincipalRef(name=name, token_id=token_id))
            case _:
                pass


def _expected_record(event: ApprovalEvent, request: ApprovalRequest) -> ApprovalRequest:
    """Return a copy of `request` in which every field that `event` determines has the value from `event`. `request`
    is the record that follows `event` in the log.

    If the returned record differs from `request`, the log is invalid: the approval would allow an action other than
    the action that clients have seen.
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
                unrestored=(),
            )
        case LimitReached():
            return ApprovalRequest(
                approval_id=request.approval_id,
                kind="limit",
                call_id=CallId(""),
                answers_from=request.answers_from,
            )
