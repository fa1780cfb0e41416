"""Defines one struct for each event, and the union `EventMsg` of all events.

The tag of a struct is the type of the event. In a stream, the type is also the method of the notification. A
missing field is `UNSET`, and a field with the value null is `None`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

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
    "PatchRefused",
    "PlanStep",
    "PlanUpdate",
    "QueueChanged",
    "RequestRetry",
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
    "WebSearch",
    "WebSearchResult",
    "WorkspaceUpdated",
    "decode_event",
    "event_type",
    "plain_event",
]


TurnEndReason = Literal["done", "failed", "interrupted", "restarted", "stopped"]


class EventBase(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base class of events: the entries of a log that clients can see."""


# --- the turn ------------------------------------------------------------------------


class SessionConfigured(EventBase, frozen=True, kw_only=True, tag="session_configured"):
    """Reports the conversation and the model that a `codex` call uses. This event is the first event of the
    call.
    """

    session_id: ConversationId
    model: str
    history_log_id: int
    """The inode number of `history.jsonl` in the home directory; 0 if the file does not exist."""
    history_entry_count: int


class TaskStarted(EventBase, frozen=True, kw_only=True, tag="task_started"):
    """Reports that a turn has begun."""


class TaskComplete(EventBase, frozen=True, kw_only=True, tag="task_complete"):
    """Reports that a turn completed or failed.

    An interrupted turn ends with an `error` event, without this event.
    """

    last_agent_message: str | None


class UserMessage(EventBase, frozen=True, kw_only=True, tag="user_message"):
    """A message from the user.

    The event comes directly after `task_started`, or later in the turn that accepted the message.
    """

    message_id: MessageId
    parent_message_id: MessageId | UnsetType = UNSET
    content: tuple[InputItem, ...]
    principal: str | UnsetType = UNSET
    """The name of the principal that sent the message; missing in logs of older versions of Parley."""


class ErrorEvent(EventBase, frozen=True, kw_only=True, tag="error"):
    """Reports that the turn failed or was interrupted, or that a tool server could not be started."""

    message: str
    reason: TurnEndReason | UnsetType = UNSET
    """The reason why the turn ended; missing if the error did not end a turn."""
    code: str | UnsetType = UNSET
    """The error code; missing if the turn was interrupted."""
    principal: str | UnsetType = UNSET
    """The name of the principal that interrupted the turn; missing if no principal did."""


REPLY_CUT_OFF: Final = "The model's reply was cut off: "
"""The first words of a `background_event` which reports that the provider has truncated a model response. The
reason follows, and `; calls not run: N` if the response contained incomplete tool calls.
"""


class BackgroundEvent(EventBase, frozen=True, kw_only=True, tag="background_event"):
    """Information that needs no action from the client, such as a retry or a compaction."""

    message: str


class RequestRetry(EventBase, frozen=True, kw_only=True, tag="request_retry"):
    """Reports that a model request failed, and that the server will repeat the request."""

    attempt: int
    """The number of the retry, counted from 1."""
    max_attempts: int
    delay_ms: int
    """The delay before the retry, in milliseconds."""
    reason: str
    """The HTTP status of the provider's response, or a description of how the connection was lost."""


class TokenCount(EventBase, frozen=True, kw_only=True, tag="token_count"):
    """Reports the number of tokens that one model response used."""

    input_tokens: int
    cached_input_tokens: int | None
    output_tokens: int
    reasoning_output_tokens: int | None
    total_tokens: int
    cost_micros: int | UnsetType = UNSET
    """The cost of the response in millionths of the currency of the prices; missing if the price is unknown."""


# --- messages and reasoning ----------------------------------------------------------


class AgentMessage(EventBase, frozen=True, kw_only=True, tag="agent_message"):
    """A complete message from the model."""

    message: str


class AgentMessageDelta(EventBase, frozen=True, kw_only=True, tag="agent_message_delta"):
    """A piece of a message that the model is still writing. The later `agent_message` contains the complete
    message.
    """

    delta: str


class AgentReasoning(EventBase, frozen=True, kw_only=True, tag="agent_reasoning"):
    """A complete part of a reasoning summary."""

    text: str


class AgentReasoningDelta(EventBase, frozen=True, kw_only=True, tag="agent_reasoning_delta"):
    delta: str


