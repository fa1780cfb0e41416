"""Arguments and results of the tools that the server offers. Their schemas are made from these types.

An optional argument may be null, which means the same as leaving it out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from parley.wire.events import Decision, OutputStream, TurnEndReason
from parley.wire.ids import ApprovalId, CallId, ConversationId, ItemId, MessageId, Seq
from parley.wire.items import InputItem

__all__ = [
    "ApprovalAnswerArguments",
    "ApprovalPolicy",
    "ApprovalsListArguments",
    "ApprovalsListResult",
    "CodexArguments",
    "CodexReplyArguments",
    "CodexResult",
    "ConversationArchiveArguments",
    "ConversationArguments",
    "ConversationCreateArguments",
    "ConversationCreated",
    "ConversationForkArguments",
    "ConversationForked",
    "ConversationReadArguments",
    "ConversationReadResult",
    "ConversationRenameArguments",
    "ConversationStatusResult",
    "ConversationStreamArguments",
    "ConversationSummary",
    "ConversationsListArguments",
    "ConversationsListResult",
    "CreateFailed",
    "Failed",
    "MessageAccepted",
    "OpenText",
    "Owner",
    "PhaseName",
    "PlainCodexReplyArguments",
    "PlainConversationCreateArguments",
    "PlainOk",
    "PositionedEvent",
    "Question",
    "SandboxMode",
    "SendMessageArguments",
    "StreamStarted",
    "Tokens",
]

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
PhaseName = Literal["idle", "running", "asking"]


# --- codex and codex-reply -----------------------------------------------------------


class CodexArguments(Struct, frozen=True, kw_only=True, rename="kebab"):
    prompt: Annotated[str, Meta(description="The task for the agent.")]
    approval_policy: Annotated[
        ApprovalPolicy | None, Meta(description="When commands that the model wants to run must be approved.")
    ] = None
    base_instructions: Annotated[
        str | None, Meta(description="Instructions for the model in place of the built-in ones.")
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
        Meta(description="Working directory; a relative one is resolved against the server's own."),
    ] = None
    developer_instructions: Annotated[
        str | None, Meta(description="Instructions for the model in addition to the built-in ones.")
    ] = None
    include_plan_tool: Annotated[
        bool | None, Meta(description="Whether the model is offered the update_plan tool.")
    ] = None
    model: Annotated[str | None, Meta(description="Name of the model to use.")] = None
    profile: Annotated[str | None, Meta(description="Name of a profile in config.toml.")] = None
    sandbox: Annotated[SandboxMode | None, Meta(description="Which files commands may write.")] = None


class CodexReplyArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    thread_id: Annotated[str, Meta(description="The conversation to continue.")]
    prompt: Annotated[str, Meta(description="The next message of the user.")]


class PlainCodexReplyArguments(CodexReplyArguments, frozen=True, kw_only=True, rename="camel"):
    """The arguments for clients at 2025-06-18 and older."""

    thread_id: Annotated[str, Meta(description="The conversation to continue.")] = field(name="sessionId")
    prompt: Annotated[str, Meta(description="The next message of the user.")]


class CodexResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """Structured content of `codex` and `codex-reply`, for clients at 2025-11-25.

    Clients of different releases of Codex read different names, so each value has two.
    """

    thread_id: ConversationId
    session_id: ConversationId
    """The value of `thread_id` under another name."""
    content: str
    """The agent's last message, or why the turn failed."""
    message: str
    """The value of `content` under another name."""
    reason: TurnEndReason | UnsetType = UNSET
    """Why the turn ended; missing while it waits for an approval."""
    code: str | UnsetType = UNSET
    """The code of the error of a turn that failed."""


# --- create, send, stream, interrupt ---------------------------------------------------------------


class ConversationCreateArguments(Struct, frozen=True, kw_only=True):
    prompt: Annotated[str | None, Meta(description="Not used: nothing is sent to the model.")] = None
    model: Annotated[str | None, Meta(description="Name of the model to use (default: that of the settings).")] = (
        None
    )
    cwd: Annotated[str, Meta(description="Working directory; a relative one is resolved against the server's own.")]
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
        str | None, Meta(description="Instructions for the model in place of the built-in ones.")
    ] = None


class PlainConversationCreateArguments(ConversationCreateArguments, frozen=True, kw_only=True):
    """The arguments for clients at 2025-06-18 and older."""

    prompt: Annotated[str, Meta(description="Required by the protocol and not used: nothing is sent to the model.")]
    model: Annotated[str, Meta(description="Name of the model to use.")]


