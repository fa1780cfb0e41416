"""The MCP methods that Parley supports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.errors import OwnerUnresponsive, ParleyError, ShuttingDown, StoreError
from parley.ports.availability import AVAILABLE
from parley.server.access import may_call_approval_answer
from parley.server.completion import completion_methods
from parley.server.context import Principal, ServerContext
from parley.server.dispatch import Call, Handler
from parley.server.error_mapping import ErrorShape, failure
from parley.server.errors import AlreadyInitialized, InvalidParams, TaskNotPossible, UnknownMethod, UnknownTool
from parley.server.hosts import Features, features_of
from parley.server.mcp_settings import mcp_settings
from parley.server.modern.listen import listen
from parley.server.modern.rounds import RequestStates, Rounds
from parley.server.modern.tasks import modern_task_methods, wants_tasks
from parley.server.params import by_version, params_of, since_full_version
from parley.server.prompts import prompt_methods
from parley.server.resources.methods import resource_methods
from parley.server.resources.subscriptions import ResourceSubscriptions
from parley.server.session import Session
from parley.server.store_notices import send_store_notice
from parley.server.streams import Streams
from parley.server.task_methods import task_methods
from parley.server.toolcall import ToolCall
from parley.server.tools import TOOLS
from parley.version import __version__
from parley.wire.jsonrpc import encode
from parley.wire.mcp import (
    FULL_CAPABILITIES,
    FULL_VERSION,
    KNOWN_VERSIONS,
    MODERN_CAPABILITIES,
    PLAIN_CAPABILITIES,
    SERVER_NAME,
    SERVER_TITLE,
    CallToolParams,
    Implementation,
    InitializeParams,
    InitializeResult,
    ListToolsResult,
    Ping,
    SetLevelParams,
    TaskRequest,
)
from parley.wire.modern import SERVED_VERSIONS, DiscoverResult
from parley.wire.resources import SubscribeParams, UnsubscribeParams
from parley.wire.subscriptions import ListenParams
from parley.wire.tasks import ListTasksParams, TaskResultParams, UpdateTaskParams

__all__ = ["LEGACY_METHODS", "MODERN_METHODS", "methods", "negotiate"]

_INSTRUCTIONS: Final = (
    "Parley runs coding agents in conversations that continue when you disconnect. `codex` starts a conversation, "
    "runs one request to its end and returns the agent's last message; `codex-reply` continues a conversation. A "
    "long call may time out, but the agent continues to work. For work that takes more than a minute, use "
    "`conversationCreate`, then `conversationSendMessage`, then `conversationRead` with `wait_seconds` until "
    "`state` is `idle`. A message that you send while the agent works joins its turn. `conversationsList` finds "
    "conversations, including the conversations of other clients. "
)
_STREAMS: Final = "`conversationStream` sends all events as notifications. "
_APPROVALS: Final = (
    "When the agent waits for an approval and you cannot be asked, `approvalsList` lists the approval and "
    "`approvalAnswer` answers it."
)
_APPROVALS_BY_PEOPLE: Final = (
    "When the agent waits for an approval, only a person can give it; `approvalsList` lists the open approvals."
)


def instructions(principal: Principal, features: Features) -> str | UnsetType:
    """Return the `instructions` of the server, which a client passes to its model; UNSET for a client that does not
    get Parley's additions to the protocol (`Features.additions`).
    """
    if not features.additions:
        return UNSET
    streams = _STREAMS if features.event_notifications else ""
    approvals = _APPROVALS if may_call_approval_answer(principal, features) else _APPROVALS_BY_PEOPLE
    return _INSTRUCTIONS + streams + approvals


LEGACY_METHODS: Final = frozenset(
    {
        InitializeParams.METHOD,
        Ping.METHOD,
        SetLevelParams.METHOD,
        SubscribeParams.METHOD,
        UnsubscribeParams.METHOD,
        ListTasksParams.METHOD,
        TaskResultParams.METHOD,
    }
)
"""The methods that do not exist at protocol version 2026-07-28."""

MODERN_METHODS: Final = frozenset({DiscoverResult.METHOD, ListenParams.METHOD, UpdateTaskParams.METHOD})
"""The methods that exist only at protocol version 2026-07-28."""

_initialize_decoder: Final = msgspec.json.Decoder(InitializeParams)
_level_decoder: Final = msgspec.json.Decoder(SetLevelParams)
_call_decoder: Final = msgspec.json.Decoder(CallToolParams)


def negotiate(session: Session, params: InitializeParams) -> None:
    """Choose the protocol version and the features of the client from the parameters of `initialize`, and begin the
    session with them.
    """
    known = params.protocol_version in KNOWN_VERSIONS
    version = params.protocol_version if known else FULL_VERSION
    session.begin(version, features_of(version, params.client_info.name, mcp_settings(session.loader)), params)


def methods(
    session: Session, streams: Streams, subscriptions: ResourceSubscriptions, server: ServerContext
) -> Mapping[str, Handler]:
    """Return the handlers of all request methods, by method name, for one client."""

    async def initialize(call: Call) -> None:
        params = params_of(_initialize_decoder, call)
        if session.initialized:
            raise AlreadyInitialized
        negotiate(session, params)
        features = session.features
        result = InitializeResult(
            protocol_version=session.version,
            capabilities=FULL_CAPABILITIES if features.full_version else PLAIN_CAPABILITIES,
            server_info=Implementation(name=SERVER_NAME, title=SERVER_TITLE, version=__version__),
            instructions=instructions(call.context.principal, features),
        )
        call.answer(encode(result))
        asyncio.get_running_loop().call_soon(server.on_initialized)  # called after the response is written
        if server.availability != AVAILABLE:
            send_store_notice(session, server.availability)

    async def ping(call: Call) -> None:
        call.answer(b"{}")

    async def set_level(call: Call) -> None:
        if not call.context.features.full_version:
            raise UnknownMethod(SetLevelParams.METHOD)
        session.log_level = params_of(_level_decoder, call).level
        session.changed()
        call.answer(b"{}")

    async def list_tools(call: Call) -> None:
        call.answer(
            encode(ListToolsResult(tools=TOOLS.definitions_for(call.context.principal, call.context.features)))
        )

    async def call_tool(call: Call) -> None:
        params = params_of(_call_decoder, call)
        features = call.context.features
        if (tool := TOOLS.get(params.name, features)) is None:
            call.answer(encode(failure(params.name, ErrorShape.PLAIN, UnknownTool(params.name), features)))
            return
        if features.modern:
            tool_call = ToolCall(call, params, session.for_request(call.context), streams, server)
            if tool.may_ask:
                states, principal = RequestStates(server.signing_key), call.context.principal
                tool_call.rounds = Rounds(states, params, principal=principal, features=features)
            tool_call.is_task = tool.can_be_task and wants_tasks(call.context)
        else:
            tool_call = ToolCall(call, params, session, streams, server)
            tool_call.is_task = features.full_version and _asks_for_task(params.task)
            if tool_call.is_task and not tool.can_be_task:
                raise TaskNotPossible(tool.name)
        del params  # free the encoded message
        try:
            result = await tool.call(tool_call)
        except ParleyError as error:
            # During a shutdown, a closed store is the expected error. Another process may still execute the
            # request.
            ends = (
                isinstance(error, StoreError)
                and not isinstance(error, OwnerUnresponsive)
                and server.conversations.closing
            )
            call.finished()
            result = failure(tool.name, tool.error_shape, ShuttingDown() if ends else error, features)
        if result is not None and not call.closed:
            answer = encode(result)
            del result  # a result may be large, and its encoded form is a copy
            call.answer(answer)

    async def discover(call: Call) -> None:
        features = call.context.features
        result = DiscoverResult(
            supported_versions=SERVED_VERSIONS,
            capabilities=MODERN_CAPABILITIES,
            instructions=instructions(call.context.principal, features),
        )
        call.answer(encode(result))
        asyncio.get_running_loop().call_soon(server.on_initialized)  # called after the response is written

    async def listen_for_changes(call: Call) -> None:
        await listen(call, session, server)

    return {
        DiscoverResult.METHOD: discover,
        ListenParams.METHOD: since_full_version(ListenParams.METHOD, listen_for_changes),
        InitializeParams.METHOD: initialize,
        Ping.METHOD: ping,
        SetLevelParams.METHOD: set_level,
        ListToolsResult.METHOD: list_tools,
        CallToolParams.METHOD: call_tool,
        **resource_methods(subscriptions, server),
        **prompt_methods(server),
        **completion_methods(server),
        **by_version(task_methods(session, server), modern_task_methods(server)),
    }


def _asks_for_task(task: object) -> bool:
    """Return whether the call must run as a task. `task` is the member `task` in the parameters of `tools/call`.

    Raises:
        InvalidParams: `task` does not have the form that the protocol defines.
    """
    if task is UNSET or task is None:
        return False
    try:
        msgspec.convert(task, TaskRequest)
    except msgspec.ValidationError as error:
        raise InvalidParams(error) from None
    return True