class AgentReasoningRawContent(EventBase, frozen=True, kw_only=True, tag="agent_reasoning_raw_content"):
    """Raw reasoning from the model, as opposed to a summary. The server sends this event only with the setting
    `show_raw_agent_reasoning`.
    """

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
    """The apparent purpose of a command, such as reading a file, for display only. Exactly one field is set."""

    read: ParsedRead | UnsetType = UNSET
    list_files: ParsedListFiles | UnsetType = UNSET
    search: ParsedSearch | UnsetType = UNSET
    format: ParsedWithTargets | UnsetType = UNSET
    test: ParsedPlain | UnsetType = UNSET
    lint: ParsedWithTargets | UnsetType = UNSET
    unknown: ParsedPlain | UnsetType = UNSET


class ExecCommandBegin(EventBase, frozen=True, kw_only=True, tag="exec_command_begin"):
    """Reports that a command was started."""

    call_id: CallId
    command: tuple[str, ...]
    cwd: str
    parsed_cmd: tuple[ParsedCommand, ...]


class ExecCommandOutputDelta(EventBase, frozen=True, kw_only=True, tag="exec_command_output_delta"):
    """A piece of a command's output, at most 8192 bytes."""

    call_id: CallId
    stream: OutputStream
    chunk: tuple[int, ...]


class ExecCommandEnd(EventBase, frozen=True, kw_only=True, tag="exec_command_end"):
    """Reports that a command ended.

    `exit_code` is -1 if the command did not run to its end, or if the sandbox may have caused its failure.
    """

    call_id: CallId
    stdout: str
    stderr: str
    exit_code: int
    duration: Duration


class ExecApprovalRequest(EventBase, frozen=True, kw_only=True, tag="exec_approval_request"):
    """Reports that the agent is waiting until a command is approved or denied."""

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
    """A change that adds or updates one file. Exactly one field is set. In `FileChange`, the string `delete`
    represents a deletion.
    """

    add: AddedFile | UnsetType = UNSET
    update: UpdatedFile | UnsetType = UNSET


FileChange = Literal["delete"] | OtherChange


class ApplyPatchApprovalRequest(EventBase, frozen=True, kw_only=True, tag="apply_patch_approval_request"):
    """Reports that the agent is waiting until a patch is approved or denied."""

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


class PatchRefused(EventBase, frozen=True, kw_only=True, tag="patch_refused"):
    """Reports that the server refused a patch without writing it, for example because it does not match the files.
    The model gets the same reason as the output of the call.
    """

    call_id: CallId
    message: str


class TurnDiff(EventBase, frozen=True, kw_only=True, tag="turn_diff"):
    """Reports all changes that the patches of the turn have made so far, as a diff in Git's format."""

    unified_diff: str


# --- plan, tool servers, approval requests, limits -------------------------------------------


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
    """The outcome of a tool call that a tool server executed: `ok` with the result, or `err` with an error message.
    Exactly one field is set.
    """

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
    """Reports that an approval was decided, or that the turn ended before a decision."""

    approval_id: ApprovalId
    call_id: CallId
    decision: Settlement
    by: SettledBy
    reason: str | UnsetType = UNSET
    principal: str | UnsetType = UNSET
    """The name of the principal that decided the approval or interrupted the turn; missing if no principal did."""


class LimitReached(EventBase, frozen=True, kw_only=True, tag="limit_reached"):
    """Reports that the agent is waiting for a decision about whether the turn may exceed a limit. The section
    `[limits]` of the settings contains the limits.
    """

    limit: str
    """The name of the limit in the section `[limits]` of the settings."""
    used: int
    """The amount that was used, in the unit of the limit. Costs are in millionths of the currency of the prices."""
    allowed: int

    @property
    def amounts(self) -> str:
        """The used amount and the allowed amount as a string, such as `3 of 5`."""
        if self.limit.endswith("_cost"):
            return f"{self.used / 1_000_000:.2f} of {self.allowed / 1_000_000:.2f}"
        return f"{self.used} of {self.allowed}"


# --- the queue -----------------------------------------------------------------------


class QueueChanged(EventBase, frozen=True, kw_only=True, tag="queue_changed"):
    """Reports that the queue of the conversation was changed, paused or resumed."""

    messages: tuple[MessageId, ...]
    """The ids of the queued messages; the next message is first."""
    paused: bool
    principal: str | UnsetType = UNSET
    """The name of the principal that changed the queue; missing if no principal did."""


# --- the repository ------------------------------------------------------------------


