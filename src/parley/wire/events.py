"""One struct per event, and the closed union `EventMsg`.

The tag is the wire's word for the event and, for a client that streams, the method of its
notification. A field that may be missing is `UNSET`; one that may be null is `None`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from parley.wire.ids import ApprovalId, CallId, ConversationId, MessageId
from parley.wire.items import InputItem
from parley.wire.jsonrpc import decode_lenient, encode

__all__ = [
    "EVENT_TYPES",
    "FOR_FULL_VERSION_ONLY",
    "NEVER_SENT",
    "AddedFile",
    "AgentMessage",
    "AgentMessageDelta",
    "AgentReasoning",
    "AgentReasoningDelta",
    "AgentReasoningRawContent",
    "AgentReasoningRawContentDelta",
    "ApplyPatchApprovalRequest",
    "ApprovalSettled",
    "BackgroundEvent",
    "Decision",
    "Duration",
    "ErrorEvent",
    "EventBase",
    "EventMsg",
    "ExecApprovalRequest",
    "ExecCommandBegin",
    "ExecCommandEnd",
    "ExecCommandOutputDelta",
    "FileChange",
    "GetHistoryEntryResponse",
    "Invocation",
    "LimitReached",
    "McpToolCallBegin",
    "McpToolCallEnd",
    "OtherChange",
    "OutputStream",
    "ParsedCommand",
    "ParsedListFiles",
    "ParsedPlain",
    "ParsedRead",
    "ParsedSearch",
    "ParsedWithTargets",
    "PatchApplyBegin",
    "PatchApplyEnd",
    "PlanStep",
    "PlanUpdate",
    "SessionConfigured",
    "SettledBy",
    "Settlement",
    "ShutdownComplete",
    "TaskComplete",
    "TaskStarted",
    "TokenCount",
    "ToolCallOutcome",
    "TurnDiff",
    "TurnEndReason",
    "UnknownEvent",
    "UpdatedFile",
    "UserMessage",
    "decode_event",
    "event_type",
    "plain_event",
]


TurnEndReason = Literal["done", "failed", "interrupted", "restarted", "stopped"]


class EventBase(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Something that happened in a conversation and that clients may see."""


# --- the turn ------------------------------------------------------------------------


class SessionConfigured(EventBase, frozen=True, kw_only=True, tag="session_configured"):
    """A `codex` call has its session; the first thing such a call hears."""

    session_id: ConversationId
    model: str
    history_log_id: int
    """Inode of `history.jsonl` in the home, 0 without it."""
    history_entry_count: int


class TaskStarted(EventBase, frozen=True, kw_only=True, tag="task_started"):
    """A turn begins."""


class TaskComplete(EventBase, frozen=True, kw_only=True, tag="task_complete"):
    """A turn ended by itself, well or badly; an interrupted one ends with its `error` alone."""

    last_agent_message: str | None


class UserMessage(EventBase, frozen=True, kw_only=True, tag="user_message"):
    """What the user said, right behind `task_started` or where it joined a running turn."""

    message_id: MessageId
    parent_message_id: MessageId | UnsetType = UNSET
    content: tuple[InputItem, ...]


class ErrorEvent(EventBase, frozen=True, kw_only=True, tag="error"):
    """The turn failed or was interrupted, or a tool server could not be started."""

    message: str
    reason: TurnEndReason | UnsetType = UNSET
    """Why the turn ended; missing if the error did not end a turn."""
    code: str | UnsetType = UNSET
    """The code of the error; missing if the turn was interrupted."""


class BackgroundEvent(EventBase, frozen=True, kw_only=True, tag="background_event"):
    """Something worth knowing that needs no action: a retry, a compaction."""

    message: str


class TokenCount(EventBase, frozen=True, kw_only=True, tag="token_count"):
    """What one response of the model cost."""

    input_tokens: int
    cached_input_tokens: int | None
    output_tokens: int
    reasoning_output_tokens: int | None
    total_tokens: int


# --- what the agent says -------------------------------------------------------------


class AgentMessage(EventBase, frozen=True, kw_only=True, tag="agent_message"):
    """One text of the assistant, whole."""

    message: str


class AgentMessageDelta(EventBase, frozen=True, kw_only=True, tag="agent_message_delta"):
    """A piece of a text still being written; its `agent_message` supersedes it."""

    delta: str


class AgentReasoning(EventBase, frozen=True, kw_only=True, tag="agent_reasoning"):
    """One part of a reasoning summary, whole."""

    text: str


class AgentReasoningDelta(EventBase, frozen=True, kw_only=True, tag="agent_reasoning_delta"):
    delta: str


