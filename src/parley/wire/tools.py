"""The arguments and results of the server's tools. The schemas of the tools are generated from these types.

An optional argument may be null, which means the same as a missing argument.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from parley.wire.events import Decision, OutputStream, TokenCount, TurnEndReason
from parley.wire.ids import ApprovalId, CallId, ConversationId, ItemId, MessageId, Seq
from parley.wire.items import InputItem

__all__ = [
    "ApprovalAnswerArguments",
    "ApprovalPolicy",
    "ApprovalsListArguments",
    "ApprovalsListResult",
    "AttentionItem",
    "AttentionListArguments",
    "AttentionListResult",
    "AttentionState",
    "CodexArguments",
    "CodexReplyArguments",
    "CodexResult",
    "ConversationArchiveArguments",
    "ConversationArguments",
    "ConversationCreateArguments",
    "ConversationCreated",
    "ConversationForkArguments",
    "ConversationForked",
    "ConversationMarkReadArguments",
    "ConversationReadArguments",
    "ConversationReadResult",
    "ConversationRenameArguments",
    "ConversationSearchArguments",
    "ConversationSearchResult",
    "ConversationStatusResult",
    "ConversationStreamArguments",
    "ConversationSummary",
    "ConversationsListArguments",
    "ConversationsListResult",
    "CreateFailed",
    "Failed",
    "FoundMessage",
    "ListedApproval",
    "ListedProfile",
    "MessageAccepted",
    "MessageDelivery",
    "OpenText",
    "Owner",
    "PhaseName",
    "PlainCodexArguments",
    "PlainCodexReplyArguments",
    "PlainConversationCreateArguments",
    "PlainConversationReadArguments",
    "PlainConversationStreamArguments",
    "PlainOk",
    "PlainSendMessageArguments",
    "PositionedEvent",
    "QueueEditArguments",
    "QueueListResult",
    "QueueRemoveArguments",
    "QueuedItem",
    "SandboxMode",
    "SendMessageArguments",
    "SettingsListArguments",
    "SettingsListResult",
    "StreamStarted",
    "Tokens",
    "WorkspaceState",
]

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
PhaseName = Literal["idle", "running", "asking"]
MessageDelivery = Literal["join", "queue"]
AttentionState = Literal["waiting", "failed", "finished"]


# --- codex and codex-reply -----------------------------------------------------------


class PlainCodexArguments(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The arguments of `codex` for clients at protocol version 2025-06-18 and older."""

    prompt: Annotated[str, Meta(description="The task for the agent.")]
    approval_policy: Annotated[
        ApprovalPolicy | None, Meta(description="When commands that the model wants to run must be approved.")
    ] = None
    base_instructions: Annotated[
        str | None, Meta(description="Instructions for the model that replace the built-in instructions.")
    ] = None
    compact_prompt: Annotated[
        str | None,
        Meta(description="Instructions for summarizing a conversation that no longer fits the model's context."),
    ] = None
    config: Annotated[
        dict[str, Any] | None,
        Meta(description="Settings that override config.toml: dotted keys or nested objects."),
    ] = None
    cwd: Annotated[
        str | None,
        Meta(description="Working directory. A relative path is resolved against the server's working directory."),
    ] = None
    developer_instructions: Annotated[
        str | None, Meta(description="Instructions for the model in addition to the built-in instructions.")
    ] = None
    include_plan_tool: Annotated[
        bool | None, Meta(description="Whether the model is offered the update_plan tool.")
    ] = None
    model: Annotated[str | None, Meta(description="Name of the model to use.")] = None
    profile: Annotated[str | None, Meta(description="Name of a profile in config.toml.")] = None
    sandbox: Annotated[SandboxMode | None, Meta(description="Which files commands may write.")] = None


class CodexArguments(PlainCodexArguments, frozen=True, kw_only=True, rename="kebab"):
    repository: Annotated[
        str | None,
        Meta(
            description="Name of a repository in the server's settings. The agent works in a worktree of this "
            "repository instead of a directory."
        ),
    ] = None


class CodexReplyArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    thread_id: Annotated[str, Meta(description="The conversation to continue.")]
    prompt: Annotated[str, Meta(description="The next message of the user.")]


