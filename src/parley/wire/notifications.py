"""Notifications of the server about conversations.

These structs are the contract: tests compare with them, and the client decodes into them. In its hot path the
    server adds the same shapes as bytes to an encoded event (`server/encoders.py`). Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.ids import ConversationId, EventId, ItemId, Seq
from parley.wire.jsonrpc import RequestId

__all__ = [
    "CONVERSATION_LOGGER",
    "CodexEvent",
    "CodexMeta",
    "ConversationEvent",
    "EventMeta",
    "InitialState",
    "LoggedNotification",
    "SnapshotEvent",
    "StreamDisconnected",
]


class EventMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of an event. The request of the client decides which fields are set."""

    conversation_id: ConversationId | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    item: ItemId | UnsetType = UNSET
    offset: int | UnsetType = UNSET


class ConversationEvent(Struct, frozen=True, kw_only=True):
    """Params of one live event of a streamed conversation; the method is the event's type."""

    meta: EventMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")
    msg: Raw


class CodexMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    request_id: RequestId


class CodexEvent(Struct, frozen=True, kw_only=True):
    """Params of one event of a `codex` call, sent under this method and again under the event's type."""

    METHOD: ClassVar[str] = "codex/event"

    meta: CodexMeta = msgspec.field(name="_meta")
    id: EventId
    msg: Raw


class SnapshotEvent(Struct, frozen=True, kw_only=True):
    meta: EventMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")
    msg: Raw


class _Events(Struct, frozen=True, kw_only=True):
    events: tuple[SnapshotEvent, ...]


class InitialState(Struct, frozen=True, kw_only=True):
    """All events before the live events begin."""

    METHOD: ClassVar[str] = "notifications/initial_state"

    meta: EventMeta = msgspec.field(name="_meta")
    initial_state: _Events


class StreamDisconnected(Struct, frozen=True, kw_only=True):
    """The server ended a stream."""

    METHOD: ClassVar[str] = "notifications/stream_disconnected"

    TAKEN_OVER: ClassVar[str] = "New stream() took over"
    DELETED: ClassVar[str] = "Conversation deleted"
    SHUTTING_DOWN: ClassVar[str] = "Server is shutting down"
    NOT_SENT: ClassVar[str] = "An event could not be sent"

    CODES: ClassVar[Mapping[str, str]] = {
        TAKEN_OVER: "taken_over",
        DELETED: "deleted",
        SHUTTING_DOWN: "shutting_down",
        NOT_SENT: "not_sent",
    }
    """The codes of these reasons. A stream that ends with an error has the code of the error."""

    meta: EventMeta = msgspec.field(name="_meta")
    reason: str
    code: str | UnsetType = UNSET
    """Names the reason for programs; for clients at 2025-11-25."""


CONVERSATION_LOGGER: Final = "parley.conversation"
"""The `logger` of log messages that replace the notifications of a stream."""


class LoggedNotification(Struct, frozen=True, kw_only=True):
    """The `data` of a log message that replaces a notification: the replaced notification."""

    method: str
    params: Raw
