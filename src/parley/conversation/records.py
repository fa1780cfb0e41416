"""Records: the entries of a log that clients do not see.

Records have positions, as events do. Projections such as the phase, the title and the history are computed from
records and events.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.events import FileChange, OutputStream, SettledBy, Settlement, TokenCount, TurnEndReason
from parley.wire.ids import ApprovalId, CallId, EventId, ItemId, MessageId
from parley.wire.items import InputItem
from parley.wire.principals import PrincipalRef

__all__ = [
    "RECORD_TYPES",
    "AnswersFrom",
    "ApprovalKind",
    "ApprovalRequest",
    "ApprovalSettlement",
    "CallItem",
    "CallOutput",
    "Changed",
    "CommandOutput",
    "HistoryCompacted",
    "InputRead",
    "InputRefused",
    "MessageFields",
    "MessageItem",
    "MessageJoined",
    "MessageQueued",
    "ModelAsked",
    "ModelItem",
    "ModelSaid",
    "OpaqueItem",
    "QueuePaused",
    "QueueResumed",
    "QueuedMessageEdited",
    "QueuedMessageRemoved",
    "Record",
    "RecordBase",
    "Renamed",
    "ResponseUsed",
    "SessionGranted",
    "SettingsChosen",
    "StreamOutput",
    "TokensEstimated",
    "TurnEnded",
    "TurnStarted",
    "record_type",
]

Changed = Literal["directory", "program", "files", "unknown"]
"""The kind of change after which an approved action needs another approval: a change of the working directory, of
the program or of the files of a patch, or an unknown change.
"""
ApprovalKind = Literal["exec", "patch", "limit"]
AnswersFrom = Literal["anyone", "designated", "local"]
"""The value of `[approvals] from`: which principals may answer an approval. `anyone` means every principal with a
sufficient role. `designated` means only the principal that began the turn. `local` means only local clients.
"""


# --- items of a response, in one form for all model APIs ---------------------------------


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Text that the model wrote in a response."""

    text: str
    id: str | None = None
    """The id that the provider gave to the item; None if the provider gave no id. Only model requests to the same
    provider contain the id.
    """
    by: str = ""
    """The name of the provider that chose the id; empty if there is no id."""


class CallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="call"):
    """A tool call that the model made in a response."""

    call_id: CallId
    name: str
    arguments: str
    """The arguments as the model sent them; they may be invalid JSON."""
    verbatim: Raw | UnsetType = UNSET
    """The item as the provider sent it. This field is set only if the provider's API requires that the item is sent
    back unchanged.
    """
    extra_content: Raw | UnsetType = UNSET
    """The member `extra_content` of a tool call in Chat Completions, such as a thought signature. Later model
    requests contain it unchanged.
    """
    by: str = ""
    """The name of the provider that sent the tool call; for Chat Completions, the names of the provider and the
    model.
    """


class OpaqueItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="opaque"):
    """An item of a model response that only its provider understands, such as encrypted reasoning. Later model
    requests to this provider contain the item unchanged.
    """

    verbatim: Raw
    by: str = ""
    """The name of the provider that sent the item."""