class PlainCodexReplyArguments(CodexReplyArguments, frozen=True, kw_only=True, rename="camel"):
    """The arguments of `codex-reply` for clients at protocol version 2025-06-18 and older."""

    thread_id: Annotated[str, Meta(description="The conversation to continue.")] = field(name="sessionId")
    prompt: Annotated[str, Meta(description="The next message of the user.")]


class WorkspaceState(Struct, frozen=True, kw_only=True):
    """The newest commit of a conversation that works in a Git repository."""

    repository: str
    branch: str
    commit: str
    pushed: bool
    """True if the commit has been pushed to the repository."""


class CodexResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The structured content of the results of `codex` and `codex-reply`, for clients at protocol version
    2025-11-25 and newer.

    Clients for different releases of Codex read different field names, so the conversation id and the message are
    sent under two names each.
    """

    thread_id: ConversationId
    session_id: ConversationId
    """The same value as `thread_id`."""
    content: str
    """The agent's last message, or the reason why the turn failed. If the client is a known host, such as Claude
    Code, notes about actions that were not performed and about an earlier turn may follow.
    """
    message: str
    """The agent's last message, or the reason why the turn failed, without the notes that `content` may contain."""
    reason: TurnEndReason | UnsetType = UNSET
    """The reason why the turn ended; missing while the turn is waiting for an approval."""
    code: str | UnsetType = UNSET
    """The error code; set only if the turn failed."""
    workspace: WorkspaceState | UnsetType = UNSET
    """The newest commit; missing if the conversation does not work in a repository."""


# --- create, send, stream, interrupt ---------------------------------------------------------------


class _CreateSettings(Struct, frozen=True, kw_only=True):
    """The arguments of `conversationCreate` that are the same at every protocol version."""

    approval_policy: Annotated[
        ApprovalPolicy | None, Meta(description="When commands that the model wants to run must be approved.")
    ] = None
    sandbox: Annotated[SandboxMode | None, Meta(description="Which files commands may write.")] = None
    config: Annotated[
        dict[str, Any] | None,
        Meta(description="Settings that override config.toml: dotted keys or nested objects."),
    ] = None
    profile: Annotated[str | None, Meta(description="Name of a profile in config.toml.")] = None
    base_instructions: Annotated[
        str | None, Meta(description="Instructions for the model that replace the built-in instructions.")
    ] = None


class PlainConversationCreateArguments(_CreateSettings, frozen=True, kw_only=True):
    """The arguments of `conversationCreate` for clients at protocol version 2025-06-18 and older."""

    prompt: Annotated[str, Meta(description="Required by the protocol, but ignored: nothing is sent to the model.")]
    model: Annotated[str, Meta(description="Name of the model to use.")]
    cwd: Annotated[
        str,
        Meta(description="Working directory. A relative path is resolved against the server's working directory."),
    ]


class ConversationCreateArguments(_CreateSettings, frozen=True, kw_only=True):
    prompt: Annotated[str | None, Meta(description="Ignored: nothing is sent to the model.")] = None
    model: Annotated[
        str | None, Meta(description="Name of the model to use (default: the model in the settings).")
    ] = None
    cwd: Annotated[
        str | None,
        Meta(
            description="Working directory. A relative path is resolved against the server's working directory. "
            "Required without `repository`."
        ),
    ] = None
    repository: Annotated[
        str | None,
        Meta(
            description="Name of a repository in the server's settings. The agent works in a worktree of this "
            "repository instead of a directory."
        ),
    ] = None


