"""Builds records with default fields."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, UnsetType

from parley.conversation.records import (
    CallItem,
    CallOutput,
    CommandOutput,
    HistoryCompacted,
    InputRead,
    InputRefused,
    MessageItem,
    MessageJoined,
    MessageQueued,
    ModelAsked,
    ModelItem,
    ModelSaid,
    OpaqueItem,
    QueuedMessageEdited,
    QueuedMessageRemoved,
    Renamed,
    ResponseUsed,
    SessionGranted,
    SettingsChosen,
    StreamOutput,
    TokensEstimated,
    TurnEnded,
    TurnStarted,
)
from parley.wire.events import OutputStream, TokenCount, TurnEndReason
from parley.wire.ids import CallId, EventId, ItemId, MessageId
from parley.wire.items import InputItem, TextItem
from parley.wire.principals import LOCAL, PrincipalRef

__all__ = [
    "call",
    "call_output",
    "command_output",
    "history_compacted",
    "input_read",
    "input_refused",
    "message",
    "message_joined",
    "message_queued",
    "model_asked",
    "model_said",
    "opaque",
    "queued_message_edited",
    "queued_message_removed",
    "renamed",
    "response_used",
    "session_granted",
    "settings_chosen",
    "tokens_estimated",
    "turn_ended",
    "turn_started",
]


def command_output(
    call_id: str, data: bytes = b"", *, item: str = "i1", stream: OutputStream = "stdout"
) -> CommandOutput:
    """Build the record of the complete output of a command on one stream."""
    kept = StreamOutput(
        item=ItemId(item), stream=stream, head=data, tail=b"", size=len(data), lines=data.count(b"\n")
    )
    return CommandOutput(call_id=CallId(call_id), streams=(kept,))


def input_read(*content: InputItem, message_id: str | None = None) -> InputRead:
    return InputRead(content=content, message_id=None if message_id is None else MessageId(message_id))


def input_refused() -> InputRefused:
    return InputRefused()


def history_compacted(summary: str = "all before", *, replaced: int = 1) -> HistoryCompacted:
    return HistoryCompacted(summary=summary, replaced=replaced)


def settings_chosen(model: str = "mock-model", cwd: str = "/project", **asked: Any) -> SettingsChosen:
    return SettingsChosen(model=model, cwd=cwd, asked=asked)


def renamed(title: str) -> Renamed:
    return Renamed(title=title)


def response_used(usage: TokenCount) -> ResponseUsed:
    return ResponseUsed(usage=usage)


def tokens_estimated(tokens: int = 1) -> TokensEstimated:
    return TokensEstimated(tokens=tokens)


def turn_started(event_id: str = "1", principal: PrincipalRef | None = None) -> TurnStarted:
    return TurnStarted(event_id=EventId(event_id), principal=principal)


def message_joined(message_id: str, principal: PrincipalRef | None = LOCAL) -> MessageJoined:
    return MessageJoined(message_id=MessageId(message_id), principal=principal)


def turn_ended(why: TurnEndReason = "done", message: str | None = None, code: str | UnsetType = UNSET) -> TurnEnded:
    return TurnEnded(why=why, message=message, code=code)


def session_granted(key: str = "k") -> SessionGranted:
    return SessionGranted(principal="local", key=key)


def model_asked(inputs: int | None = None) -> ModelAsked:
    return ModelAsked(inputs=inputs)


def model_said(item: ModelItem) -> ModelSaid:
    return ModelSaid(item=item)


def message(text: str) -> MessageItem:
    return MessageItem(text=text)


def call(call_id: str, arguments: str = "{}", *, name: str = "shell") -> CallItem:
    return CallItem(call_id=CallId(call_id), name=name, arguments=arguments)


def opaque(verbatim: str = '{"type":"reasoning"}') -> OpaqueItem:
    return OpaqueItem(verbatim=Raw(verbatim))


def call_output(call_id: str, output: str) -> CallOutput:
    return CallOutput(call_id=CallId(call_id), output=output)


def message_queued(message_id: str, said: str = "go", **asked: Any) -> MessageQueued:
    return MessageQueued(message_id=MessageId(message_id), content=(TextItem(text=said),), asked=asked or None)


def queued_message_edited(message_id: str, said: str = "stop") -> QueuedMessageEdited:
    return QueuedMessageEdited(message_id=MessageId(message_id), content=(TextItem(text=said),))


def queued_message_removed(message_id: str) -> QueuedMessageRemoved:
    return QueuedMessageRemoved(message_id=MessageId(message_id))
