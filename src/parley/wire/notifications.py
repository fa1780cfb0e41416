"""Notifications that the server sends about conversations.

The structs define the format, and Parley's client library decodes notifications into them. The server does not
encode the structs: for speed, it builds the same JSON from encoded events (`server/encoders.py`). Tests check that
the JSON matches the structs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.ids import ConversationId, EventId, ItemId, Seq
from parley.wire.jsonrpc import RequestId

__all__ = [
    "CONVERSATION_LOGGER",
    "STORE_LOGGER",
    "CodexEvent",
    "CodexMeta",
    "ConversationEvent",
    "EventMeta",
    "InitialState",
    "LoggedNotification",
    "SnapshotEvent",
    "SnapshotMeta",
    "StoreNotice",
    "StreamDisconnected",
]


class EventMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `_meta` of an event, such as its conversation and its position. The arguments of the client's request
    determine which fields are set.
    """

    conversation_id: ConversationId | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    item: ItemId | UnsetType = UNSET
    offset: int | UnsetType = UNSET


class ConversationEvent(Struct, frozen=True, kw_only=True):
    """Params of a notification with one live event of a conversation stream. The method is the event's type."""

    meta: EventMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")
    msg: Raw


class CodexMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    request_id: RequestId


class CodexEvent(Struct, frozen=True, kw_only=True):
    """Params of a notification with one event of a `codex` call.

    Each event is also sent in a second notification whose method is the event's type.
    """

    METHOD: ClassVar[str] = "codex/event"

    meta: CodexMeta = msgspec.field(name="_meta")
    id: EventId
    msg: Raw


class SnapshotEvent(Struct, frozen=True, kw_only=True):
    meta: EventMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")
    msg: Raw


class _Events(Struct, frozen=True, kw_only=True):
    events: tuple[SnapshotEvent, ...]


class SnapshotMeta(EventMeta, frozen=True, kw_only=True, rename="camel"):
    """The `_meta` of a snapshot. `seq` is the last position of the snapshot."""

    before: Seq | UnsetType = UNSET
    """The value to pass to `conversationRead` as `before` to get the events before the snapshot. This field is
    missing if the snapshot begins with the first event, or if the stream was opened without the argument `last`.
    """


class InitialState(Struct, frozen=True, kw_only=True):
    """Params of the notification that begins a stream, before the live events.

    The notification contains all existing events after the requested position. If the stream was opened with the
    argument `last`, the notification contains only the latest events, about `last` of them.
    """

    METHOD: ClassVar[str] = "notifications/initial_state"

    meta: SnapshotMeta = msgspec.field(name="_meta")
    initial_state: _Events


class StreamDisconnected(Struct, frozen=True, kw_only=True):
    """Params of the notification that the server has ended a stream."""

    METHOD: ClassVar[str] = "notifications/stream_disconnected"

    TAKEN_OVER: ClassVar[str] = "New stream() took over"
    DELETED: ClassVar[str] = "Conversation deleted"
    SHUTTING_DOWN: ClassVar[str] = "Server is shutting down"
    NOT_SENT: ClassVar[str] = "An event could not be sent"
    NOT_OPEN: ClassVar[str] = "Stream is not open; open it again"

    CODES: ClassVar[Mapping[str, str]] = {
        TAKEN_OVER: "taken_over",
        DELETED: "deleted",
        SHUTTING_DOWN: "shutting_down",
        NOT_SENT: "not_sent",
        NOT_OPEN: "not_open",
    }
    """A mapping from each reason that is a constant of this class to its code. If a stream ends because of an
    error, the error code is sent instead.
    """

    @classmethod
    def taken_over_by(cls, name: str) -> str:
        """Return the reason that clients get when their streams end because the principal `name` has opened an
        exclusive stream.
        """
        return f"{cls.TAKEN_OVER}, opened by {name}"

    meta: EventMeta = msgspec.field(name="_meta")
    reason: str
    code: str | UnsetType = UNSET
    """The reason as a code (`CODES`); only for clients at protocol version 2025-11-25 and newer."""


CONVERSATION_LOGGER: Final = "parley.conversation"
"""The `logger` of log messages that carry notifications of a stream. Clients request such messages if their SDK
drops unknown notifications.
"""


class LoggedNotification(Struct, frozen=True, kw_only=True):
    """The `data` of a log message that carries a notification of a stream: the method and the params of this
    notification.
    """

    method: str
    params: Raw


STORE_LOGGER: Final = "parley.store"
"""The `logger` of log messages about the availability of the database."""


class StoreNotice(Struct, frozen=True, kw_only=True):
    """The `data` of a log message that reports whether the database is available."""

    state: Literal["available", "unreachable", "turns_stopped"]
    message: str
