"""What processes that share a home say to each other: JSON-RPC as to every client, with methods of its own.

Whoever has a conversation to do with that another process runs asks that one (`parley/follow`), and is told every
entry and every delta from a position on, in order, as long as the turn runs there. Messages, answers and
interrupts go the same way.
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
"""The code of the error of a process that does not run a turn of the conversation, or does not any more."""
REFUSED: Final = -32002
"""The code of an error whose message is for the client that asked."""
NOT_WRITTEN: Final = -32003
"""The code of the error of a process that could not write it down; the message says why."""


class Follow(Struct, frozen=True, kw_only=True):
    """Tell me all that is newer than a position, until the turn is over. Answered before the first of it."""

    METHOD: ClassVar = "parley/follow"

    conversation_id: ConversationId
    after: Seq


class Followed(Struct, frozen=True, kw_only=True):
    """The answer. The turn that runs ends behind `last`; what ended before was another."""

    last: Seq


class Unfollow(Struct, frozen=True, kw_only=True):
    """No more of that; a notification."""

    METHOD: ClassVar = "parley/unfollow"

    conversation_id: ConversationId


class PeerRead(Struct, frozen=True, kw_only=True):
    """Whether somebody reads along here, and could be asked; a notification."""

    METHOD: ClassVar = "parley/read"

    conversation_id: ConversationId
    is_read: bool
    can_be_asked: bool
    full: bool = True
    """Whether somebody can be asked about limits, or else everybody could be told of them."""


class Submit(Struct, frozen=True, kw_only=True):
    """Take a message. Sent again under the same id when nobody has answered."""

    METHOD: ClassVar = "parley/submit"

    conversation_id: ConversationId
    content: tuple[InputItem, ...]
    message_id: MessageId
    parent_id: MessageId | None = None
    event_id: EventId | None = None
    wanted: dict[str, Any] | None = None


class Submitted(Struct, frozen=True, kw_only=True):
    """The answer, given before anything of the message is told to whoever follows."""

    event_id: EventId | None
    """Of the turn that took it; None: it was sent before, and its turn is over."""
    first: Seq
    """The position of the first entry that it caused."""


class AnswerQuestion(Struct, frozen=True, kw_only=True):
    """Settle a question."""

    METHOD: ClassVar = "parley/answer"

    conversation_id: ConversationId
    approval_id: ApprovalId
    decision: Settlement
    by: SettledBy
    reason: str | None = None


class InterruptTurn(Struct, frozen=True, kw_only=True):
    """Cut the running turn short; if one is named, only that."""

    METHOD: ClassVar = "parley/interrupt"

    conversation_id: ConversationId
    event_id: EventId | None = None


class RenameConversation(Struct, frozen=True, kw_only=True):
    """Give it a title."""

    METHOD: ClassVar = "parley/rename"

    conversation_id: ConversationId
    title: str


class Changed(Struct, frozen=True, kw_only=True):
    """Something begins in a conversation, or it is gone; whoever shows it to somebody looks. A notification."""

    METHOD: ClassVar = "parley/changed"

    conversation_id: ConversationId


# --- what a process is told that follows; notifications ----------------------------------


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
    """The kind of the item, named by the type of its deltas."""
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
