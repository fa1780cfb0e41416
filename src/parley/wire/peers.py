"""The protocol between processes that share a home directory, and between nodes: JSON-RPC with its own methods.

A process that needs a conversation sends `parley/follow` to the owner, which is the process that is running a turn
of the conversation. The owner then sends every entry and delta after a position, in order, until the turn ends.
Over the same connection, the process that sent `parley/follow` sends messages, answers to approvals, and
interrupts. Each of these requests names its principal, unless a process with an earlier version of Parley sent the
request.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from msgspec import Raw, Struct

from parley.wire.events import OutputStream, SettledBy, Settlement
from parley.wire.ids import ApprovalId, CallId, ConversationId, EventId, ItemId, MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.principals import PrincipalRef

__all__ = [
    "NOT_OWNER",
    "NOT_WRITTEN",
    "REFUSED",
    "Changed",
    "CompactHistory",
    "ContinueTurn",
    "EditQueued",
    "Enqueue",
    "Follow",
    "Followed",
    "InterruptTurn",
    "PeerDelta",
    "PeerEntry",
    "PeerOutput",
    "PeerRead",
    "PeerReleased",
    "PeerSettlement",
    "Place",
    "RemoveQueued",
    "RenameConversation",
    "ResumeQueue",
    "SettleApproval",
    "Submit",
    "Submitted",
    "TakeOver",
    "Unfollow",
]

NOT_OWNER: Final = -32001
"""The error code of the response from a process that is not running a turn of the conversation."""
REFUSED: Final = -32002
"""The error code of the response to a request that the owner has refused. The message of the error is the message
for the client.
"""
NOT_WRITTEN: Final = -32003
"""The error code of the response to a request whose entries could not be written to the log. The message of the
error contains the reason.
"""


class Follow(Struct, frozen=True, kw_only=True):
    """Requests every entry and delta after the position `after`, until the turn ends. The response is sent before
    the first entry or delta.
    """

    METHOD: ClassVar = "parley/follow"

    conversation_id: ConversationId
    after: Seq


class Followed(Struct, frozen=True, kw_only=True):
    """The result of `Follow`.

    `last` is the last position in the owner's log. A turn that ended at or before this position is not the turn
    that the owner is running.
    """

    last: Seq


class Unfollow(Struct, frozen=True, kw_only=True):
    """Params of the notification that a process sends when it stops following a conversation."""

    METHOD: ClassVar = "parley/unfollow"

    conversation_id: ConversationId


class PeerRead(Struct, frozen=True, kw_only=True):
    """Params of a notification from a process that follows a conversation. The process reports whether its clients
    read the conversation, and whether these clients can be asked to decide approvals.
    """

    METHOD: ClassVar = "parley/read"

    conversation_id: ConversationId
    is_read: bool
    can_be_asked: bool
    full: bool = True
    """True if a client of the sending process can be asked whether the turn may exceed a limit, or if every client
    of this process that reads the conversation and may interrupt the turn knows the event `limit_reached`. The name
    of the field is part of the protocol and cannot be changed.
    """
    may_end_at_limit: bool = True
    """True if a client of the sending process may answer approvals but does not know the event `limit_reached`.
    The turn may then end at a limit without an approval.
    """


class Submit(Struct, frozen=True, kw_only=True):
    """Sends a message to the owner. If the owner does not respond, the request is repeated with the same message
    id.
    """

    METHOD: ClassVar = "parley/submit"

    conversation_id: ConversationId
    content: tuple[InputItem, ...]
    message_id: MessageId
    parent_id: MessageId | None = None
    event_id: EventId | None = None
    wanted: dict[str, Any] | None = None
    principal: PrincipalRef | None = None
    is_limited: bool = False
    """True if the principal has a role below admin. The message must then not make the settings of the conversation
    less strict.
    """


class Submitted(Struct, frozen=True, kw_only=True):
    """The result of `Submit` and `Enqueue`. The response is sent before the message has any effect."""

    event_id: EventId | None
    """The id of the turn that handles the message; None if the message is in the queue, or if it was submitted
    before and its turn has ended.
    """
    first: Seq
    """The position of the first entry of the message."""
    is_queued: bool = False
    """True if the message is waiting in the queue."""


class Enqueue(Struct, frozen=True, kw_only=True):
    """Queues a message. The message begins a turn when the turns of earlier messages have ended.

    The result is `Submitted`. If there is no response, the request is repeated with the same message id.
    """

    METHOD: ClassVar = "parley/enqueue"

    conversation_id: ConversationId
    content: tuple[InputItem, ...]
    message_id: MessageId
    wanted: dict[str, Any] | None = None
    principal: PrincipalRef | None = None
    is_limited: bool = False
    """True if the principal has a role below admin. The message must then not make the settings of the conversation
    less strict.
    """


class EditQueued(Struct, frozen=True, kw_only=True):
    """Replaces the content of a queued message."""

    METHOD: ClassVar = "parley/edit-queued"

    conversation_id: ConversationId
    message_id: MessageId
    content: tuple[InputItem, ...]
    principal: PrincipalRef | None = None
    is_limited: bool = False
    """True if the principal has a role below admin. The principal must then not edit a message that contains
    settings of another principal.
    """


class RemoveQueued(Struct, frozen=True, kw_only=True):
    """Removes a queued message."""

    METHOD: ClassVar = "parley/remove-queued"

    conversation_id: ConversationId
    message_id: MessageId
    principal: PrincipalRef | None = None


class ResumeQueue(Struct, frozen=True, kw_only=True):
    """Resumes a paused queue."""

    METHOD: ClassVar = "parley/resume-queue"

    conversation_id: ConversationId
    principal: PrincipalRef | None = None


class SettleApproval(Struct, frozen=True, kw_only=True):
    """Answers an approval. If the owner does not respond, the request is repeated with the same answer id."""

    METHOD: ClassVar = "parley/answer"

    conversation_id: ConversationId
    approval_id: ApprovalId
    decision: Settlement
    by: SettledBy
    reason: str | None = None
    answer_id: str = ""
    """The id of the answer; empty if the request comes from a process with an earlier version of Parley."""
    principal: PrincipalRef | None = None


class PeerSettlement(Struct, frozen=True, kw_only=True):
    """The settlement of an approval. It is sent as `error.data` in the response to a `SettleApproval` request that
    came after the settlement.
    """

    decision: Settlement
    by: SettledBy
    principal: str | None
    reason: str | None
    at: float
    """The time of the settlement, in seconds since the epoch."""


class InterruptTurn(Struct, frozen=True, kw_only=True):
    """Interrupts the running turn if `event_id` or `messages` identifies this turn.

    If there is no response, the request is repeated.
    """

    METHOD: ClassVar = "parley/interrupt"

    conversation_id: ConversationId
    event_id: EventId | None = None
    """The id of the turn to interrupt. If the id is None and `messages` is empty, the request interrupts any
    running turn.
    """
    messages: tuple[MessageId, ...] = ()
    """The ids of the messages that the sending process has submitted and for which it has no response yet. The
    running turn is interrupted if it has accepted one of these messages, even if `event_id` is another id.
    """
    principal: PrincipalRef | None = None


class RenameConversation(Struct, frozen=True, kw_only=True):
    """Sets the title of a conversation."""

    METHOD: ClassVar = "parley/rename"

    conversation_id: ConversationId
    title: str


class ContinueTurn(Struct, frozen=True, kw_only=True):
    """Begins a turn without a message, after a turn that was interrupted or failed. The result is `Submitted`. A
    node sends this request only as the content of a `Place` request.
    """

    METHOD: ClassVar = "parley/continue"

    conversation_id: ConversationId
    principal: PrincipalRef


class CompactHistory(Struct, frozen=True, kw_only=True):
    """Begins a turn that replaces the history with a summary. The result is an empty object. A node sends this
    request only as the content of a `Place` request.
    """

    METHOD: ClassVar = "parley/compact"

    conversation_id: ConversationId
    principal: PrincipalRef


class Place(Struct, frozen=True, kw_only=True):
    """Asks the node that has the working directory of a conversation to execute a request that begins a turn.

    The node executes the request as if a client of the node had sent it, and returns the result of the request.
    """

    METHOD: ClassVar = "parley/place"

    conversation_id: ConversationId
    method: str | None = None
    """The method of the request. If the method is None, the node takes over the conversation: the node resumes a
    turn that is waiting for an approval, or begins a turn with the next queued message.
    """
    params: Raw = Raw(b"{}")


class Changed(Struct, frozen=True, kw_only=True):
    """Params of the notification that a turn has begun in a conversation, or that the conversation was changed or
    deleted.

    Each process whose clients read the conversation then checks the state of the conversation.
    """

    METHOD: ClassVar = "parley/changed"

    conversation_id: ConversationId


class TakeOver(Struct, frozen=True, kw_only=True):
    """Params of the notification that a client of the sending process has opened an exclusive stream of a
    conversation.

    Each process that gets the notification ends its streams of the conversation that were opened before the time
    `at`.
    """

    METHOD: ClassVar = "parley/take-over"

    conversation_id: ConversationId
    by: str
    """The name of the principal that opened the exclusive stream."""
    at: float
    """The time when the exclusive stream was opened, in seconds since the epoch."""


# --- notifications to a following process --------------------------------------


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
    """The type of the events that carry the item's deltas."""
    offset: int
    text: str


class PeerReleased(Struct, frozen=True, kw_only=True):
    """Params of the notification that the sending process no longer owns a conversation, although the turn is
    unfinished. The receiving process then stops following the sending process. Another process continues or ends
    the turn.
    """

    METHOD: ClassVar = "parley/released"

    conversation_id: ConversationId


class PeerOutput(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar = "parley/output"

    conversation_id: ConversationId
    item: ItemId
    call_id: CallId
    stream: OutputStream
    offset: int
    data: bytes