class ConversationCreated(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId
    model: str


class CreateFailed(Struct, frozen=True, kw_only=True):
    """The structured content of the result of a failed `conversationCreate` call."""

    message: str
    code: str | UnsetType = UNSET
    """The error code; only for clients at protocol version 2025-11-25 and newer."""


class PlainSendMessageArguments(Struct, frozen=True, kw_only=True):
    """The arguments of `conversationSendMessage` for clients at protocol version 2025-06-18 and older."""

    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    content: Annotated[tuple[InputItem, ...], Meta(description="The items of the message, in order.")]
    message_id: Annotated[
        UUID | None,
        Meta(description="The client's id of this message. Sending the same message again has no effect."),
    ] = None
    parent_message_id: Annotated[UUID | None, Meta(description="An earlier message to continue from.")] = None
    model: Annotated[str | None, Meta(description="From this message on: the model.")] = None
    cwd: Annotated[str | None, Meta(description="From this message on: the working directory.")] = None
    approval_policy: Annotated[
        ApprovalPolicy | None, Meta(description="From this message on: when commands must be approved.")
    ] = None
    sandbox: Annotated[
        SandboxMode | None, Meta(description="From this message on: which files commands may write.")
    ] = None
    config: Annotated[dict[str, Any] | None, Meta(description="From this message on: other settings.")] = None
    profile: Annotated[str | None, Meta(description="From this message on: the profile.")] = None
    base_instructions: Annotated[
        str | None, Meta(description="From this message on: the instructions for the model.")
    ] = None


class SendMessageArguments(PlainSendMessageArguments, frozen=True, kw_only=True):
    delivery: Annotated[
        MessageDelivery | None,
        Meta(
            description="While the agent works: `join` (the default) adds the message to the running turn, `queue` "
            "keeps the message until the turn has ended."
        ),
    ] = None
    output_schema: Annotated[
        dict[str, Any] | None,
        Meta(
            description="A JSON Schema for the agent's last message, which is then JSON. The schema applies only "
            "to the turn that the message begins."
        ),
    ] = None


class MessageAccepted(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"
    message_id: MessageId | UnsetType = UNSET
    """The id of the message; only for clients at protocol version 2025-11-25 and newer."""
    queued: bool | UnsetType = UNSET
    """True if the message is in the queue; set only with `delivery: "queue"`."""


class Failed(Struct, frozen=True, kw_only=True):
    """The structured content of the result of a failed call to a conversation tool."""

    status: Literal["error"] = "error"
    message: str
    code: str | UnsetType = UNSET
    """The error code; only for clients at protocol version 2025-11-25 and newer."""


class AnswerFailed(Failed, frozen=True, kw_only=True):
    """The structured content of the result of a failed `approvalAnswer` call. All fields after `code` are set only
    if the approval had already been settled.
    """

    decision: str | UnsetType = UNSET
    by: str | UnsetType = UNSET
    """How the approval was settled: a value of `by` in the event `approval_settled`."""
    principal: str | UnsetType = UNSET
    """The name of the principal that decided the approval or interrupted the turn; missing if no principal did."""
    reason: str | UnsetType = UNSET
    settled_at: str | UnsetType = UNSET
    """The time of the settlement in UTC, such as `2026-01-31T12:00:00.000Z`."""


class PlainConversationStreamArguments(Struct, frozen=True, kw_only=True):
    """The arguments of `conversationStream` for clients at protocol version 2025-06-18 and older."""

    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    after: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="A position: only later events are sent.")
    ] = None
    event_meta: Annotated[
        bool | None,
        Meta(description="Whether events have positions; the default is true for clients at 2025-11-25."),
    ] = None
    as_: Annotated[
        Literal["log"] | None,
        Meta(description="`log` sends everything as log messages, for clients that drop unknown notifications."),
    ] = field(default=None, name="as")


class ConversationStreamArguments(PlainConversationStreamArguments, frozen=True, kw_only=True):
    last: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(description="Send only this number of the newest events, before the live events. Not with `after`."),
    ] = None
    exclusive: Annotated[
        bool | None, Meta(description="True ends all streams that other clients have of this conversation.")
    ] = None


class StreamStarted(Struct, frozen=True, kw_only=True):
    pass


class StreamEnded(Struct, frozen=True, kw_only=True):
    """The result of a `conversationStream` call at protocol version 2026-07-28. The result is sent when the stream
    ends.
    """

    seq: Annotated[Seq, Meta(description="The last position that was sent. Pass it as `after` to continue.")]
    state: Annotated[str, Meta(description="The state of the conversation: idle, running, asking or deleted.")]


class ConversationsListArguments(Struct, frozen=True, kw_only=True):
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        Meta(description="Maximum number of conversations to return (default 50)."),
    ] = None
    cursor: Annotated[str | None, Meta(description="`next_cursor` of the previous page.")] = None
    cwd: Annotated[str | None, Meta(description="Only conversations in this working directory.")] = None
    text: Annotated[
        str | None, Meta(description="Only conversations with this text in the title or in a message.")
    ] = None
    state: Annotated[PhaseName | None, Meta(description="Only conversations in this state.")] = None
    archived: Annotated[
        bool | None, Meta(description="True lists only archived conversations, false (default) only the others.")
    ] = None


