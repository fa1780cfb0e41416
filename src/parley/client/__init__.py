"""The Python client: typed calls to a Parley server."""

from __future__ import annotations

from parley.client.approval import Approval
from parley.client.client import Client, connect
from parley.client.codex_call import CodexCall
from parley.client.conversation import Conversation, EventPage, ReadEvent
from parley.client.errors import (
    AlreadyDecided,
    CallCancelled,
    CallLost,
    CallTimedOut,
    ClientError,
    Disconnected,
    RequestFailed,
    ServerRefused,
    ServerUnreachable,
    StreamEnded,
    ToolFailed,
    TurnFailed,
    TurnNotFollowable,
    UnreadableResult,
)
from parley.client.feeds import StreamEvent
from parley.client.options import CodexOptions, CreateOptions, Overrides, SendOptions
from parley.client.query import query
from parley.client.remote_server import RemoteServer
from parley.client.resident_socket import ResidentSocket
from parley.client.server_process import ServerProcess
from parley.client.stream import Stream
from parley.client.transport import RestartableTransport, SeparateRequests, Transport
from parley.client.turn import Turn
from parley.client.turn_result import Event, TurnResult
from parley.wire import events, items

__all__ = [
    "AlreadyDecided",
    "Approval",
    "CallCancelled",
    "CallLost",
    "CallTimedOut",
    "Client",
    "ClientError",
    "CodexCall",
    "CodexOptions",
    "Conversation",
    "CreateOptions",
    "Disconnected",
    "Event",
    "EventPage",
    "Overrides",
    "ReadEvent",
    "RemoteServer",
    "RequestFailed",
    "ResidentSocket",
    "RestartableTransport",
    "SendOptions",
    "SeparateRequests",
    "ServerProcess",
    "ServerRefused",
    "ServerUnreachable",
    "Stream",
    "StreamEnded",
    "StreamEvent",
    "ToolFailed",
    "Transport",
    "Turn",
    "TurnFailed",
    "TurnNotFollowable",
    "TurnResult",
    "UnreadableResult",
    "connect",
    "events",
    "items",
    "query",
]
