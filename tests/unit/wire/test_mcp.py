"""The structs of MCP: answers for clients, and messages of clients."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from kit.builders.json import as_json, from_json
from kit.clients.messages import CAPABILITIES
from parley.wire.ids import ConversationId
from parley.wire.mcp import (
    FULL_CAPABILITIES,
    KNOWN_VERSIONS,
    PLAIN_CAPABILITIES,
    CallToolParams,
    CallToolResult,
    Cancelled,
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
    Initialized,
    InitializeParams,
    InitializeResult,
    ListToolsResult,
    Progress,
    RequestMeta,
    TextContent,
    ToolAnnotations,
    ToolDefinition,
    typed_result,
)
from parley.wire.tools import ConversationCreated, Failed, StreamStarted

SERVER = Implementation(name="parley", title="Parley", version="0.1.0")


def test_initialize_is_answered_in_the_plain_shape() -> None:
    result = InitializeResult(protocol_version="2025-06-18", capabilities=PLAIN_CAPABILITIES, server_info=SERVER)

    assert as_json(result) == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "parley", "title": "Parley", "version": "0.1.0"},
    }


def test_a_newer_client_gets_instructions_and_other_capabilities() -> None:
    result = InitializeResult(
        protocol_version="2025-11-25",
        capabilities=FULL_CAPABILITIES,
        server_info=SERVER,
        instructions="Open a conversation first.",
    )

    assert as_json(result) == {
        "protocolVersion": "2025-11-25",
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "parley", "title": "Parley", "version": "0.1.0"},
        "instructions": "Open a conversation first.",
    }


def test_four_revisions_are_known_and_the_newest_comes_first() -> None:
    assert KNOWN_VERSIONS == ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


@pytest.mark.parametrize(
    ("capabilities", "read"),
    [
        ({}, ClientCapabilities()),
        ({"elicitation": {}}, ClientCapabilities(elicitation=ElicitationCapability())),
        ({"elicitation": {"form": {}}}, ClientCapabilities(elicitation=ElicitationCapability(form={}))),
        ({"elicitation": {"url": {}}}, ClientCapabilities(elicitation=ElicitationCapability(url={}))),
        ({"elicitation": None, "roots": {"listChanged": True}}, ClientCapabilities(elicitation=None)),
    ],
    ids=str,
)
def test_a_client_says_whether_it_can_be_asked(capabilities: Any, read: ClientCapabilities) -> None:
    params = from_json(
        InitializeParams,
        {
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "clientInfo": {"name": "harness", "title": "Harness", "version": "0.0.0"},
        },
    )

    assert params == InitializeParams(
        protocol_version="2025-06-18",
        capabilities=read,
        client_info=Implementation(name="harness", title="Harness", version="0.0.0"),
    )


@pytest.mark.parametrize("missing", ["protocolVersion", "capabilities", "clientInfo"])
def test_initialize_without_one_of_its_three_params_is_refused(missing: str) -> None:
    params: dict[str, Any] = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "harness", "version": "0.0.0"},
    }
    del params[missing]

    with pytest.raises(msgspec.ValidationError, match=missing):
        from_json(InitializeParams, params)


def test_a_typed_result_has_its_value_twice() -> None:
    value = ConversationCreated(conversation_id=ConversationId("67e55044"), model="gpt-5")

    assert as_json(typed_result(value)) == {
        "content": [{"type": "text", "text": '{"conversation_id":"67e55044","model":"gpt-5"}'}],
        "isError": False,
        "structuredContent": {"conversation_id": "67e55044", "model": "gpt-5"},
    }


def test_the_result_of_starting_a_stream_is_empty() -> None:
    assert as_json(typed_result(StreamStarted())) == {
        "content": [{"type": "text", "text": "{}"}],
        "isError": False,
        "structuredContent": {},
    }


def test_streaming_an_unknown_conversation_fails_without_a_word() -> None:
    assert as_json(CallToolResult(content=(), is_error=True)) == {"content": [], "isError": True}


def test_a_failed_typed_result_says_why_in_its_value() -> None:
    assert as_json(typed_result(Failed(message="Session does not exist"), is_error=True)) == {
        "content": [{"type": "text", "text": '{"status":"error","message":"Session does not exist"}'}],
        "isError": True,
        "structuredContent": {"status": "error", "message": "Session does not exist"},
    }


def test_a_failed_turn_answers_with_error_as_well() -> None:
    result = CallToolResult(
        error=" Turn interrupted", content=(TextContent(text=" Turn interrupted"),), is_error=True
    )

    assert as_json(result) == {
        "error": " Turn interrupted",
        "content": [{"type": "text", "text": " Turn interrupted"}],
        "isError": True,
    }


def test_a_tool_is_listed_with_its_schema() -> None:
    tool = ToolDefinition(name="codex", title="Codex", description="Runs.", input_schema={"type": "object"})

    assert as_json(ListToolsResult(tools=(tool,))) == {
        "tools": [{"name": "codex", "title": "Codex", "description": "Runs.", "inputSchema": {"type": "object"}}]
    }


def test_a_newer_client_is_also_shown_annotations_and_the_schema_of_the_result() -> None:
    tool = ToolDefinition(
        name="codex",
        title="Codex",
        description="Runs.",
        input_schema={"type": "object"},
        output_schema={"type": "object"},
        annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )

    assert as_json(tool) == {
        "name": "codex",
        "title": "Codex",
        "description": "Runs.",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    }


def test_a_call_keeps_its_arguments_as_they_came() -> None:
    params = from_json(
        CallToolParams, {"name": "codex", "arguments": {"prompt": "hi"}, "_meta": {"progressToken": "t", "x": 1}}
    )

    assert (params.name, params.meta) == ("codex", RequestMeta(progress_token="t"))
    assert isinstance(params.arguments, Raw)
    assert bytes(params.arguments) == b'{"prompt": "hi"}'


def test_a_call_may_have_no_arguments() -> None:
    params = from_json(CallToolParams, {"name": "codex"})

    assert (params.arguments, params.meta) == (UNSET, UNSET)


@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": None}, {"arguments": {}}, []], ids=str)
def test_a_call_without_a_name_is_refused(params: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        from_json(CallToolParams, params)


@pytest.mark.parametrize("request_id", [0, -1, "7", ""])
def test_a_cancellation_names_a_request(request_id: int | str) -> None:
    assert from_json(Cancelled, {"requestId": request_id}) == Cancelled(request_id=request_id)
    assert as_json(Cancelled(request_id=request_id, reason="settled")) == {
        "requestId": request_id,
        "reason": "settled",
    }


def test_progress_returns_the_token() -> None:
    assert as_json(Progress(progress_token="t", progress=3)) == {"progressToken": "t", "progress": 3}
    assert as_json(Progress(progress_token=1, progress=3, message="task_started")) == {
        "progressToken": 1,
        "progress": 3,
        "message": "task_started",
    }


def test_methods_are_those_of_mcp() -> None:
    kinds = (InitializeParams, Initialized, ListToolsResult, CallToolParams, Cancelled, Progress)

    assert [kind.METHOD for kind in kinds] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
        "notifications/cancelled",
        "notifications/progress",
    ]