class AgentReasoningRawContent(EventBase, frozen=True, kw_only=True, tag="agent_reasoning_raw_content"):
    """Raw reasoning, only where `show_raw_agent_reasoning` asks for it."""

    text: str


class AgentReasoningRawContentDelta(EventBase, frozen=True, kw_only=True, tag="agent_reasoning_raw_content_delta"):
    delta: str


# --- commands ------------------------------------------------------------------------


OutputStream = Literal["stdout", "stderr"]


class Duration(Struct, frozen=True, kw_only=True):
    secs: int
    nanos: int


class ParsedRead(Struct, frozen=True, kw_only=True):
    cmd: tuple[str, ...]
    name: str


class ParsedListFiles(Struct, frozen=True, kw_only=True):
    cmd: tuple[str, ...]
    path: str | None


class ParsedSearch(Struct, frozen=True, kw_only=True):
    cmd: tuple[str, ...]
    query: str | None
    path: str | None


class ParsedWithTargets(Struct, frozen=True, kw_only=True):
    cmd: tuple[str, ...]
    tool: str | None
    targets: tuple[str, ...] | None


class ParsedPlain(Struct, frozen=True, kw_only=True):
    cmd: tuple[str, ...]


class ParsedCommand(Struct, frozen=True, kw_only=True, rename="pascal"):
    """What a command seems to do, for display only: exactly one of these is set."""

    read: ParsedRead | UnsetType = UNSET
    list_files: ParsedListFiles | UnsetType = UNSET
    search: ParsedSearch | UnsetType = UNSET
    format: ParsedWithTargets | UnsetType = UNSET
    test: ParsedPlain | UnsetType = UNSET
    lint: ParsedWithTargets | UnsetType = UNSET
    unknown: ParsedPlain | UnsetType = UNSET


class ExecCommandBegin(EventBase, frozen=True, kw_only=True, tag="exec_command_begin"):
    """A command starts."""

    call_id: CallId
    command: tuple[str, ...]
    cwd: str
    parsed_cmd: tuple[ParsedCommand, ...]


class ExecCommandOutputDelta(EventBase, frozen=True, kw_only=True, tag="exec_command_output_delta"):
    """Output as it was read, at most 8192 bytes."""

    call_id: CallId
    stream: OutputStream
    chunk: tuple[int, ...]


class ExecCommandEnd(EventBase, frozen=True, kw_only=True, tag="exec_command_end"):
    """A command ended; -1 when it did not run to its end."""

    call_id: CallId
    stdout: str
    stderr: str
    exit_code: int
    duration: Duration


class ExecApprovalRequest(EventBase, frozen=True, kw_only=True, tag="exec_approval_request"):
    """The agent has stopped until someone allows or denies one command."""

    call_id: CallId
    command: tuple[str, ...]
    cwd: str
    reason: str | UnsetType = UNSET


# --- patches -------------------------------------------------------------------------


class AddedFile(Struct, frozen=True, kw_only=True):
    content: str


class UpdatedFile(Struct, frozen=True, kw_only=True):
    unified_diff: str
    move_path: str | None


class OtherChange(Struct, frozen=True, kw_only=True):
    """A file added or updated: exactly one of the two is set."""

    add: AddedFile | UnsetType = UNSET
    update: UpdatedFile | UnsetType = UNSET


FileChange = Literal["delete"] | OtherChange


class ApplyPatchApprovalRequest(EventBase, frozen=True, kw_only=True, tag="apply_patch_approval_request"):
    """The agent has stopped until someone allows or denies one patch."""

    call_id: CallId
    changes: dict[str, FileChange]
    reason: str | UnsetType = UNSET
    grant_root: str | UnsetType = UNSET


class PatchApplyBegin(EventBase, frozen=True, kw_only=True, tag="patch_apply_begin"):
    call_id: CallId
    auto_approved: bool
    changes: dict[str, FileChange]


class PatchApplyEnd(EventBase, frozen=True, kw_only=True, tag="patch_apply_end"):
    call_id: CallId
    stdout: str
    stderr: str
    success: bool


class TurnDiff(EventBase, frozen=True, kw_only=True, tag="turn_diff"):
    """All that the turn's patches changed so far, as git would show it."""

    unified_diff: str


# --- plan, tool servers, questions, limits -------------------------------------------


class PlanStep(Struct, frozen=True, kw_only=True):
    step: str
    status: Literal["pending", "in_progress", "completed"]


class PlanUpdate(EventBase, frozen=True, kw_only=True, tag="plan_update"):
    explanation: str | None
    plan: tuple[PlanStep, ...]


