"""What the log holds besides events: facts that no client sees as such.

A record takes a position like an event does. Together they are all there is: phase, title and
the history sent to the model are folds over them.
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
"""What is not the same any more as when a person approved it."""
QuestionKind = Literal["exec", "patch", "limit"]


# --- what a model says, in one form for all model APIs ---------------------------------


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A text of the assistant."""

    text: str
    id: str | None = None
    """The provider's name for it, sent back with it."""
    by: str = ""
    """Who gave it that name: to another provider it means nothing."""


class CallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="call"):
    """The model wants a function run."""

    call_id: CallId
    name: str
    arguments: str
    """JSON text as it came, good or bad."""
    verbatim: Raw | UnsetType = UNSET
    """The item as the provider sent it, where its API wants it back like that."""
    extra_content: Raw | UnsetType = UNSET
    """What Chat Completions sent beside the function, such as a thought signature; sent back as it came."""
    by: str = ""
    """Which provider that was, for Chat Completions with its model."""


class OpaqueItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="opaque"):
    """An item that only its own provider understands, such as reasoning; goes back as it came."""

    verbatim: Raw
    by: str = ""
    """Which provider that is."""


class MessageFields(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_fields"):
    """Reasoning of Chat Completions: the members of the response's message beside its text and its calls.

    Stands before the text and the calls of its response.
    """

    fields: Raw
    """A JSON object, sent back under the names it came with. `content` is a list of thinking parts, which stand
    before the text."""
    by: str
    """The provider and the model that sent it."""


ModelItem = MessageItem | CallItem | OpaqueItem | MessageFields


# --- records ---------------------------------------------------------------------------


class RecordBase(Struct, frozen=True, kw_only=True, tag_field="record"):
    """A fact of the log that clients do not see."""


class SettingsChosen(RecordBase, frozen=True, kw_only=True, tag="settings_chosen"):
    """The conversation begins, or goes on, with these; right behind the message that asked for them."""

    model: str
    cwd: str
    asked: dict[str, Any] = {}
    """The arguments as they were given, without secrets, on top of what was asked for before."""


class Renamed(RecordBase, frozen=True, kw_only=True, tag="renamed"):
    """Somebody gave the conversation a title."""

    title: str


class TurnStarted(RecordBase, frozen=True, kw_only=True, tag="turn_started"):
    """A turn begins; `task_started` and the user's message stand right behind it."""

    event_id: EventId


class ModelAsked(RecordBase, frozen=True, kw_only=True, tag="model_asked"):
    """The model answered a request; stands before the records of its response.

    Input that the request held is part of the history from here on.
    """

    inputs: int | None = None
    """Number of waiting inputs that the request held; all of them in logs of older versions."""


class ModelSaid(RecordBase, frozen=True, kw_only=True, tag="model_said"):
    """One item of a response that ended well."""

    item: ModelItem


class ResponseUsed(RecordBase, frozen=True, kw_only=True, tag="response_used"):
    """What a response with calls cost; clients are told when the calls have ended."""

    usage: TokenCount


class TokensEstimated(RecordBase, frozen=True, kw_only=True, tag="tokens_estimated"):
    """About what a response cost, where the provider does not say and a limit needs to know."""

    tokens: int


class CallOutput(RecordBase, frozen=True, kw_only=True, tag="call_output"):
    """What the model is told about a call of this turn."""

    call_id: CallId
    output: str


class StreamOutput(Struct, frozen=True, kw_only=True):
    """What is kept of one stream of a command: all of it, or its beginning and its end."""

    item: ItemId
    stream: OutputStream
    head: bytes
    tail: bytes
    """What follows the head, or, where `size` exceeds both, the last that was said."""
    size: int
    """How many bytes there were."""
    lines: int
    """How many line feeds there were."""


class CommandOutput(RecordBase, frozen=True, kw_only=True, tag="command_output"):
    """What a command said; ends its open items."""

    call_id: CallId
    streams: tuple[StreamOutput, ...]
    """Those that said something."""


class QuestionAsked(RecordBase, frozen=True, kw_only=True, tag="question_asked"):
    """The turn waits until somebody has answered; the event that shows the question stands right in front."""

    approval_id: ApprovalId
    kind: QuestionKind
    call_id: CallId
    """Which call it is about; empty where it is about none."""
    reason: str | None = None
    command: tuple[str, ...] = ()
    cwd: str = ""
    changes: dict[str, FileChange] = {}
    leaves_sandbox: bool = False
    """What is allowed is done without the sandbox that would hold otherwise, and whoever is asked is told so."""
    escalated: bool = False
    """The model asked for it to run outside the sandbox."""
    has_failed: bool = False
    """It was done within its bounds and failed there: may it be done again, without any?"""
    covers: str = ""
    """What an approval covers besides the words: identities of directories and files, to be compared as a whole."""
    changed: Changed | None = None
    """Why it is asked again, after an approval."""


class QuestionSettled(RecordBase, frozen=True, kw_only=True, tag="question_settled"):
    """The one way a question ends; `approval_settled` stands right behind it."""

    approval_id: ApprovalId
    decision: Settlement
    by: SettledBy
    reason: str | None = None
    answer_id: str = ""
    """The id of the answer, which a repetition has too; empty if no client answered."""


class SessionGranted(RecordBase, frozen=True, kw_only=True, tag="session_granted"):
    """A principal approved something for the session: the same thing is not asked about again for some hours."""

    principal: str
    """Who approved it; empty in a copy of the conversation, where it holds no longer."""
    key: str
    """Digest of what was approved: words, directory, program, sandbox, network, escalation."""


class InputRead(RecordBase, frozen=True, kw_only=True, tag="input_read"):
    """What the model is given of files that were named: with `message_id` in place of that message's
    content, without it as further input."""

    content: tuple[InputItem, ...]
    message_id: MessageId | None = None


class InputRefused(RecordBase, frozen=True, kw_only=True, tag="input_refused"):
    """The provider refused the request as such: images and files that it had not been sent before are left out
    from here on, or they would be refused each time."""


class HistoryCompacted(RecordBase, frozen=True, kw_only=True, tag="history_compacted"):
    """From here on a summary stands in place of the first items of the history."""

    summary: str
    replaced: int
    """How many items."""


class TurnEnded(RecordBase, frozen=True, kw_only=True, tag="turn_ended"):
    """The one way a turn ends."""

    why: TurnEndReason
    message: str | None = None
    """What was said of it, where it was cut short or failed. What came of one that is done stands right in front of
    this, in `task_complete`."""
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
