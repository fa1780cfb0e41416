"""The protocol between processes of one home: JSON-RPC with its own methods.

If another process runs the turn of a conversation, a process that needs the conversation sends `parley/follow` to
it. It then gets every entry and delta after a position, in order, while the turn runs. Messages, answers and
interrupts are sent over the same connection.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from msgspec import Raw, Struct

from parley.wire.events import OutputStream, SettledBy, Settlement
from parley.wire.ids import ApprovalId, CallId, ConversationId, EventId, ItemId, MessageId, Seq
from parley.wire.items import InputItem

__all__ = [
    "NOT_OWNER",
    "NOT_WRITTEN",
    "REFUSED",
    "AnswerQuestion",
    "Changed",
    "Follow",
    "Followed",
    "InterruptTurn",
    "PeerDelta",
    "PeerEntry",
    "PeerOutput",
    "PeerRead",
    "RenameConversation",
    "Submit",
    "Submitted",
    "Unfollow",
]

NOT_OWNER: Final = -32001
"""Error code of a process that does not run a turn of the conversation."""
REFUSED: Final = -32002
"""Error code of a refusal whose message is for the client."""
NOT_WRITTEN: Final = -32003
"""Error code of a process that could not write; the message says why."""


class Follow(Struct, frozen=True, kw_only=True):
    """Request everything after a position, until the turn ends. The answer comes first."""

    METHOD: ClassVar = "parley/follow"

    conversation_id: ConversationId
    after: Seq


class Followed(Struct, frozen=True, kw_only=True):
    """The answer to `Follow`. The running turn ends after the position `last`; ends before it belong to earlier
    turns.
    """

    last: Seq


class Unfollow(Struct, frozen=True, kw_only=True):
    """Stops following; a notification."""

    METHOD: ClassVar = "parley/unfollow"

    conversation_id: ConversationId


class PeerRead(Struct, frozen=True, kw_only=True):
    """Whether clients of the following process read the conversation and can be asked; a notification."""

    METHOD: ClassVar = "parley/read"

    conversation_id: ConversationId
    is_read: bool
    can_be_asked: bool
    full: bool = True
    """True if a client can be asked about limits, or if all clients know the event `limit_reached`."""


class Submit(Struct, frozen=True, kw_only=True):
    """Submits a message. Repeated with the same message id if there was no answer."""

    METHOD: ClassVar = "parley/submit"

    conversation_id: ConversationId
    content: tuple[InputItem, ...]
    message_id: MessageId
    parent_id: MessageId | None = None
    event_id: EventId | None = None
    wanted: dict[str, Any] | None = None


class Submitted(Struct, frozen=True, kw_only=True):
    """The answer to `Submit`, sent before any effect of the message."""

    event_id: EventId | None
    """The id of its turn; None if the message was sent before and its turn is over."""
    first: Seq
    """The position of the first entry of the message."""


class AnswerQuestion(Struct, frozen=True, kw_only=True):
    """Decides an approval. Repeated with the same answer id if there was no answer."""

    METHOD: ClassVar = "parley/answer"

    conversation_id: ConversationId
    approval_id: ApprovalId
    decision: Settlement
    by: SettledBy
    reason: str | None = None
    answer_id: str = ""
    """Identifies the answer; empty if an earlier version sent it."""


class InterruptTurn(Struct, frozen=True, kw_only=True):
    """Interrupts the running turn if it is the named one. Repeated if the owner did not answer."""

    METHOD: ClassVar = "parley/interrupt"

    conversation_id: ConversationId
    event_id: EventId | None = None
    """The turn; None: any, unless `messages` names one."""
    messages: tuple[MessageId, ...] = ()
    """Messages that were sent before and not answered yet. A turn that accepted one of them is interrupted as
    well.
    """


class RenameConversation(Struct, frozen=True, kw_only=True):
    """Sets the title."""

    METHOD: ClassVar = "parley/rename"

    conversation_id: ConversationId
    title: str


class Changed(Struct, frozen=True, kw_only=True):
    """A turn begins in a conversation, or the conversation was deleted. A process whose clients read the
    conversation checks its state. A notification.
    """

    METHOD: ClassVar = "parley/changed"

    conversation_id: ConversationId


# --- notifications to a process that follows ----------------------------------


class PeerEntry(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar = "parley/entry"

    conversation_id: ConversationId
    seq: Seq
    at: float
    type: str
    is_event: bool
    body: Raw


class PeerDelta(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar = "parley/delta"

    conversation_id: ConversationId
    item: ItemId
    type: str
    """The type of the item's deltas."""
    offset: int
    text: str


class PeerOutput(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar = "parley/output"

    conversation_id: ConversationId
    item: ItemId
    call_id: CallId
    stream: OutputStream
    offset: int
    data: bytes
