"""The Python client: a typed way to talk to a Parley server that runs as a child process."""

from __future__ import annotations

from parley.client.child import Child
from parley.client.client import Client, connect
from parley.client.conversation import Conversation, Page, ReadEvent, Sent
from parley.client.errors import (
    CallCancelled,
    ClientError,
    Disconnected,
    RequestFailed,
    StreamEnded,
    ToolFailed,
    TurnFailed,
)
from parley.client.options import CodexOptions, CreateOptions, Overrides
from parley.client.questions import Answer, OpenQuestion, Question
from parley.client.running import Running
from parley.client.stream import Event, Seen, Stream
from parley.wire import events, items
from parley.wire.elicitation import ElicitationAnswer

__all__ = [
    "Answer",
    "CallCancelled",
    "Child",
    "Client",
    "ClientError",
    "CodexOptions",
    "Conversation",
    "CreateOptions",
    "Disconnected",
    "ElicitationAnswer",
    "Event",
    "OpenQuestion",
    "Overrides",
    "Page",
    "Question",
    "ReadEvent",
    "RequestFailed",
    "Running",
    "Seen",
    "Sent",
    "Stream",
    "StreamEnded",
    "ToolFailed",
    "TurnFailed",
    "connect",
    "events",
    "items",
]
