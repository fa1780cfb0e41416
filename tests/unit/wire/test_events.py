"""Each event of the protocol, in the form for clients and in the stored form."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    agent_reasoning_raw_content,
    background_event,
    error,
    task_complete,
    task_started,
    text,
    token_count,
)
from kit.builders.json import as_json
from parley.wire.events import (
    EVENT_TYPES,
    FOR_FULL_VERSION_ONLY,
    AddedFile,
    AgentMessageDelta,
    AgentReasoningDelta,
    AgentReasoningRawContentDelta,
    ApplyPatchApprovalRequest,
    ApprovalSettled,
    Duration,
    EventMsg,
    ExecApprovalRequest,
    ExecCommandBegin,
    ExecCommandEnd,
    ExecCommandOutputDelta,
    GetHistoryEntryResponse,
    Invocation,
    LimitReached,
    McpToolCallBegin,
    McpToolCallEnd,
    OtherChange,
    ParsedCommand,
    PatchApplyBegin,
    PatchApplyEnd,
    PatchRefused,
    PlanStep,
    PlanUpdate,
    QueueChanged,
    RequestRetry,
    SessionConfigured,
    ShutdownComplete,
    ToolCallOutcome,
    TurnDiff,
    UnknownEvent,
    UpdatedFile,
    UserMessage,
    WebSearch,
    WebSearchResult,
    WorkspaceUpdated,
    decode_event,
    event_type,
)
from parley.wire.ids import ApprovalId, CallId, ConversationId, MessageId
from parley.wire.jsonrpc import encode

C1 = CallId("c1")
A_CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
A_MESSAGE = MessageId("00000000-0000-4000-8000-000000000001")
ANOTHER_MESSAGE = MessageId("00000000-0000-4000-8000-000000000002")
AN_APPROVAL = ApprovalId("00000000-0000-4000-8000-000000000003")

ADDITION = OtherChange(add=AddedFile(content="hello\n"))
UPDATE = OtherChange(update=UpdatedFile(unified_diff="@@ -1 +1 @@\n-a\n+b\n", move_path=None))
MOVE = OtherChange(update=UpdatedFile(unified_diff="", move_path="/project/new.txt"))
INVOCATION = Invocation(server="files", tool="read", arguments={"path": "a", "lines": [1, None]})

SHAPES: list[tuple[EventMsg, dict[str, Any]]] = [
    (
        SessionConfigured(session_id=A_CONVERSATION, model="gpt-5", history_log_id=7, history_entry_count=3),
        {
            "type": "session_configured",
            "session_id": "67e55044-10b1-426f-9247-bb680e5fe0c8",
            "model": "gpt-5",
            "history_log_id": 7,
            "history_entry_count": 3,
        },
    ),
    (task_started(), {"type": "task_started"}),
    (task_complete("Done"), {"type": "task_complete", "last_agent_message": "Done"}),
    (task_complete(), {"type": "task_complete", "last_agent_message": None}),
    (
        UserMessage(message_id=A_MESSAGE, content=(text("hi"),)),
        {"type": "user_message", "message_id": A_MESSAGE, "content": [{"type": "text", "text": "hi"}]},
    ),
    (
        UserMessage(message_id=A_MESSAGE, parent_message_id=ANOTHER_MESSAGE, content=()),
        {
            "type": "user_message",
            "message_id": A_MESSAGE,
            "parent_message_id": ANOTHER_MESSAGE,
            "content": [],
        },
    ),
    (error(" Turn interrupted"), {"type": "error", "message": " Turn interrupted"}),
    (background_event("retrying 1/2…"), {"type": "background_event", "message": "retrying 1/2…"}),
    (
        token_count(input_tokens=10, cached=2, output_tokens=5, reasoning=1),
        {
            "type": "token_count",
            "input_tokens": 10,
            "cached_input_tokens": 2,
            "output_tokens": 5,
            "reasoning_output_tokens": 1,
            "total_tokens": 15,
        },
    ),
    (
        token_count(input_tokens=10, output_tokens=5),
        {
            "type": "token_count",
            "input_tokens": 10,
            "cached_input_tokens": None,
            "output_tokens": 5,
            "reasoning_output_tokens": None,
            "total_tokens": 15,
        },
    ),
    (agent_message("Done \U0001f600\x00\n"), {"type": "agent_message", "message": "Done \U0001f600\x00\n"}),
    (AgentMessageDelta(delta="Do"), {"type": "agent_message_delta", "delta": "Do"}),
    (agent_reasoning("Hm."), {"type": "agent_reasoning", "text": "Hm."}),
    (AgentReasoningDelta(delta="H"), {"type": "agent_reasoning_delta", "delta": "H"}),
    (agent_reasoning_raw_content("raw"), {"type": "agent_reasoning_raw_content", "text": "raw"}),
    (AgentReasoningRawContentDelta(delta="r"), {"type": "agent_reasoning_raw_content_delta", "delta": "r"}),
    (
        ExecCommandBegin(call_id=C1, command=("git", "init"), cwd="/project", parsed_cmd=()),
        {
            "type": "exec_command_begin",
            "call_id": "c1",
            "command": ["git", "init"],
            "cwd": "/project",
            "parsed_cmd": [],
        },
    ),
    (
        ExecCommandOutputDelta(call_id=C1, stream="stdout", chunk=(0, 10, 255)),
        {"type": "exec_command_output_delta", "call_id": "c1", "stream": "stdout", "chunk": [0, 10, 255]},
    ),
    (
        ExecCommandOutputDelta(call_id=C1, stream="stderr", chunk=()),
        {"type": "exec_command_output_delta", "call_id": "c1", "stream": "stderr", "chunk": []},
    ),
    (
        ExecCommandEnd(
            call_id=C1, stdout="out", stderr="err", exit_code=-1, duration=Duration(secs=1, nanos=999_999_999)
        ),
        {
            "type": "exec_command_end",
            "call_id": "c1",
            "stdout": "out",
            "stderr": "err",
            "exit_code": -1,
            "duration": {"secs": 1, "nanos": 999_999_999},
        },
    ),
    (
        ExecApprovalRequest(call_id=C1, command=("touch", "b"), cwd="/project"),
        {"type": "exec_approval_request", "call_id": "c1", "command": ["touch", "b"], "cwd": "/project"},
    ),
    (
        ExecApprovalRequest(call_id=C1, command=("touch", "b"), cwd="/project", reason="needs to write"),
        {
            "type": "exec_approval_request",
            "call_id": "c1",
            "command": ["touch", "b"],
            "cwd": "/project",
            "reason": "needs to write",
        },
    ),
    (
        ApplyPatchApprovalRequest(call_id=C1, changes={"/project/gone.txt": "delete"}),
        {"type": "apply_patch_approval_request", "call_id": "c1", "changes": {"/project/gone.txt": "delete"}},
    ),
    (
        ApplyPatchApprovalRequest(
            call_id=C1, changes={"/project/a": ADDITION}, reason="outside the project", grant_root="/project"
        ),
        {
            "type": "apply_patch_approval_request",
            "call_id": "c1",
            "changes": {"/project/a": {"add": {"content": "hello\n"}}},
            "reason": "outside the project",
            "grant_root": "/project",
        },
    ),
    (
        PatchApplyBegin(
            call_id=C1,
            auto_approved=True,
            changes={"/project/a": ADDITION, "/project/b": UPDATE, "/project/c": MOVE, "/project/d": "delete"},
        ),
        {
            "type": "patch_apply_begin",
            "call_id": "c1",
            "auto_approved": True,
            "changes": {
                "/project/a": {"add": {"content": "hello\n"}},
                "/project/b": {"update": {"unified_diff": "@@ -1 +1 @@\n-a\n+b\n", "move_path": None}},
                "/project/c": {"update": {"unified_diff": "", "move_path": "/project/new.txt"}},
                "/project/d": "delete",
            },
        },
    ),
    (
        PatchApplyEnd(call_id=C1, stdout="Success.", stderr="", success=True),
        {"type": "patch_apply_end", "call_id": "c1", "stdout": "Success.", "stderr": "", "success": True},
    ),
    (TurnDiff(unified_diff="diff --git a/a b/a"), {"type": "turn_diff", "unified_diff": "diff --git a/a b/a"}),
    (
        PlanUpdate(
            explanation="why",
            plan=(
                PlanStep(step="one", status="completed"),
                PlanStep(step="two", status="in_progress"),
                PlanStep(step="three", status="pending"),
            ),
        ),
        {
            "type": "plan_update",
            "explanation": "why",
            "plan": [
                {"step": "one", "status": "completed"},
                {"step": "two", "status": "in_progress"},
                {"step": "three", "status": "pending"},
            ],
        },
    ),
    (PlanUpdate(explanation=None, plan=()), {"type": "plan_update", "explanation": None, "plan": []}),
    (
        McpToolCallBegin(call_id=C1, invocation=INVOCATION),
        {
            "type": "mcp_tool_call_begin",
            "call_id": "c1",
            "invocation": {"server": "files", "tool": "read", "arguments": {"path": "a", "lines": [1, None]}},
        },
    ),
    (
        McpToolCallEnd(
            call_id=C1,
            invocation=Invocation(server="files", tool="read", arguments=None),
            duration=Duration(secs=0, nanos=5),
            result=ToolCallOutcome(ok={"content": [{"type": "text", "text": "3"}]}),
        ),
        {
            "type": "mcp_tool_call_end",
            "call_id": "c1",
            "invocation": {"server": "files", "tool": "read", "arguments": None},
            "duration": {"secs": 0, "nanos": 5},
            "result": {"Ok": {"content": [{"type": "text", "text": "3"}]}},
        },
    ),
    (
        McpToolCallEnd(
            call_id=C1,
            invocation=INVOCATION,
            duration=Duration(secs=0, nanos=0),
            result=ToolCallOutcome(err="tool call error"),
        ),
        {
            "type": "mcp_tool_call_end",
            "call_id": "c1",
            "invocation": {"server": "files", "tool": "read", "arguments": {"path": "a", "lines": [1, None]}},
            "duration": {"secs": 0, "nanos": 0},
            "result": {"Err": "tool call error"},
        },
    ),
    (
        ApprovalSettled(approval_id=AN_APPROVAL, call_id=C1, decision="approved_for_session", by="client"),
        {
            "type": "approval_settled",
            "approval_id": AN_APPROVAL,
            "call_id": "c1",
            "decision": "approved_for_session",
            "by": "client",
        },
    ),
    (
        ApprovalSettled(
            approval_id=AN_APPROVAL, call_id=C1, decision="timed_out", by="timeout", reason="nobody could be asked"
        ),
        {
            "type": "approval_settled",
            "approval_id": AN_APPROVAL,
            "call_id": "c1",
            "decision": "timed_out",
            "by": "timeout",
            "reason": "nobody could be asked",
        },
    ),
    (
        PatchRefused(call_id=CallId("c1"), message="empty patch"),
        {"type": "patch_refused", "call_id": "c1", "message": "empty patch"},
    ),
    (
        QueueChanged(messages=(MessageId("m1"),), paused=True),
        {"type": "queue_changed", "messages": ["m1"], "paused": True},
    ),
    (
        WebSearch(call_id="s1", query="cheese", results=(WebSearchResult(url="https://a.example", title="A"),)),
        {
            "type": "web_search",
            "call_id": "s1",
            "query": "cheese",
            "results": [{"url": "https://a.example", "title": "A"}],
            "error": None,
        },
    ),
    (
        RequestRetry(attempt=1, max_attempts=4, delay_ms=200, reason="503 Service Unavailable"),
        {
            "type": "request_retry",
            "attempt": 1,
            "max_attempts": 4,
            "delay_ms": 200,
            "reason": "503 Service Unavailable",
        },
    ),
    (
        WorkspaceUpdated(repository="app", branch="parley/1", commit="c0ffee", pushed=False, code="push_failed"),
        {
            "type": "workspace_updated",
            "repository": "app",
            "branch": "parley/1",
            "commit": "c0ffee",
            "pushed": False,
            "code": "push_failed",
        },
    ),
    (
        LimitReached(limit="turn_tokens", used=12, allowed=10),
        {"type": "limit_reached", "limit": "turn_tokens", "used": 12, "allowed": 10},
    ),
    (
        GetHistoryEntryResponse(offset=1, log_id=2),
        {"type": "get_history_entry_response", "offset": 1, "log_id": 2, "entry": None},
    ),
    (ShutdownComplete(), {"type": "shutdown_complete"}),
]

PARSED: list[dict[str, Any]] = [
    {"Read": {"cmd": ["cat", "a"], "name": "a"}},
    {"ListFiles": {"cmd": ["ls"], "path": None}},
    {"ListFiles": {"cmd": ["ls", "b"], "path": "b"}},
    {"Search": {"cmd": ["rg", "x", "src"], "query": "x", "path": "src"}},
    {"Search": {"cmd": ["rg", "--files"], "query": None, "path": None}},
    {"Format": {"cmd": ["black", "."], "tool": "black", "targets": ["."]}},
    {"Test": {"cmd": ["pytest"]}},
    {"Lint": {"cmd": ["ruff"], "tool": None, "targets": None}},
    {"Unknown": {"cmd": ["git", "init"]}},
]


@pytest.mark.parametrize(("event", "shape"), SHAPES, ids=[event_type(event) for event, _ in SHAPES])
def test_an_event_reads_as_the_protocol_says(event: EventMsg, shape: dict[str, Any]) -> None:
    assert as_json(event) == shape


@pytest.mark.parametrize(("event", "shape"), SHAPES, ids=[event_type(event) for event, _ in SHAPES])
def test_an_event_comes_back_from_its_json(event: EventMsg, shape: dict[str, Any]) -> None:
    assert decode_event(json.dumps(shape).encode()) == event


def test_every_event_type_is_shown_here() -> None:
    assert {event_type(event) for event, _ in SHAPES} == set(EVENT_TYPES)


def test_older_clients_get_no_event_that_is_an_addition() -> None:
    additions = {
        "user_message",
        "approval_settled",
        "limit_reached",
        "patch_refused",
        "queue_changed",
        "request_retry",
        "workspace_updated",
        "web_search",
    }
    assert additions == FOR_FULL_VERSION_ONLY


@pytest.mark.parametrize("shape", PARSED, ids=[next(iter(shape)) for shape in PARSED])
def test_a_parsed_command_is_an_object_with_one_key(shape: dict[str, Any]) -> None:
    parsed = msgspec.convert(shape, ParsedCommand)

    assert as_json(parsed) == shape


@pytest.mark.parametrize(
    "item",
    [
        {"type": "text", "text": "hi"},
        {"type": "image", "image_url": "data:image/png;base64,AA=="},
        {"type": "image", "image_url": "https://example.org/a.png", "detail": "high"},
        {"type": "image", "file_id": "file-1", "detail": "auto"},
        {"type": "local_image", "path": "/project/a.png"},
        {"type": "file", "file_url": "https://example.org/a.pdf"},
        {"type": "file", "file_id": "file-1"},
        {"type": "file", "file_data": "AA==", "filename": "a.pdf"},
    ],
    ids=str,
)
def test_a_message_is_shown_with_the_items_it_was_sent_with(item: dict[str, str]) -> None:
    shape = {"type": "user_message", "message_id": A_MESSAGE, "content": [item]}

    event = decode_event(json.dumps(shape).encode())

    assert as_json(event) == shape


def test_an_event_of_a_newer_server_is_kept_as_it_came() -> None:
    encoded = b'{ "type": "telepathy_began", "thoughts": [1, {"deep": null}] }'

    assert decode_event(encoded) == UnknownEvent(type="telepathy_began", encoded=encoded)


def test_an_unknown_field_of_a_known_event_is_passed_over() -> None:
    assert decode_event(b'{"mood":"good","type":"agent_message","message":"hi"}') == agent_message("hi")


def test_half_a_surrogate_pair_does_not_cost_the_event() -> None:
    assert decode_event(rb'{"type":"agent_message","message":"a\ud83d"}') == agent_message("a�")


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"type":5}',
        b'{"type":"agent_message"}',
        b'{"type":"agent_message","message":null}',
        b'{"type":"task_complete"}',
        b'{"type":"exec_command_output_delta","call_id":"c1","stream":"stdlog","chunk":[]}',
        b'{"type":"agent_message","message":"\xff"}',
    ],
    ids=repr,
)
def test_an_invalid_event_is_refused(encoded: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event(encoded)


def test_an_event_is_encoded_without_blanks_and_its_type_comes_first() -> None:
    assert encode(agent_message("a b")) == b'{"type":"agent_message","message":"a b"}'