class Invocation(Struct, frozen=True, kw_only=True):
    server: str
    tool: str
    arguments: Any | None


class ToolCallOutcome(Struct, frozen=True, kw_only=True, rename="pascal"):
    """What a tool server answered: exactly one of the two is set."""

    ok: Any | UnsetType = UNSET
    err: str | UnsetType = UNSET


class McpToolCallBegin(EventBase, frozen=True, kw_only=True, tag="mcp_tool_call_begin"):
    call_id: CallId
    invocation: Invocation


class McpToolCallEnd(EventBase, frozen=True, kw_only=True, tag="mcp_tool_call_end"):
    call_id: CallId
    invocation: Invocation
    duration: Duration
    result: ToolCallOutcome


Decision = Literal["approved", "approved_for_session", "denied", "abort"]
Settlement = Decision | Literal["timed_out", "dropped"]
SettledBy = Literal["client", "tool", "timeout", "interrupt"]


class ApprovalSettled(EventBase, frozen=True, kw_only=True, tag="approval_settled"):
    """A question has its answer, or nobody needs one any more."""

    approval_id: ApprovalId
    call_id: CallId
    decision: Settlement
    by: SettledBy
    reason: str | UnsetType = UNSET


class LimitReached(EventBase, frozen=True, kw_only=True, tag="limit_reached"):
    """The agent has stopped until someone says whether it may go on beyond a limit of `[limits]`."""

    limit: str
    """Its name in `[limits]`."""
    used: int
    allowed: int


# --- part of the vocabulary, never sent over MCP --------------------------------------


class GetHistoryEntryResponse(EventBase, frozen=True, kw_only=True, tag="get_history_entry_response"):
    offset: int
    log_id: int
    entry: Any | None = None


class ShutdownComplete(EventBase, frozen=True, kw_only=True, tag="shutdown_complete"):
    pass


EventMsg = (
    SessionConfigured
    | TaskStarted
    | TaskComplete
    | UserMessage
    | ErrorEvent
    | BackgroundEvent
    | TokenCount
    | AgentMessage
    | AgentMessageDelta
    | AgentReasoning
    | AgentReasoningDelta
    | AgentReasoningRawContent
    | AgentReasoningRawContentDelta
    | ExecCommandBegin
    | ExecCommandOutputDelta
    | ExecCommandEnd
    | ExecApprovalRequest
    | ApplyPatchApprovalRequest
    | PatchApplyBegin
    | PatchApplyEnd
    | TurnDiff
    | PlanUpdate
    | McpToolCallBegin
    | McpToolCallEnd
    | ApprovalSettled
    | LimitReached
    | GetHistoryEntryResponse
    | ShutdownComplete
)


def event_type(event: EventBase | type[EventBase]) -> str:
    """The wire's word for an event: its tag, and the method of its notification."""
    return str(event.__struct_config__.tag)


EVENT_TYPES: Final = {event_type(cls): cls for cls in get_args(EventMsg)}

NEVER_SENT: Final = frozenset(event_type(cls) for cls in (GetHistoryEntryResponse, ShutdownComplete))
"""Event types that clients may know and that the server never sends."""

FOR_FULL_VERSION_ONLY: Final = frozenset(event_type(cls) for cls in (UserMessage, ApprovalSettled, LimitReached))
"""Additions of ours that clients at older revisions are not sent."""


_ERROR: Final = event_type(ErrorEvent)
_error_decoder: Final = msgspec.json.Decoder(ErrorEvent)


def plain_event(kind: str, encoded: bytes) -> bytes:
    """Return an encoded event without the fields that clients at older revisions are not sent."""
    return encode(ErrorEvent(message=_error_decoder.decode(encoded).message)) if kind == _ERROR else encoded


class UnknownEvent(Struct, frozen=True, kw_only=True):
    """An event of a newer server, kept as it came."""

    type: str
    encoded: bytes


class _Tagged(Struct):
    type: str


_decoder: Final[msgspec.json.Decoder[EventMsg]] = msgspec.json.Decoder(EventMsg)
_tag_decoder: Final = msgspec.json.Decoder(_Tagged)


def decode_event(encoded: bytes) -> EventMsg | UnknownEvent:
    """The event that `encoded` holds.

    Raises:
        msgspec.DecodeError: there is no `type`, or the fields do not fit it.
    """
    tag = decode_lenient(_tag_decoder, encoded).type
    if tag not in EVENT_TYPES:
        return UnknownEvent(type=tag, encoded=bytes(encoded))
    return decode_lenient(_decoder, encoded)
