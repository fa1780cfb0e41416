"""Records: the entries of a log that clients do not see.

A record has a position, as an event does. Phase, title and the history for the model are projections of records and
events.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.events import FileChange, OutputStream, SettledBy, Settlement, TokenCount, TurnEndReason
from parley.wire.ids import ApprovalId, CallId, EventId, ItemId, MessageId
from parley.wire.items import InputItem

__all__ = [
    "RECORD_TYPES",
    "CallItem",
    "CallOutput",
    "Changed",
    "CommandOutput",
    "HistoryCompacted",
    "InputRead",
    "InputRefused",
    "MessageFields",
    "MessageItem",
    "ModelAsked",
    "ModelItem",
    "ModelSaid",
    "OpaqueItem",
    "QuestionAsked",
    "QuestionKind",
    "QuestionSettled",
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
"""What has changed since a person approved the action."""
QuestionKind = Literal["exec", "patch", "limit"]


# --- items of a response, in one form for all model APIs ---------------------------------


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A text of the assistant."""

    text: str
    id: str | None = None
    """The provider's id of the item, which is sent back."""
    by: str = ""
    """The provider that chose the id; other providers are not sent it."""


class CallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="call"):
    """A function call of the model."""

    call_id: CallId
    name: str
    arguments: str
    """The text that the model sent, which may be invalid JSON."""
    verbatim: Raw | UnsetType = UNSET
    """The item as the provider sent it, if its API requires it back unchanged."""
    extra_content: Raw | UnsetType = UNSET
    """A member that Chat Completions sent with the call, such as a thought signature; sent back unchanged."""
    by: str = ""
    """The provider that sent the call; for Chat Completions also the model."""


class OpaqueItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="opaque"):
    """An item that only its own provider understands, such as reasoning; sent back unchanged."""

    verbatim: Raw
    by: str = ""
    """The provider that sent the item."""