class WorkspaceUpdated(EventBase, frozen=True, kw_only=True, tag="workspace_updated"):
    """Reports the newest commit of a conversation that works in a Git repository.

    The event is sent after the worktree was created or moved to another commit. It is also sent at the end of each
    turn that changed files or whose commit could not be pushed.
    """

    repository: str
    """The name of the repository in the settings of the server."""
    branch: str
    """The branch of the conversation."""
    commit: str
    """The id of the newest commit of the branch."""
    pushed: bool
    """True if the commit has been pushed to the repository."""
    node: str | UnsetType = UNSET
    """The id of the node that has the worktree; missing if the server is not a node."""
    code: str | UnsetType = UNSET
    """The error code; missing if nothing failed."""
    message: str | UnsetType = UNSET
    """A description of the failure, or of the Git repositories in the worktree that were not committed; missing if
    nothing failed and there are no uncommitted repositories.
    """


# --- searches ------------------------------------------------------------------------


class WebSearchResult(Struct, frozen=True, kw_only=True):
    """A web page that a search found."""

    url: str
    title: str
    """The title of the page; empty if the provider sent no title."""


class WebSearch(EventBase, frozen=True, kw_only=True, tag="web_search"):
    """Reports that the provider of the model searched the web."""

    call_id: str
    """The id that the provider chose for the search."""
    query: str
    results: tuple[WebSearchResult, ...]
    error: str | None = None
    """The error code of a search that failed; None if the search did not fail."""


# --- events of Codex that are never sent over MCP ------------------------------------


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
    | PatchRefused
    | TurnDiff
    | PlanUpdate
    | McpToolCallBegin
    | McpToolCallEnd
    | ApprovalSettled
    | LimitReached
    | QueueChanged
    | RequestRetry
    | WorkspaceUpdated
    | WebSearch
    | GetHistoryEntryResponse
    | ShutdownComplete
)


def event_type(event: EventBase | type[EventBase]) -> str:
    """Return the type of an event, which is also the method of its notification."""
    return str(event.__struct_config__.tag)


EVENT_TYPES: Final = {event_type(cls): cls for cls in get_args(EventMsg)}

NEVER_SENT: Final = frozenset(event_type(cls) for cls in (GetHistoryEntryResponse, ShutdownComplete))
"""The types of events that exist in Codex and that Parley never sends. They are part of `EventMsg`, so that clients
can decode them.
"""

FOR_FULL_VERSION_ONLY: Final = frozenset(
    event_type(cls)
    for cls in (
        UserMessage,
        ApprovalSettled,
        LimitReached,
        PatchRefused,
        QueueChanged,
        RequestRetry,
        WorkspaceUpdated,
        WebSearch,
    )
)
"""The types of events that are sent only to clients at protocol version 2025-11-25 and newer."""


_ERROR: Final = event_type(ErrorEvent)
_error_decoder: Final = msgspec.json.Decoder(ErrorEvent)
_TOKEN_COUNT: Final = event_type(TokenCount)
_token_decoder: Final = msgspec.json.Decoder(TokenCount)
_COST: Final = b'"cost_micros"'


def plain_event(kind: str, encoded: bytes) -> bytes:
    """Return `encoded`, an event of the type `kind`, without the fields that clients at protocol version 2025-06-18
    and older do not know.
    """
    if kind == _ERROR:
        return encode(ErrorEvent(message=_error_decoder.decode(encoded).message))
    if kind == _TOKEN_COUNT and _COST in encoded:
        return encode(replace(_token_decoder.decode(encoded), cost_micros=UNSET))
    return encoded


class UnknownEvent(Struct, frozen=True, kw_only=True):
    """An event from a newer server, of a type that this version of Parley does not know. The event stays
    encoded.
    """

    type: str
    encoded: bytes


class _Tagged(Struct):
    type: str


_tag_decoder: Final = msgspec.json.Decoder(_Tagged)


@cache
def _decoder() -> msgspec.json.Decoder[EventMsg]:
    """Return the decoder of all events. The decoder is created at the first call, because a server does not need it
    and creating it is slow.
    """
    return msgspec.json.Decoder(EventMsg)


def decode_event(encoded: bytes) -> EventMsg | UnknownEvent:
    """Decode an event. For an unknown type, return an `UnknownEvent`.

    Raises:
        msgspec.DecodeError: the event has no `type`, or its fields do not match its type.
    """
    tag = decode_lenient(_tag_decoder, encoded).type
    if tag not in EVENT_TYPES:
        return UnknownEvent(type=tag, encoded=bytes(encoded))
    return decode_lenient(_decoder(), encoded)
