"""Records in a word or two."""

from __future__ import annotations

from msgspec import Raw

from parley.conversation.records import (
    CallItem,
    CallOutput,
    MessageItem,
    ModelAsked,
    ModelItem,
    ModelSaid,
    OpaqueItem,
    SettingsChosen,
    TurnEnded,
    TurnStarted,
    Why,
)
from parley.wire.ids import CallId, EventId

__all__ = [
    "call",
    "call_output",
    "message",
    "model_asked",
    "model_said",
    "opaque",
    "settings_chosen",
    "turn_ended",
    "turn_started",
]


def settings_chosen(model: str = "mock-model", cwd: str = "/project") -> SettingsChosen:
    return SettingsChosen(model=model, cwd=cwd)


def turn_started(event_id: str = "1") -> TurnStarted:
    return TurnStarted(event_id=EventId(event_id))


def turn_ended(why: Why = "done", message: str | None = None) -> TurnEnded:
    return TurnEnded(why=why, message=message)


def model_asked() -> ModelAsked:
    return ModelAsked()


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
