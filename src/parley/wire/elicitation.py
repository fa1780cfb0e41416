"""The MCP request `elicitation/create`, which asks a client to decide an approval, and the possible answers."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.events import Decision, FileChange
from parley.wire.ids import ApprovalId, CallId, ConversationId, EventId
from parley.wire.jsonrpc import Message, decode_lenient, error_of
from parley.wire.tasks import RELATED_TASK, RelatedTask

__all__ = [
    "FULL_SCHEMA",
    "PLAIN_SCHEMA",
    "SESSION_FIRST_SCHEMA",
    "AnswerContent",
    "ApprovalFields",
    "ElicitationAnswer",
    "ElicitationKind",
    "ElicitationParams",
    "has_known_decision",
    "is_dismissal",
    "read_answer",
]

ElicitationKind = Literal["exec-approval", "patch-approval", "limit"]

PLAIN_SCHEMA: Final[dict[str, Any]] = {"properties": {}, "type": "object"}

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
"""The JSON Schema of the approval form for clients at protocol version 2025-11-25 and newer. Older clients get
`PLAIN_SCHEMA`.
"""

_once, _for_session, *_others = FULL_SCHEMA["properties"]["decision"]["oneOf"]
SESSION_FIRST_SCHEMA: Final[dict[str, Any]] = {
    **FULL_SCHEMA,
    "properties": {
        **FULL_SCHEMA["properties"],
        "decision": {**FULL_SCHEMA["properties"]["decision"], "oneOf": [_for_session, _once, *_others]},
    },
}
"""A variant of `FULL_SCHEMA` whose first choice is approval for the session."""


class ApprovalFields(Struct, frozen=True, kw_only=True):
    """The fields of an approval request that MCP does not define.

    The fields are at the top level of the params. For clients at protocol version 2025-11-25 and newer, the fields
    are also in `_meta`.
    """

    codex_elicitation: ElicitationKind
    codex_mcp_tool_call_id: str
    codex_event_id: EventId
    codex_call_id: CallId
    codex_command: tuple[str, ...] | UnsetType = UNSET
    codex_cwd: str | UnsetType = UNSET
    codex_reason: str | UnsetType = UNSET
    codex_grant_root: str | UnsetType = UNSET
    codex_changes: dict[str, FileChange] | UnsetType = UNSET
    parley_approval_id: ApprovalId | UnsetType = UNSET
    parley_conversation_id: ConversationId | UnsetType = UNSET
    parley_leaves_sandbox: Literal[True] | UnsetType = UNSET
    """True if the action would run outside the sandbox; otherwise not set."""
    related_task: RelatedTask | UnsetType = msgspec.field(default=UNSET, name=RELATED_TASK)
    """The task to which the approval belongs. This field is set only in `_meta`."""


class ElicitationParams(ApprovalFields, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "elicitation/create"

    meta: ApprovalFields | UnsetType = msgspec.field(default=UNSET, name="_meta")
    message: str
    requested_schema: Raw = msgspec.field(name="requestedSchema")


class AnswerContent(Struct, frozen=True, kw_only=True):
    """The content of an approval form that a person filled in. The values may have any type, because they are
    not checked yet.
    """

    decision: Any | UnsetType = UNSET
    reason: Any | UnsetType = UNSET


class ElicitationAnswer(Struct, frozen=True, kw_only=True):
    """An answer to an approval request, as Parley's client library sends it: either a `decision`, or an `action`
    with `content`.
    """

    decision: Decision | UnsetType = UNSET
    action: Literal["accept", "decline", "cancel"] | UnsetType = UNSET
    content: AnswerContent | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET


_DECISIONS: Final[tuple[Decision, ...]] = get_args(Decision)
_any_decoder: Final = msgspec.json.Decoder()


def read_answer(answer: Message) -> tuple[Decision, str | None]:
    """Return the decision and the reason in `answer`, the response of a client. The reason is None if the response
    contains no reason.

    A `decision` that is not null takes precedence over an `action`. The action `accept` stands for the decision in
    `content`, or for `approved` if `content` contains no known decision. The action `cancel` stands for `abort`.
    Any other response counts as `denied`.
    """
    if error_of(answer) is not None or isinstance(answer.result, UnsetType):
        return "denied", None
    try:
        result = decode_lenient(_any_decoder, answer.result)
    except msgspec.DecodeError:  # valid JSON, but nested too deeply
        return "denied", None
    if not isinstance(result, dict):
        return "denied", None
    content = result.get("content")
    filled = content if isinstance(content, dict) else {}
    reasons = (one for one in (result.get("reason"), filled.get("reason")) if isinstance(one, str))
    return _decision(result, filled), next(reasons, None)


def has_known_decision(answer: Message) -> bool:
    """Return whether the response `answer` has a known `action`, and the decision in its `content` is known or
    missing.
    """
    try:
        result = decode_lenient(_any_decoder, answer.result) if isinstance(answer.result, Raw) else None
    except msgspec.DecodeError:
        return False
    if not isinstance(result, dict) or result.get("action") not in ("accept", "decline", "cancel"):
        return False
    content = result.get("content")
    decision = content.get("decision") if isinstance(content, dict) else None
    return decision is None or _word(decision) is not None


def is_dismissal(answer: Message) -> bool:
    """Return whether the client closed the form without making a decision.

    Such a response contains the action `cancel` or `decline`, but no decision and no `content`.
    """
    if error_of(answer) is not None or isinstance(answer.result, UnsetType):
        return False
    try:
        result = decode_lenient(_dismissal_decoder, answer.result)
    except msgspec.DecodeError:
        return False
    return result.decision in (UNSET, None) and not result.content and result.action in ("cancel", "decline")


class _Dismissal(Struct):
    action: Any = None
    decision: Any = UNSET
    content: Any = None


_dismissal_decoder: Final = msgspec.json.Decoder(_Dismissal)


def _decision(result: dict[str, Any], filled: dict[str, Any]) -> Decision:
    if (decision := result.get("decision")) is not None:
        return _word(decision) or "denied"
    match result.get("action"):
        case "accept":
            return _word(filled.get("decision")) or "approved"
        case "cancel":
            return "abort"
        case _:
            return "denied"


def _word(value: Any) -> Decision | None:
    return next((word for word in _DECISIONS if word == value), None)