class ConversationCreated(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId
    model: str


class CreateFailed(Struct, frozen=True, kw_only=True):
    """The value of a failed `conversationCreate`."""

    message: str
    code: str | UnsetType = UNSET
    """The code of the error, for clients at 2025-11-25."""


class SendMessageArguments(Struct, frozen=True, kw_only=True):
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
    base_instructions: Annotated[str | None, Meta(description="From this message on: the instructions.")] = None


class MessageAccepted(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"
    message_id: MessageId | UnsetType = UNSET
    """Only for clients at 2025-11-25."""


class Failed(Struct, frozen=True, kw_only=True):
    """The value of a failed conversation tool."""

    status: Literal["error"] = "error"
    message: str
    code: str | UnsetType = UNSET
    """The code of the error, for clients at 2025-11-25."""


class ConversationStreamArguments(Struct, frozen=True, kw_only=True):
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


class StreamStarted(Struct, frozen=True, kw_only=True):
    pass


class ConversationsListArguments(Struct, frozen=True, kw_only=True):
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        Meta(description="The most conversations to return (default 50)."),
    ] = None
    cursor: Annotated[str | None, Meta(description="`next_cursor` of the previous page.")] = None
    cwd: Annotated[str | None, Meta(description="Only conversations in this working directory.")] = None
    text: Annotated[
        str | None, Meta(description="Only conversations with this text in the title or in a message.")
    ] = None
    state: Annotated[PhaseName | None, Meta(description="Only conversations in this state.")] = None
    archived: Annotated[
        bool | None, Meta(description="True lists archived conversations instead of the others.")
    ] = None


class ConversationSummary(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId
    title: str
    updated_at: str | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    state: PhaseName | UnsetType = UNSET


class ConversationsListResult(Struct, frozen=True, kw_only=True):
    conversations: tuple[ConversationSummary, ...]
    next_cursor: str | UnsetType = UNSET


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
        UUID | None, Meta(description="The last message to copy, with its turn (default: the last message).")
    ] = None


class ConversationForked(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId


class ConversationReadArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID, Meta(description="The conversation.")]
    after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="A position: only later events are returned (default 0)."),
    ] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None, Meta(description="The most events to return (default 100).")
    ] = None
    wait_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=50)] | None,
        Meta(description="How long to wait if there are no later events (default 0)."),
    ] = None


class PositionedEvent(Struct, frozen=True, kw_only=True):
    """An event, or a part of the output of a command. Such parts share the position of their record."""

    seq: Seq
    item: ItemId | UnsetType = UNSET
    """The stream of a part of an output."""
    offset: int | UnsetType = UNSET
    """The offset of the part in its stream, in bytes. A gap is output that was not kept."""
    msg: Raw


class OpenText(Struct, frozen=True, kw_only=True):
    """A text that is still being written, or the output of a running command so far."""

    item: ItemId
    type: str
    text: str
    """The text so far. If the middle of an output was dropped, its beginning and its end are two entries."""
    call_id: CallId | UnsetType = UNSET
    """Of a command."""
    stream: OutputStream | UnsetType = UNSET
    """Of a command."""
    offset: int | UnsetType = UNSET
    """The offset of the text in the stream of a command, in bytes."""


class ConversationReadResult(Struct, frozen=True, kw_only=True):
    events: tuple[PositionedEvent, ...]
    open: tuple[OpenText, ...]
    """Open texts and outputs after the last event; only on the last page."""
    seq: Seq
    """The value of `after` for the next call."""
    state: PhaseName


class PlainOk(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"


class Question(Struct, frozen=True, kw_only=True):
    """An open approval."""

    approval_id: ApprovalId
    conversation_id: ConversationId
    call_id: CallId
    kind: Literal["exec", "patch", "limit"]
    message: str
    asked_at: str
    command: tuple[str, ...] | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    changes: dict[str, Any] | UnsetType = UNSET


class ApprovalsListArguments(Struct, frozen=True, kw_only=True):
    conversation_id: Annotated[UUID | None, Meta(description="Only approvals of this conversation.")] = None


class ApprovalsListResult(Struct, frozen=True, kw_only=True):
    approvals: tuple[Question, ...]
    """The oldest first."""


class ApprovalAnswerArguments(Struct, frozen=True, kw_only=True):
    approval_id: Annotated[UUID, Meta(description="The approval to answer.")]
    decision: Annotated[
        Decision, Meta(description="Approve once, approve for the session, deny, or deny and stop the turn.")
    ]
    reason: Annotated[str | None, Meta(description="The reason of a denial, which the agent is told.")] = None


class Tokens(Struct, frozen=True, kw_only=True):
    """The tokens that a conversation has used so far, as far as the model reported them."""

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    total_tokens: int


class Owner(Struct, frozen=True, kw_only=True):
    """The process that runs the conversation's turn."""

    pid: int
    since: str


class ConversationStatusResult(Struct, frozen=True, kw_only=True):
    state: PhaseName
    seq: Seq
    title: str
    cwd: str
    model: str
    updated_at: str
    questions: tuple[Question, ...]
    tokens: Tokens | None
    owner: Owner | None