class ConversationSummary(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId
    title: str
    updated_at: str | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    state: PhaseName | UnsetType = UNSET
    unread: bool | UnsetType = UNSET
    """True if a turn has ended after the position up to which the client has read."""
    failed: bool | UnsetType = UNSET
    """True if the conversation is idle and its last turn failed, or ended because the server stopped."""


class ConversationsListResult(Struct, frozen=True, kw_only=True):
    conversations: tuple[ConversationSummary, ...]
    next_cursor: str | UnsetType = UNSET


class ConversationSearchArguments(Struct, frozen=True, kw_only=True):
    text: Annotated[str, Meta(description="The text to find. Upper and lower case match.", max_length=200)]
    conversation_id: Annotated[UUID | None, Meta(description="Only messages of this conversation.")] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=100)] | None,
        Meta(description="Maximum number of messages to return (default 20)."),
    ] = None
    cursor: Annotated[str | None, Meta(description="`next_cursor` of the previous page.")] = None


class FoundMessage(Struct, frozen=True, kw_only=True):
    """A message that contains the search text."""

    conversation_id: ConversationId
    title: str
    seq: Seq
    type: Literal["user_message", "agent_message"]
    at: str
    snippet: str
    """The part of the message that contains the first occurrence of the search text, on one line."""
    start: int
    """The offset in the snippet where the search text begins, in code points."""
    end: int
    """The offset in the snippet where the search text ends, in code points."""


class ConversationSearchResult(Struct, frozen=True, kw_only=True):
    messages: tuple[FoundMessage, ...]
    """The messages that contain the search text; the newest message is first."""
    next_cursor: str | UnsetType = UNSET
    """The cursor of the next page; missing if all messages were searched."""


# --- other conversation tools ----------------------------------------------------------------------------


class ConversationArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation.")]


class ConversationRenameArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    title: Annotated[str, Meta(description="The new title.", max_length=1000)]


class ConversationArchiveArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    archived: Annotated[
        bool | None, Meta(description="False restores the conversation to the list (default true).")
    ] = None


class ConversationForkArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation to copy.")]
    at_message_id: Annotated[
        UUID | None, Meta(description="Copy the history up to the turn of this message (default: all turns).")
    ] = None


class ConversationForked(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId


class PlainConversationReadArguments(Struct, frozen=True, kw_only=True):
    """The arguments of `conversationRead` for clients at protocol version 2025-06-18 and older."""

    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="A position: only later events are returned (default 0)."),
    ] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        Meta(description="Maximum number of events to return (default 100)."),
    ] = None
    wait_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=50)] | None,
        Meta(description="Time in seconds to wait if there are no later events (default 0)."),
    ] = None


class ConversationReadArguments(PlainConversationReadArguments, frozen=True, kw_only=True):
    before: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="A position: only the last events before it are returned. Not with `after`."),
    ] = None
    times: Annotated[bool | None, Meta(description="True adds the time `at` to each event.")] = None


class ConversationMarkReadArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    seq: Annotated[int, Meta(ge=0, description="The position up to which you have read the conversation.")]


class PositionedEvent(Struct, frozen=True, kw_only=True):
    """An event, or a piece of a command's output. All pieces of one output have the position of the
    record that contains the output.
    """

    seq: Seq
    item: ItemId | UnsetType = UNSET
    """The id of the command output to which the piece belongs; missing for an event."""
    offset: int | UnsetType = UNSET
    """The offset of the piece in the output, in bytes; missing for an event. A gap between two pieces means that
    the output between them was not stored.
    """
    at: str | UnsetType = UNSET
    """The time when the event was stored, in ISO 8601 format; set only if the argument `times` is true."""
    msg: Raw


