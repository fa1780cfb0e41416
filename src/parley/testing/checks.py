"""Validation of a server's messages.

The models of the official `mcp` package validate MCP messages. Parley's own types validate the other messages:
decoding and encoding again must give the same JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from parley.wire.events import EVENT_TYPES, UnknownEvent, decode_event, event_type
from parley.wire.mcp import FULL_VERSION, CallToolParams, InitializeParams, ListToolsResult, LogMessage, Ping
from parley.wire.modern import MODERN_VERSION, DiscoverResult
from parley.wire.notifications import (
    CONVERSATION_LOGGER,
    CodexEvent,
    ConversationEvent,
    InitialState,
    LoggedNotification,
    StreamDisconnected,
)
from parley.wire.prompts import CompleteParams, GetPromptParams, ListPromptsParams
from parley.wire.resources import ListResourcesParams, ListResourceTemplatesParams, ReadResourceParams
from parley.wire.subscriptions import SUBSCRIPTION_ID
from parley.wire.tasks import TaskStatusChanged

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["check_message"]

_RESULT_OF: Final = {
    "protocolVersion": InitializeParams.METHOD,
    "supportedVersions": DiscoverResult.METHOD,
    "tools": ListToolsResult.METHOD,
    "inputRequests": CallToolParams.METHOD,
    "content": CallToolParams.METHOD,
    "resources": ListResourcesParams.METHOD,
    "resourceTemplates": ListResourceTemplatesParams.METHOD,
    "contents": ReadResourceParams.METHOD,
    "prompts": ListPromptsParams.METHOD,
    "messages": GetPromptParams.METHOD,
    "completion": CompleteParams.METHOD,
}
"""A mapping from the name of a member to the only method whose results contain this member. The member shows which
method a response belongs to.
"""


def check_message(frame: bytes, *, version: str = FULL_VERSION) -> None:
    """Check one message from a server to a client that has negotiated the protocol version `version`.

    Raises:
        AssertionError: the message is not valid; the text contains the reason and the message.
    """
    try:
        _check(msgspec.json.decode(frame), frame, version)
    except (ValueError, KeyError) as error:  # the errors of both validators are subclasses of ValueError
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
    if SUBSCRIPTION_ID in ((params or {}).get("_meta") or {}):
        version = MODERN_VERSION
    if "error" in message:
        return  # an error response has no result to validate
    if method is None:
        result = message["result"]
        if (model := _task_results().get(next(iter(result), ""))) is not None:
            model.model_validate(result)
            return
        if "resultType" in result:
            version = MODERN_VERSION
            if "taskId" in result or result.keys() <= {"resultType", "_meta"}:
                return  # the package has no models for tasks of this version or for empty results
        answered = next((of for member, of in _RESULT_OF.items() if member in result), Ping.METHOD)
        parse_server_result(answered, version, result)
    elif "id" in message:
        if (method, version) not in SERVER_REQUESTS:
            raise ValueError(f"a server does not send the request {method}")
        parse_server_request(method, version, params)
    elif method == TaskStatusChanged.METHOD:
        _task_results()["taskId"].model_validate(params)
    elif (method, version) in SERVER_NOTIFICATIONS:
        parse_server_notification(method, version, params)
        if method == LogMessage.METHOD and params.get("logger") == CONVERSATION_LOGGER:
            _check_logged(msgspec.json.decode(frame, type=_Logged).params.data)
    else:
        _check_vendor(method, msgspec.json.decode(frame, type=_Notification).params)


def _task_results() -> Mapping[str, type[BaseModel]]:
    """Return a mapping from the member that identifies a kind of task result to the model that validates results of
    this kind. The `mcp` package does not list these models.
    """
    from mcp_types import CreateTaskResult, ListTasksResult, Task

    return {"task": CreateTaskResult, "tasks": ListTasksResult, "taskId": Task}


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
            raise ValueError(f"a notification with the method {method} contains an event of the type {kind}")
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
    """Check that encoding the decoded value `read` again gives the same JSON as `encoded`. The JSON differs if
    a member is unknown or missing.

    Raises:
        ValueError: the two JSON values differ.
    """
    sent, again = msgspec.json.decode(encoded), msgspec.json.decode(msgspec.json.encode(read))
    if sent != again:
        raise ValueError(f"a member is unknown or missing; decoding and encoding again gives {again}")
