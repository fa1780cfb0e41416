"""Validation of a server's messages.

The models of the official `mcp` package validate messages of MCP. Parley's own types validate the other messages:
decoding and encoding must not change them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from parley.wire.events import EVENT_TYPES, UnknownEvent, decode_event, event_type
from parley.wire.mcp import FULL_VERSION, LogMessage, Ping
from parley.wire.notifications import (
    CONVERSATION_LOGGER,
    CodexEvent,
    ConversationEvent,
    InitialState,
    LoggedNotification,
    StreamDisconnected,
)

__all__ = ["check_message"]

_RESULT_OF: Final = {
    "protocolVersion": "initialize",
    "tools": "tools/list",
    "content": "tools/call",
}
"""The request that a result belongs to, by a member that only this result has."""


def check_message(frame: bytes, *, version: str = FULL_VERSION) -> None:
    """Check one message of a server, for a client that negotiated `version`.

    Raises:
        AssertionError: the message is not valid; the text has the reason and the message.
    """
    try:
        _check(msgspec.json.decode(frame), frame, version)
    except (ValueError, KeyError) as error:  # both validators' errors are ValueErrors
        raise AssertionError(f"{error}\nin the message {frame.decode(errors='replace')}") from error


def _check(message: Any, frame: bytes, version: str) -> None:
    from mcp_types.jsonrpc import jsonrpc_message_adapter
    from mcp_types.methods import (
        SERVER_NOTIFICATIONS,
        SERVER_REQUESTS,
        parse_server_notification,
        parse_server_request,
        parse_server_result,
    )

    jsonrpc_message_adapter.validate_python(message)
    method, params = message.get("method"), message.get("params")
    if "error" in message:
        return  # an error has only an envelope
    if method is None:
        result = message["result"]
        answered = next((of for member, of in _RESULT_OF.items() if member in result), Ping.METHOD)
        parse_server_result(answered, version, result)
    elif "id" in message:
        if (method, version) not in SERVER_REQUESTS:
            raise ValueError(f"a server does not send the request {method}")
        parse_server_request(method, version, params)
    elif (method, version) in SERVER_NOTIFICATIONS:
        parse_server_notification(method, version, params)
        if method == LogMessage.METHOD and params.get("logger") == CONVERSATION_LOGGER:
            _check_logged(msgspec.json.decode(frame, type=_Logged).params.data)
    else:
        _check_vendor(method, msgspec.json.decode(frame, type=_Notification).params)


class _Notification(Struct, frozen=True):
    params: Raw


class _LoggedParams(Struct, frozen=True):
    data: Raw


class _Logged(Struct, frozen=True):
    params: _LoggedParams


def _check_logged(data: Raw) -> None:
    logged = msgspec.json.decode(data, type=LoggedNotification)
    _same(data, logged)
    _check_vendor(logged.method, logged.params)


def _check_vendor(method: str, params: Raw) -> None:
    if method == StreamDisconnected.METHOD:
        _same(params, msgspec.json.decode(params, type=StreamDisconnected))
    elif method == InitialState.METHOD:
        state = msgspec.json.decode(params, type=InitialState)
        _same(params, state)
        for one in state.initial_state.events:
            _check_event(one.msg)
    elif method == CodexEvent.METHOD:
        _check_codex_event(params)
    elif method in EVENT_TYPES:
        kind = _check_codex_event(params) if "id" in msgspec.json.decode(params) else _check_live_event(params)
        if kind != method:
            raise ValueError(f"the event {kind} under the method {method}")
    else:
        raise ValueError(f"a server does not send the notification {method}")


def _check_codex_event(params: Raw) -> str:
    happened = msgspec.json.decode(params, type=CodexEvent)
    _same(params, happened)
    return _check_event(happened.msg)


def _check_live_event(params: Raw) -> str:
    happened = msgspec.json.decode(params, type=ConversationEvent)
    _same(params, happened)
    return _check_event(happened.msg)


def _check_event(encoded: Raw) -> str:
    event = decode_event(encoded)
    if isinstance(event, UnknownEvent):
        raise ValueError(f"no event has the type {event.type}")
    _same(encoded, event)
    return event_type(event)


def _same(encoded: Raw, read: Struct) -> None:
    """Check that encoding the decoded value gives the same JSON: no unknown and no missing members."""
    sent, again = msgspec.json.decode(encoded), msgspec.json.decode(msgspec.json.encode(read))
    if sent != again:
        raise ValueError(f"read as {again}")
