"""Generates one document with the JSON Schemas of all messages that a client with protocol version 2025-11-25 can
receive or send.

The schemas are generated from the structs and tables that the server uses. No schema contains references.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Struct

from parley.server.hosts import Features
from parley.server.tools import TOOLS
from parley.version import __version__
from parley.wire.elicitation import ElicitationAnswer, ElicitationParams
from parley.wire.events import EVENT_TYPES, NEVER_SENT
from parley.wire.mcp import FULL_VERSION, Cancelled, LogMessage, Progress
from parley.wire.notifications import (
    CONVERSATION_LOGGER,
    CodexEvent,
    ConversationEvent,
    InitialState,
    LoggedNotification,
    StreamDisconnected,
)
from parley.wire.schema import schema_of

__all__ = ["GROUPS", "schema_document", "schema_named"]

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
GROUPS: Final = ("events", "notifications", "requests", "tools")


def schema_document() -> Schema:
    """Return the document with all schemas, in groups such as `events` and `tools`."""
    events = {kind: _sent(event) for kind, event in EVENT_TYPES.items()}
    return {
        "dialect": DIALECT,
        "version": __version__,
        "protocol_version": FULL_VERSION,
        "events": events,
        "notifications": _notifications({kind: event for kind, event in events.items() if kind not in NEVER_SENT}),
        "requests": {
            ElicitationParams.METHOD: {"params": _sent(ElicitationParams), "result": schema_of(ElicitationAnswer)}
        },
        "tools": {
            tool.name: {
                "arguments": tool.input_schema,
                "result": {} if tool.output_schema is UNSET else tool.output_schema,
            }
            for tool in TOOLS.definitions(Features(additions=True))
        },
    }


def schema_named(name: str) -> Schema | None:
    """Return the group or the single schema with the given name; None if neither a group nor a schema has this
    name.

    If `name` is an event type, return the schema of the event, not of the notification with the same name.
    """
    document = schema_document()
    if name in GROUPS:
        return dict(document[name])
    return next((dict(document[group][name]) for group in GROUPS if name in document[group]), None)


def _notifications(events: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of the `params` of all notifications, keyed by method. `events` maps each event type to
    its schema.
    """
    any_event = {"anyOf": list(events.values())}
    state = _sent(InitialState)
    _set_msg(state["properties"]["initial_state"]["properties"]["events"]["items"], any_event)
    log = _sent(LogMessage)
    log["properties"]["logger"] = {"type": "string", "enum": [CONVERSATION_LOGGER]}
    log["properties"]["data"] = _sent(LoggedNotification)
    own = {
        CodexEvent.METHOD: _set_msg(_sent(CodexEvent), any_event),
        InitialState.METHOD: state,
        StreamDisconnected.METHOD: _sent(StreamDisconnected),
        LogMessage.METHOD: log,
        Progress.METHOD: _sent(Progress),
        Cancelled.METHOD: _sent(Cancelled),
    }
    of_events = {
        kind: {"anyOf": [_set_msg(_sent(ConversationEvent), event), _set_msg(_sent(CodexEvent), event)]}
        for kind, event in events.items()
    }
    return {**own, **of_events}


def _sent(struct: type[Struct]) -> Schema:
    """Return the schema of a message that the server sends, in which optional members may be null."""
    return schema_of(struct, nulls=True)


def _set_msg(schema: Schema, event: Schema) -> Schema:
    """Set the schema of the member `msg` in `schema` to the schema `event`, and return `schema`. The struct from
    which `schema` was generated declares `msg` only as encoded JSON.
    """
    schema["properties"]["msg"] = event
    return schema