class MessageFields(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_fields"):
    """Reasoning of Chat Completions: the members of the response's message other than its text and its calls.

    The record comes before the records of the text and the calls of its response.
    """

    fields: Raw
    """A JSON object whose members are sent back under the same names. `content` is a list of thinking parts, which
    come before the text."""
    by: str
    """The provider and the model that sent it."""


ModelItem = MessageItem | CallItem | OpaqueItem | MessageFields


# --- records ---------------------------------------------------------------------------


class RecordBase(Struct, frozen=True, kw_only=True, tag_field="record"):
    """A record."""


class SettingsChosen(RecordBase, frozen=True, kw_only=True, tag="settings_chosen"):
    """Settings that a client gave. The record comes directly after their message, or at the beginning of the
    conversation.
    """

    model: str
    cwd: str
    asked: dict[str, Any] = {}
    """The given arguments without secrets. They override the arguments of earlier records."""


class Renamed(RecordBase, frozen=True, kw_only=True, tag="renamed"):
    """A client set the title."""

    title: str


class TurnStarted(RecordBase, frozen=True, kw_only=True, tag="turn_started"):
    """A turn begins; `task_started` and the user's message follow directly."""

    event_id: EventId


class ModelAsked(RecordBase, frozen=True, kw_only=True, tag="model_asked"):
    """The model answered a request. Comes directly before the records of its response.

    The input in the request is part of the history from here on.
    """

    inputs: int | None = None
    """The number of waiting inputs in the request; None means all of them, in logs of older versions."""


class ModelSaid(RecordBase, frozen=True, kw_only=True, tag="model_said"):
    """One item of a complete response."""

    item: ModelItem


class ResponseUsed(RecordBase, frozen=True, kw_only=True, tag="response_used"):
    """The tokens that a response with calls used. Clients are told when the calls have ended."""

    usage: TokenCount


class TokensEstimated(RecordBase, frozen=True, kw_only=True, tag="tokens_estimated"):
    """An estimate of the tokens that a response used, if the provider does not report them and a limit needs
    them."""

    tokens: int


class CallOutput(RecordBase, frozen=True, kw_only=True, tag="call_output"):
    """The output of a call of this turn, for the model."""

    call_id: CallId
    output: str


class StreamOutput(Struct, frozen=True, kw_only=True):
    """The stored output of a command on one stream: all of it, or its beginning and its end."""

    item: ItemId
    stream: OutputStream
    head: bytes
    tail: bytes
    """The bytes after the head; if `size` exceeds both, the last bytes."""
    size: int
    """The number of bytes that the command wrote."""
    lines: int
    """The number of line feeds that the command wrote."""


class CommandOutput(RecordBase, frozen=True, kw_only=True, tag="command_output"):
    """The output of a command; ends its open items."""

    call_id: CallId
    streams: tuple[StreamOutput, ...]
    """The streams that have output."""


class QuestionAsked(RecordBase, frozen=True, kw_only=True, tag="question_asked"):
    """The turn waits for an answer. The event that shows the approval request comes directly before."""

    approval_id: ApprovalId
    kind: QuestionKind
    call_id: CallId
    """The call that needs the approval; empty for a limit."""
    reason: str | None = None
    command: tuple[str, ...] = ()
    cwd: str = ""
    changes: dict[str, FileChange] = {}
    leaves_sandbox: bool = False
    """True if the approved action runs without the sandbox of the settings. The request says so."""
    escalated: bool = False
    """True if the model asked to run the command outside the sandbox."""
    has_failed: bool = False
    """True if the action failed in the sandbox, and the question is whether to repeat it without the sandbox."""
    covers: str = ""
    """Identities of directories and files that the approval covers too; compared as one text."""
    changed: Changed | None = None
    """What has changed since an earlier approval, if the question is asked again."""


class QuestionSettled(RecordBase, frozen=True, kw_only=True, tag="question_settled"):
    """The settlement of an approval; `approval_settled` follows directly."""

    approval_id: ApprovalId
    decision: Settlement
    by: SettledBy
    reason: str | None = None
    answer_id: str = ""
    """The id of the answer, by which a repeated answer is recognised; empty if no client answered."""


class SessionGranted(RecordBase, frozen=True, kw_only=True, tag="session_granted"):
    """A principal approved an action for the session: it needs no further approval for some hours."""

    principal: str
    """Who approved it; empty in a copy of the conversation, where the approval does not hold."""
    key: str
    """A digest of the approved command, directory, program, sandbox, network and escalation."""


class InputRead(RecordBase, frozen=True, kw_only=True, tag="input_read"):
    """The content of files that a message named, for the model. Replaces the content of the message
    `message_id`; without an id, it is further input.
    """

    content: tuple[InputItem, ...]
    message_id: MessageId | None = None


class InputRefused(RecordBase, frozen=True, kw_only=True, tag="input_refused"):
    """The provider refused a request because of its content. Later requests leave out the images and files that
    were new in it.
    """


class HistoryCompacted(RecordBase, frozen=True, kw_only=True, tag="history_compacted"):
    """A summary replaces the first items of the history from here on."""

    summary: str
    replaced: int
    """The number of items that the summary replaces."""


class TurnEnded(RecordBase, frozen=True, kw_only=True, tag="turn_ended"):
    """The end of a turn."""

    why: TurnEndReason
    message: str | None = None
    """The message of a turn that failed or was interrupted. The last text of a completed turn is in the
    `task_complete` directly before."""
    code: str | UnsetType = UNSET
    """The code of the error of a turn that failed."""


Record = (
    SettingsChosen
    | Renamed
    | TurnStarted
    | ModelAsked
    | ModelSaid
    | ResponseUsed
    | TokensEstimated
    | CallOutput
    | CommandOutput
    | QuestionAsked
    | QuestionSettled
    | SessionGranted
    | InputRead
    | InputRefused
    | HistoryCompacted
    | TurnEnded
)


def record_type(record: RecordBase | type[RecordBase]) -> str:
    return str(record.__struct_config__.tag)


RECORD_TYPES: Final = {record_type(cls): cls for cls in get_args(Record)}