class OpenText(Struct, frozen=True, kw_only=True):
    """Text that the model is still writing, or the output so far of a running command."""

    item: ItemId
    type: str
    text: str
    """The text or output so far. If the middle of an output was not stored, the output has two `OpenText` values:
    one for its beginning and one for its end.
    """
    call_id: CallId | UnsetType = UNSET
    """The id of the tool call that is running the command; missing for text from the model."""
    stream: OutputStream | UnsetType = UNSET
    """The output stream of the running command; missing for text from the model."""
    offset: int | UnsetType = UNSET
    """The offset of `text` in the command's output, in bytes; missing for text from the model."""


class ConversationReadResult(Struct, frozen=True, kw_only=True):
    events: tuple[PositionedEvent, ...]
    open: tuple[OpenText, ...]
    """The unfinished text from the model, and the output so far of running commands. Only the last page contains
    them. The list is always empty if the call has the argument `before`.
    """
    seq: Seq
    """The position in the log at which the page ends. A call with this value as `after` returns the next page."""
    state: PhaseName
    before: Seq | UnsetType = UNSET
    """The value to pass as `before` to get the preceding events. This field is missing if there are no preceding
    events, or if the call has no argument `before`.
    """


class QueuedItem(Struct, frozen=True, kw_only=True):
    """A message in the queue."""

    message_id: MessageId
    content: tuple[InputItem, ...]
    queued_at: str
    principal: str | UnsetType = UNSET
    """The name of the principal that queued the message; missing in logs of older versions of Parley."""


class QueueListResult(Struct, frozen=True, kw_only=True):
    messages: tuple[QueuedItem, ...]
    """The queued messages; the next message is first."""
    paused: bool
    """True if the queue is paused. No queued message then begins a turn until the queue is resumed or another
    message is sent.
    """


class QueueRemoveArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    message_id: Annotated[UUID, Meta(description="The queued message.")]


class QueueEditArguments(QueueRemoveArguments, frozen=True, kw_only=True):
    content: Annotated[tuple[InputItem, ...], Meta(description="The new items of the message, in order.")]


class PlainOk(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"


class ListedApproval(Struct, frozen=True, kw_only=True):
    """An open approval in the result of a tool such as `approvalsList`."""

    approval_id: ApprovalId
    conversation_id: ConversationId
    call_id: CallId
    kind: Literal["exec", "patch", "limit"]
    message: str
    asked_at: str
    command: tuple[str, ...] | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    changes: dict[str, Any] | UnsetType = UNSET
    leaves_sandbox: Literal[True] | UnsetType = UNSET
    """True if the action would run outside the sandbox; otherwise not set."""


class ApprovalsListArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID | None, Meta(description="Only approvals of this conversation.")] = None


class ApprovalsListResult(Struct, frozen=True, kw_only=True):
    approvals: tuple[ListedApproval, ...]
    """The open approvals; the oldest is first."""


class AttentionListArguments(Struct, frozen=True, kw_only=True):
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=200)] | None,
        Meta(description="Maximum number of conversations to return (default 50)."),
    ] = None
    cursor: Annotated[str | None, Meta(description="`next_cursor` of the previous page.")] = None


class AttentionItem(Struct, frozen=True, kw_only=True):
    """A conversation that needs a person's attention."""

    conversation_id: ConversationId
    title: str
    cwd: str
    state: AttentionState
    since: str
    """The time when the approval was requested or the turn ended, in ISO 8601 format."""
    approval: ListedApproval | UnsetType = UNSET
    """The approval that the conversation is waiting for; missing if the conversation is not waiting."""
    reason: TurnEndReason | UnsetType = UNSET
    """The reason why the turn ended; missing if the conversation is waiting for an approval."""
    message: str | UnsetType = UNSET
    """The beginning of the agent's last message or, if the turn was not completed, of the error message; missing if
    there is none, or if the conversation is waiting for an approval.
    """
    code: str | UnsetType = UNSET
    """The error code; set only if the turn failed."""
    seq: Seq | UnsetType = UNSET
    """The position up to which the client can mark the conversation as read; missing if the conversation is waiting
    for an approval.
    """


class AttentionListResult(Struct, frozen=True, kw_only=True):
    conversations: tuple[AttentionItem, ...]
    """The conversations in the order of their state: `waiting`, `failed`, `finished`. Among conversations with the
    same state, the conversation with the latest activity is first.
    """
    next_cursor: str | UnsetType = UNSET