class MessageFields(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_fields"):
    """The members of a response message in Chat Completions that contain the model's reasoning, such as
    `reasoning_content`.

    The text and the tool calls of the same response are in separate records after this record.
    """

    fields: Raw
    """A JSON object. Later model requests contain its members under the same names. The member `content`, if it
    exists, is a list of thinking parts, which precede the text of the response in these requests.
    """
    by: str
    """The names of the provider and the model that sent the fields. Only requests to the same provider and model
    contain the fields.
    """


ModelItem = MessageItem | CallItem | OpaqueItem | MessageFields


# --- records ---------------------------------------------------------------------------


class RecordBase(Struct, frozen=True, kw_only=True, tag_field="record"):
    """The base class of records. The tag of a subclass is the type of the record."""


class SettingsChosen(RecordBase, frozen=True, kw_only=True, tag="settings_chosen"):
    """Settings that a client gave for the conversation.

    The record comes directly after the client's message, or at the start of the log.
    """

    model: str
    cwd: str
    asked: dict[str, Any] = {}
    """The settings that the client gave as arguments, with secrets removed. They override the settings in earlier
    records.
    """


class Renamed(RecordBase, frozen=True, kw_only=True, tag="renamed"):
    """Records that a client set the title of the conversation."""

    title: str


class TurnStarted(RecordBase, frozen=True, kw_only=True, tag="turn_started"):
    """Records that a turn began. The event `task_started` and, if a message began the turn, the event
    `user_message` follow directly.
    """

    event_id: EventId
    principal: PrincipalRef | None = None
    """The principal that began the turn; None in imported Codex sessions and in logs of older versions of Parley.
    """
    compacts: bool | UnsetType = UNSET
    """True if the turn was begun to compact the history. Such a turn replaces the history with a summary before it
    handles messages. The field is not set for any other turn.
    """


class MessageJoined(RecordBase, frozen=True, kw_only=True, tag="message_joined"):
    """Records that a message joined the running turn. The event `user_message` follows directly."""

    message_id: MessageId
    principal: PrincipalRef | None
    """The principal that sent the message; None if the principal is unknown."""


class ModelAsked(RecordBase, frozen=True, kw_only=True, tag="model_asked"):
    """Records that the model was asked for a response and that the response is complete. The records of the
    response follow directly.

    The input that the request contained is part of the history after this record.
    """

    inputs: int | None = None
    """The number of inputs that this request sent to the model for the first time. None means all inputs that were
    not sent before; None occurs in imported Codex sessions and in logs of older versions of Parley.
    """


class ModelSaid(RecordBase, frozen=True, kw_only=True, tag="model_said"):
    """Records one item of a complete model response."""

    item: ModelItem


class ResponseUsed(RecordBase, frozen=True, kw_only=True, tag="response_used"):
    """The token usage of a model response with tool calls. Clients get the same usage in a `token_count` event
    after the tool calls have ended.
    """

    usage: TokenCount


class TokensEstimated(RecordBase, frozen=True, kw_only=True, tag="tokens_estimated", omit_defaults=True):
    """An estimate of the number of tokens that a model response used.

    The record is appended only if the provider does not report the number and the settings limit tokens or costs.
    """

    tokens: int
    cost_micros: int = 0
    """The estimated cost in millionths of the currency unit; 0 if the price is unknown."""


class CallOutput(RecordBase, frozen=True, kw_only=True, tag="call_output"):
    """The output of a tool call of the same turn, as the model reads it."""

    call_id: CallId
    output: str


class StreamOutput(Struct, frozen=True, kw_only=True):
    """The stored output of a command on one stream: the whole output, or its beginning and its end."""

    item: ItemId
    stream: OutputStream
    head: bytes
    tail: bytes
    """The bytes after `head` or, if the middle of the output was omitted, the last bytes of the output. If the
    middle was omitted, `size` is greater than the lengths of `head` and `tail` together.
    """
    size: int
    """The number of bytes that the command wrote to the stream."""
    lines: int
    """The number of line feeds that the command wrote to the stream."""


class CommandOutput(RecordBase, frozen=True, kw_only=True, tag="command_output"):
    """The output of a tool call that ran a command or applied a patch. This record closes the open items of the
    tool call.
    """

    call_id: CallId
    streams: tuple[StreamOutput, ...]
    """One element for each stream that the command wrote to."""


class ApprovalRequest(RecordBase, frozen=True, kw_only=True, tag="question_asked"):
    """A request for an approval. The turn waits until the approval is settled.

    The event that tells clients about the request directly precedes this record.
    """

    approval_id: ApprovalId
    kind: ApprovalKind
    call_id: CallId
    """The id of the tool call that needs the approval; empty if the approval is about a limit."""
    reason: str | None = None
    """The reason that clients get with the request. If `has_failed` or `unrestored` is set, the reason begins with
    a sentence from the server. The text after this sentence is the model's justification. None if there is no
    reason.
    """
    command: tuple[str, ...] = ()
    cwd: str = ""
    changes: dict[str, FileChange] = {}
    leaves_sandbox: bool = False
    """True if the action, if approved, runs without the sandbox from the settings. The request that clients get
    contains this value.
    """
    escalated: bool = False
    """True if the model asked to run the command outside the sandbox."""
    has_failed: bool = False
    """True if the action failed in the sandbox, and the request asks for permission to repeat the action without
    the sandbox.
    """
    unrestored: tuple[str, ...] = ()
    """The paths of protected files that an earlier command changed and that could not be restored. The command in
    this request may change the files again.
    """
    covers: str = ""
    """The identities of the directories and files for which the approval is valid, as a single string. If the
    string is different when the action runs, the approval is no longer valid.
    """
    changed: Changed | None = None
    """The kind of change that made an earlier approval of the same action invalid; None if the action was not
    approved earlier.
    """
    answers_from: AnswersFrom = "anyone"


class ApprovalSettlement(RecordBase, frozen=True, kw_only=True, tag="question_settled"):
    """The settlement of an approval. The event `approval_settled` follows directly."""

    approval_id: ApprovalId
    decision: Settlement
    by: SettledBy
    reason: str | None = None
    answer_id: str = ""
    """The id that the client gave to its answer; empty if no client answered. A later answer with the same id is a
    repetition of this answer.
    """
    principal: PrincipalRef | None = None
    """The principal that answered the approval or interrupted the turn; None if the approval was settled in another
    way, such as by a timeout.
    """


class SessionGranted(RecordBase, frozen=True, kw_only=True, tag="session_granted"):
    """Records that a principal approved an action for the session. The action then needs no further approval for
    `[approvals] session_hours` hours.
    """

    principal: str
    """The name of the principal; empty in a copy of the conversation, where the record has no effect."""
    token_id: str = ""
    """The id of the principal's token; empty for local clients."""
    key: str
    """A digest that identifies the action. It is computed from the command, its directory and program, the sandbox
    and network settings, and whether the model asked to leave the sandbox.
    """


class InputRead(RecordBase, frozen=True, kw_only=True, tag="input_read"):
    """Input as the model gets it. If a message names files, the input includes the content of these files.

    The model gets the input in place of the message `message_id`. If `message_id` is None, the model gets the input
    in addition to all messages.
    """

    content: tuple[InputItem, ...]
    message_id: MessageId | None = None


class InputRefused(RecordBase, frozen=True, kw_only=True, tag="input_refused"):
    """Records that the provider refused a request because of its images or files.

    Later requests leave out the images and files that this request contained for the first time.
    """


class HistoryCompacted(RecordBase, frozen=True, kw_only=True, tag="history_compacted"):
    """A summary that replaces the first items of the history. The summary is part of all later model requests of
    this turn, and of every later turn whose history includes this turn.
    """

    summary: str
    replaced: int
    """The number of items that the summary replaces."""


class MessageQueued(RecordBase, frozen=True, kw_only=True, tag="message_queued"):
    """Records that a message was added to the queue. The message begins a turn when all earlier turns have ended.
    The event `queue_changed` follows directly.
    """

    message_id: MessageId
    """The id of the message; empty in a copy of the conversation, which has no queue."""
    content: tuple[InputItem, ...]
    read: tuple[InputItem, ...] | None = None
    """The content of the message together with the content of the files that it names; None if the message names no
    files.
    """
    asked: dict[str, Any] | None = None
    """The settings that the message contains, with secrets removed; None if the message contains no settings."""
    principal: PrincipalRef | None = None
    """The principal that queued the message; None in logs of older versions of Parley."""
    is_limited: bool = False
    """True if the principal has a role below admin. The message must then not loosen the settings of the
    conversation.
    """


class QueuedMessageEdited(RecordBase, frozen=True, kw_only=True, tag="queued_message_edited"):
    """Records that a queued message got new content."""

    message_id: MessageId
    content: tuple[InputItem, ...]
    read: tuple[InputItem, ...] | None = None
    """The new content together with the content of the files that it names; None if the message names no files."""
    principal: PrincipalRef | None = None
    """The principal that edited the message; None in logs of older versions of Parley. This principal counts as the
    principal that begins the turn of the message.
    """
    is_limited: bool = False
    """True if the principal has a role below admin; see `MessageQueued`."""


class QueuedMessageRemoved(RecordBase, frozen=True, kw_only=True, tag="queued_message_removed"):
    """Records that a client removed a queued message."""

    message_id: MessageId
    principal: PrincipalRef | None = None


class QueuePaused(RecordBase, frozen=True, kw_only=True, tag="queue_paused"):
    """Records that the queue was paused. No queued message begins a turn until the queue is resumed.

    A turn that fails or is interrupted also pauses the queue, without this record.
    """

    principal: PrincipalRef | None = None
    """The principal that paused the queue; None if the queue was paused because the next message could not begin a
    turn.
    """


class QueueResumed(RecordBase, frozen=True, kw_only=True, tag="queue_resumed"):
    """Records that a client resumed the queue."""

    principal: PrincipalRef | None = None


class TurnEnded(RecordBase, frozen=True, kw_only=True, tag="turn_ended"):
    """Records that a turn ended. This record is always the last entry of the turn."""

    why: TurnEndReason
    message: str | None = None
    """The message that explains why the turn failed or was interrupted; None for a completed turn. The last text of
    a completed turn is in the event `task_complete` directly before this record.
    """
    code: str | UnsetType = UNSET
    """The error code; set only if the turn failed."""
    principal: PrincipalRef | None = None
    """The principal that interrupted the turn; None if no principal interrupted it."""


Record = (
    SettingsChosen
    | Renamed
    | TurnStarted
    | MessageJoined
    | ModelAsked
    | ModelSaid
    | ResponseUsed
    | TokensEstimated
    | CallOutput
    | CommandOutput
    | ApprovalRequest
    | ApprovalSettlement
    | SessionGranted
    | InputRead
    | InputRefused
    | HistoryCompacted
    | MessageQueued
    | QueuedMessageEdited
    | QueuedMessageRemoved
    | QueuePaused
    | QueueResumed
    | TurnEnded
)


def record_type(record: RecordBase | type[RecordBase]) -> str:
    return str(record.__struct_config__.tag)


RECORD_TYPES: Final = {record_type(cls): cls for cls in get_args(Record)}
