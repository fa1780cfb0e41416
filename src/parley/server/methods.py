"""The methods of MCP that Parley serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, Struct

from parley.config.load import Loader
from parley.config.types import McpSettings
from parley.errors import ConfigError, OwnerUnresponsive, ParleyError, ShuttingDown, StoreError
from parley.server.context import ServerContext
from parley.server.dispatch import Call, Handler
from parley.server.error_mapping import Faults, failure
from parley.server.errors import AlreadyInitialized, InvalidParams, UnknownMethod, UnknownTool
from parley.server.hosts import Features, features_of
from parley.server.session import Session
from parley.server.streams import Streams
from parley.server.toolcall import ToolCall
from parley.server.tools import TOOLS
from parley.version import __version__
from parley.wire.jsonrpc import decode_lenient, encode
from parley.wire.mcp import (
    FULL_CAPABILITIES,
    FULL_VERSION,
    KNOWN_VERSIONS,
    PLAIN_CAPABILITIES,
    CallToolParams,
    Implementation,
    InitializeParams,
    InitializeResult,
    ListToolsResult,
    Ping,
    SetLevelParams,
)

__all__ = ["methods"]

log = logging.getLogger(__name__)

_INSTRUCTIONS: Final = (
    "Parley runs coding agents in conversations that stay when you disconnect. `codex` starts a conversation, runs "
    "one request to its end and returns the agent's last message; `codex-reply` continues a conversation. A call "
    "that waits long may time out, but the agent goes on. So for work that takes more than a minute use "
    "`conversationCreate`, then `conversationSendMessage`, then `conversationRead` with `wait_seconds` until "
    "`state` is `idle`. A message that you send while the agent works joins its turn. `conversationsList` finds "
    "conversations, also those of other clients. "
)
_STREAMS: Final = "`conversationStream` sends all events as notifications. "
_APPROVALS: Final = (
    "When the agent waits for an approval and you cannot be asked, `approvalsList` lists the question and "
    "`approvalAnswer` answers it."
)
_APPROVALS_BY_PEOPLE: Final = (
    "When the agent waits for an approval, only a person can give it; `approvalsList` lists the open questions."
)


def instructions(features: Features) -> str:
    """Return the `instructions` for the model that uses the client."""
    streams = _STREAMS if features.event_notifications else ""
    return _INSTRUCTIONS + streams + (_APPROVALS if features.may_answer_approvals else _APPROVALS_BY_PEOPLE)


_initialize_decoder: Final = msgspec.json.Decoder(InitializeParams)
_level_decoder: Final = msgspec.json.Decoder(SetLevelParams)
_call_decoder: Final = msgspec.json.Decoder(CallToolParams)

Params = TypeVar("Params", bound=Struct)


def methods(session: Session, streams: Streams, server: ServerContext) -> Mapping[str, Handler]:
    """Return the handlers of all request methods, for one client."""

    async def initialize(call: Call) -> None:
        params = _params(_initialize_decoder, call)
        if session.initialized:
            raise AlreadyInitialized
        known = params.protocol_version in KNOWN_VERSIONS
        version = params.protocol_version if known else FULL_VERSION
        features = features_of(version, params.client_info.name, _mcp_settings(session.loader))
        session.begin(version, features, can_be_asked=params.capabilities.can_be_asked)
        result = InitializeResult(
            protocol_version=session.version,
            capabilities=FULL_CAPABILITIES if features.full_version else PLAIN_CAPABILITIES,
            server_info=Implementation(name="parley", title="Parley", version=__version__),
            instructions=instructions(features) if features.additions else UNSET,
        )
        call.answer(encode(result))
        asyncio.get_running_loop().call_soon(server.on_initialized)  # after the answer is written

    async def ping(call: Call) -> None:
        call.answer(b"{}")

    async def set_level(call: Call) -> None:
        if not call.context.features.full_version:
            raise UnknownMethod(SetLevelParams.METHOD)
        session.log_level = _params(_level_decoder, call).level
        call.answer(b"{}")

    async def list_tools(call: Call) -> None:
        call.answer(encode(ListToolsResult(tools=TOOLS.definitions(call.context.features))))

    async def call_tool(call: Call) -> None:
        params = _params(_call_decoder, call)
        features = call.context.features
        if (tool := TOOLS.get(params.name, features)) is None:
            call.answer(encode(failure(params.name, Faults.PLAIN, UnknownTool(params.name), features)))
            return
        tool_call = ToolCall(call, params, session, streams, server)
        del params  # it holds the whole message
        try:
            result = await tool.call(tool_call)
        except ParleyError as error:
            # During a shutdown a closed store is no news; but another process may still execute the request.
            ends = (
                isinstance(error, StoreError)
                and not isinstance(error, OwnerUnresponsive)
                and server.conversations.closing
            )
            result = failure(tool.name, tool.faults, ShuttingDown() if ends else error, features)
        if result is not None and not call.closed:
            answer = encode(result)
            del result  # an answer may be large, and is copied once more
            call.answer(answer)

    return {
        InitializeParams.METHOD: initialize,
        Ping.METHOD: ping,
        SetLevelParams.METHOD: set_level,
        ListToolsResult.METHOD: list_tools,
        CallToolParams.METHOD: call_tool,
    }


def _mcp_settings(loader: Loader) -> McpSettings:
    try:
        return loader.mcp_settings()
    except ConfigError as error:
        log.warning("cannot read the settings for clients, using their defaults: %s", error)
        return McpSettings()


def _params(decoder: msgspec.json.Decoder[Params], call: Call) -> Params:
    params, call.params = call.params, UNSET  # frees the encoded form
    try:
        return decode_lenient(decoder, b"{}" if params is UNSET else params)
    except msgspec.DecodeError as error:
        raise InvalidParams(error) from None