class ApprovalAnswerArguments(Struct, frozen=True, kw_only=True):
    approval_id: Annotated[UUID, Meta(description="The approval to answer.")]
    decision: Annotated[
        Decision, Meta(description="Approve once, approve for the session, deny, or deny and stop the turn.")
    ]
    reason: Annotated[str | None, Meta(description="The reason of a denial. The model gets this reason.")] = None


class Tokens(Struct, frozen=True, kw_only=True):
    """The number of tokens that providers have reported for a conversation so far."""

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    total_tokens: int
    cost_micros: int | UnsetType = UNSET
    """The cost in millionths of the currency of the prices; missing if no price was known. Responses whose price
    was unknown are not included.
    """

    def plus(self, count: TokenCount) -> Tokens:
        """Return the sum of these token counts and the token counts of one response."""
        known = [micros for micros in (self.cost_micros, count.cost_micros) if not isinstance(micros, UnsetType)]
        return Tokens(
            input_tokens=self.input_tokens + count.input_tokens,
            cached_input_tokens=self.cached_input_tokens + (count.cached_input_tokens or 0),
            output_tokens=self.output_tokens + count.output_tokens,
            reasoning_output_tokens=self.reasoning_output_tokens + (count.reasoning_output_tokens or 0),
            total_tokens=self.total_tokens + count.total_tokens,
            cost_micros=sum(known) if known else UNSET,
        )


NO_TOKENS: Final = Tokens(
    input_tokens=0, cached_input_tokens=0, output_tokens=0, reasoning_output_tokens=0, total_tokens=0
)


class Owner(Struct, frozen=True, kw_only=True):
    """The process that is running the conversation's turn."""

    pid: int
    since: str


class ConversationStatusResult(Struct, frozen=True, kw_only=True):
    state: PhaseName
    seq: Seq
    title: str
    cwd: str
    model: str
    updated_at: str
    approvals: tuple[ListedApproval, ...] = field(name="questions")
    tokens: Tokens | None
    owner: Owner | None
    workspace: WorkspaceState | UnsetType = UNSET
    """The newest commit, for clients at protocol version 2025-11-25 and newer; missing if the conversation does not
    work in a repository.
    """


# --- settings ------------------------------------------------------------------------------


class SettingsListArguments(Struct, frozen=True, kw_only=True):
    conversation_id: UUID | None = None
    """The id of a conversation. The result then contains the settings that the next message of this conversation
    can change. If the id is None, the result contains the settings of a new conversation.
    """


class ListedProfile(Struct, frozen=True, kw_only=True):
    """A profile from config.toml. Only the settings that the profile contains are set."""

    name: str
    model: str | UnsetType = UNSET
    model_provider: str | UnsetType = UNSET
    approval_policy: ApprovalPolicy | UnsetType = UNSET
    model_reasoning_effort: str | UnsetType = UNSET
    model_reasoning_summary: str | UnsetType = UNSET
    disable_response_storage: bool | UnsetType = UNSET


class SettingsListResult(Struct, frozen=True, kw_only=True):
    """The settings that a client can choose, and their defaults: for a new conversation or, if the call names a
    conversation, for the next message of that conversation.
    """

    model: str
    models: tuple[str, ...]
    """The models that the settings name for the provider `model_provider`. The provider may also offer models that
    the settings do not name.
    """
    model_provider: str
    model_providers: tuple[str, ...]
    profile: str | None
    """The default profile of a new conversation; None if there is no default profile, if the call names a
    conversation, or if the client is not an admin.
    """
    profiles: tuple[ListedProfile, ...]
    cwd: str
    roots: tuple[str, ...]
    """The directories in which the working directory of a conversation must be. If the list is empty, an admin may
    choose any directory, and other clients may choose only the default directory.
    """
    approval_policy: ApprovalPolicy
    approval_policies: tuple[ApprovalPolicy, ...]
    """The approval policies that the client may choose; the strictest policy is first."""
    sandbox: SandboxMode
    sandbox_modes: tuple[SandboxMode, ...]
    """The sandbox modes that the client may choose; the strictest mode is first."""
    repositories: tuple[str, ...]
    """The names of the repositories in which a new conversation can work."""
