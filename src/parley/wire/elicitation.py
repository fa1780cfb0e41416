"""Questions to the client: `elicitation/create`, and the forms its answers take."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.events import Decision, FileChange
from parley.wire.ids import ApprovalId, CallId, EventId

__all__ = [
    "FULL_SCHEMA",
    "PLAIN_SCHEMA",
    "AnswerContent",
    "ElicitationAnswer",
    "ElicitationParams",
    "QuestionFields",
    "QuestionKind",
]

QuestionKind = Literal["exec-approval", "patch-approval", "limit"]

PLAIN_SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {}}

FULL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "oneOf": [
                {"const": "approved", "title": "Yes, once"},
                {"const": "approved_for_session", "title": "Yes, for this session"},
                {"const": "denied", "title": "No"},
                {"const": "abort", "title": "No, and stop"},
            ],
        },
        "reason": {"type": "string", "title": "Reason, told to the agent"},
    },
}
"""What newer clients are shown; older ones get `PLAIN_SCHEMA`."""


class QuestionFields(Struct, frozen=True, kw_only=True):
    """The vendor fields of a question, at the top level and, for newer clients, in `_meta` as well."""

    codex_elicitation: QuestionKind
    codex_mcp_tool_call_id: str
    codex_event_id: EventId
    codex_call_id: CallId
    codex_command: tuple[str, ...] | UnsetType = UNSET
    codex_cwd: str | UnsetType = UNSET
    codex_reason: str | UnsetType = UNSET
    codex_grant_root: str | UnsetType = UNSET
    codex_changes: dict[str, FileChange] | UnsetType = UNSET
    parley_approval_id: ApprovalId | UnsetType = UNSET


class ElicitationParams(QuestionFields, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "elicitation/create"

    meta: QuestionFields | UnsetType = msgspec.field(default=UNSET, name="_meta")
    message: str
    requested_schema: Raw = msgspec.field(name="requestedSchema")


class AnswerContent(Struct, frozen=True, kw_only=True):
    """What a form was filled with; anything may stand in it."""

    decision: Any | UnsetType = UNSET
    reason: Any | UnsetType = UNSET


class ElicitationAnswer(Struct, frozen=True, kw_only=True):
    """An answer in either form: `decision`, or `action` with `content`."""

    decision: Decision | UnsetType = UNSET
    action: Literal["accept", "decline", "cancel"] | UnsetType = UNSET
    content: AnswerContent | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET
