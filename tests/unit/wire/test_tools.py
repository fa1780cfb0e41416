"""Arguments as clients send them, and results as clients read them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw, Struct

from kit.builders.json import as_json, from_json
from parley.wire.ids import ApprovalId, CallId, ConversationId, ItemId, MessageId, Seq
from parley.wire.items import FileItem, ImageItem, LocalImageItem, TextItem, text_of
from parley.wire.tools import (
    CodexArguments,
    CodexReplyArguments,
    CodexResult,
    ConversationArguments,
    ConversationCreateArguments,
    ConversationCreated,
    ConversationReadArguments,
    ConversationReadResult,
    ConversationsListArguments,
    ConversationsListResult,
    ConversationStatusResult,
    ConversationStreamArguments,
    ConversationSummary,
    CreateFailed,
    Failed,
    ListedApproval,
    MessageAccepted,
    OpenText,
    Owner,
    PlainCodexReplyArguments,
    PlainOk,
    PositionedEvent,
    SendMessageArguments,
    StreamStarted,
    Tokens,
)

U1 = "67e55044-10b1-426f-9247-bb680e5fe0c8"
U2 = "00000000-0000-4000-8000-000000000002"
U3 = "00000000-0000-4000-8000-000000000003"
HERE = ConversationId(U1)

ARGUMENTS: list[tuple[dict[str, Any], Struct]] = [
    ({"prompt": "hi"}, CodexArguments(prompt="hi")),
    (
        {
            "prompt": "",
            "model": "gpt-5",
            "profile": "fast",
            "cwd": "sub",
            "base-instructions": "Be brief.",
            "developer-instructions": "Ask first.",
            "compact-prompt": "Sum up.",
            "approval-policy": "on-request",
            "sandbox": "danger-full-access",
            "config": {"model_providers.x.base_url": "http://localhost", "nested": {"a": [1]}},
            "include-plan-tool": True,
        },
        CodexArguments(
            prompt="",
            model="gpt-5",
            profile="fast",
            cwd="sub",
            base_instructions="Be brief.",
            developer_instructions="Ask first.",
            compact_prompt="Sum up.",
            approval_policy="on-request",
            sandbox="danger-full-access",
            config={"model_providers.x.base_url": "http://localhost", "nested": {"a": [1]}},
            include_plan_tool=True,
        ),
    ),
    (
        {"threadId": "not looked at yet", "prompt": "go on"},
        CodexReplyArguments(thread_id="not looked at yet", prompt="go on"),
    ),
    (
        {"sessionId": "not looked at yet", "prompt": "go on"},
        PlainCodexReplyArguments(thread_id="not looked at yet", prompt="go on"),
    ),
    (
        {"prompt": "", "model": "gpt-5", "cwd": "/project"},
        ConversationCreateArguments(prompt="", model="gpt-5", cwd="/project"),
    ),
    (
        {
            "prompt": "",
            "model": "gpt-5",
            "cwd": "/project",
            "approval_policy": "untrusted",
            "sandbox": "read-only",
            "config": {},
            "profile": "fast",
            "base_instructions": "Be brief.",
        },
        ConversationCreateArguments(
            prompt="",
            model="gpt-5",
            cwd="/project",
            approval_policy="untrusted",
            sandbox="read-only",
            config={},
            profile="fast",
            base_instructions="Be brief.",
        ),
    ),
    (
        {"conversation_id": U1, "content": [{"type": "text", "text": "hi"}]},
        SendMessageArguments(conversation_id=UUID(U1), content=(TextItem(text="hi"),)),
    ),
    (
        {
            "conversation_id": U1.upper(),
            "content": [],
            "message_id": U2,
            "parent_message_id": U3,
            "model": "gpt-5",
            "cwd": "/project",
            "approval_policy": "never",
            "sandbox": "workspace-write",
            "config": {"a": None},
            "profile": "fast",
            "base_instructions": "Be brief.",
        },
        SendMessageArguments(
            conversation_id=UUID(U1),
            content=(),
            message_id=UUID(U2),
            parent_message_id=UUID(U3),
            model="gpt-5",
            cwd="/project",
            approval_policy="never",
            sandbox="workspace-write",
            config={"a": None},
            profile="fast",
            base_instructions="Be brief.",
        ),
    ),
    ({"conversation_id": U1}, ConversationStreamArguments(conversation_id=UUID(U1))),
    (
        {"conversation_id": U1, "after": 0, "event_meta": True},
        ConversationStreamArguments(conversation_id=UUID(U1), after=0, event_meta=True),
    ),
    ({}, ConversationsListArguments()),
    (
        {"limit": 1, "cursor": "x", "cwd": "/project", "text": "fox", "state": "asking", "archived": True},
        ConversationsListArguments(limit=1, cursor="x", cwd="/project", text="fox", state="asking", archived=True),
    ),
    ({"conversation_id": U1}, ConversationArguments(conversation_id=UUID(U1))),
    ({"conversation_id": U1}, ConversationReadArguments(conversation_id=UUID(U1))),
    (
        {"conversation_id": U1, "after": 7, "limit": 10_000, "wait_seconds": 0.5},
        ConversationReadArguments(conversation_id=UUID(U1), after=7, limit=10_000, wait_seconds=0.5),
    ),
]
ARGUMENT_IDS = [type(struct).__name__ for _, struct in ARGUMENTS]


@pytest.mark.parametrize(("sent", "read"), ARGUMENTS, ids=ARGUMENT_IDS)
def test_arguments_are_read_under_the_names_of_the_protocol(sent: dict[str, Any], read: Struct) -> None:
    assert from_json(type(read), sent) == read


@pytest.mark.parametrize(("sent", "read"), ARGUMENTS, ids=ARGUMENT_IDS)
def test_an_optional_argument_may_be_null_and_an_unknown_one_is_passed_over(
    sent: dict[str, Any], read: Struct
) -> None:
    optional = [field.encode_name for field in msgspec.structs.fields(read) if not field.required]
    nulls = {name: None for name in optional if name not in sent}

    assert from_json(type(read), {**sent, **nulls, "unheard-of": {"a": 1}}) == read


@pytest.mark.parametrize(("sent", "read"), ARGUMENTS, ids=ARGUMENT_IDS)
def test_a_missing_required_argument_is_named(sent: dict[str, Any], read: Struct) -> None:
    for field in msgspec.structs.fields(read):
        if field.required:
            with pytest.raises(msgspec.ValidationError, match=f"`{field.encode_name}`"):
                from_json(type(read), {name: value for name, value in sent.items() if name != field.encode_name})


MISFITS: list[tuple[type[Struct], dict[str, Any], str]] = [
    (CodexArguments, {"prompt": 5}, "prompt"),
    (CodexArguments, {"prompt": None}, "prompt"),
    (CodexArguments, {"prompt": "", "approval-policy": "always"}, "approval-policy"),
    (CodexArguments, {"prompt": "", "sandbox": "none"}, "sandbox"),
    (CodexArguments, {"prompt": "", "config": []}, "config"),
    (CodexArguments, {"prompt": "", "include-plan-tool": "yes"}, "include-plan-tool"),
    (SendMessageArguments, {"conversation_id": "x", "content": []}, "conversation_id"),
    (SendMessageArguments, {"conversation_id": U1, "content": "hi"}, "content"),
    (SendMessageArguments, {"conversation_id": U1, "content": [{"type": "song"}]}, "content"),
    (SendMessageArguments, {"conversation_id": U1, "content": [{"type": "text"}]}, "content"),
    (SendMessageArguments, {"conversation_id": U1, "content": [], "message_id": "x"}, "message_id"),
    (ConversationStreamArguments, {"conversation_id": U1, "after": -1}, "after"),
    (ConversationStreamArguments, {"conversation_id": U1, "event_meta": 1}, "event_meta"),
    (ConversationsListArguments, {"limit": 0}, "limit"),
    (ConversationsListArguments, {"state": "busy"}, "state"),
    (ConversationReadArguments, {"conversation_id": U1, "limit": 10_001}, "limit"),
    (ConversationReadArguments, {"conversation_id": U1, "wait_seconds": 50.1}, "wait_seconds"),
]


@pytest.mark.parametrize(
    ("kind", "sent", "field"), MISFITS, ids=[f"{kind.__name__}.{field}" for kind, _, field in MISFITS]
)
def test_an_argument_that_does_not_fit_is_named(kind: type[Struct], sent: dict[str, Any], field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        from_json(kind, sent)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"type": "text", "text": "hi"}, TextItem(text="hi")),
        ({"type": "image", "image_url": "data:,x"}, ImageItem(image_url="data:,x")),
        ({"type": "image", "file_id": "f", "detail": "low"}, ImageItem(file_id="f", detail="low")),
        (
            {"type": "image", "image_url": "data:,x", "file_id": None, "detail": None},
            ImageItem(image_url="data:,x", file_id=None, detail=None),
        ),
        ({"type": "local_image", "path": "/project/a.png"}, LocalImageItem(path="/project/a.png")),
        ({"type": "file", "file_url": "https://example.org/a"}, FileItem(file_url="https://example.org/a")),
        ({"type": "file", "file_id": "f"}, FileItem(file_id="f")),
        ({"type": "file", "file_data": "AA==", "filename": "a"}, FileItem(file_data="AA==", filename="a")),
    ],
    ids=str,
)
def test_a_message_is_made_of_items(sent: dict[str, Any], read: Struct) -> None:
    arguments = from_json(SendMessageArguments, {"conversation_id": U1, "content": [sent]})

    assert arguments.content == (read,)


def test_the_words_of_a_message_are_its_texts_joined() -> None:
    assert text_of((TextItem(text="a "), ImageItem(file_id="f"), TextItem(text="b"))) == "a b"


STATUS = ConversationStatusResult(
    state="idle",
    seq=Seq(9),
    title="Hunt the fox",
    cwd="/project",
    model="gpt-5",
    updated_at="2025-08-08T12:00:00Z",
    approvals=(),
    tokens=None,
    owner=None,
)

RESULTS: list[tuple[Struct, dict[str, Any]]] = [
    (
        CodexResult(thread_id=HERE, session_id=HERE, content="Done", message="Done"),
        {"threadId": U1, "sessionId": U1, "content": "Done", "message": "Done"},
    ),
    (ConversationCreated(conversation_id=HERE, model="gpt-5"), {"conversation_id": U1, "model": "gpt-5"}),
    (CreateFailed(message="Failed to load config: x"), {"message": "Failed to load config: x"}),
    (MessageAccepted(), {"status": "ok"}),
    (MessageAccepted(message_id=MessageId(U2)), {"status": "ok", "message_id": U2}),
    (Failed(message="No content items provided"), {"status": "error", "message": "No content items provided"}),
    (StreamStarted(), {}),
    (ConversationsListResult(conversations=()), {"conversations": []}),
    (
        ConversationsListResult(
            conversations=(
                ConversationSummary(conversation_id=HERE, title=""),
                ConversationSummary(
                    conversation_id=HERE,
                    title="Hunt",
                    updated_at="2025-08-08T12:00:00Z",
                    cwd="/project",
                    state="idle",
                ),
            ),
            next_cursor="c",
        ),
        {
            "conversations": [
                {"conversation_id": U1, "title": ""},
                {
                    "conversation_id": U1,
                    "title": "Hunt",
                    "updated_at": "2025-08-08T12:00:00Z",
                    "cwd": "/project",
                    "state": "idle",
                },
            ],
            "next_cursor": "c",
        },
    ),
    (
        ConversationReadResult(
            events=(PositionedEvent(seq=Seq(3), msg=Raw(b'{"type":"task_started"}')),),
            open=(OpenText(item=ItemId("i7"), type="agent_message_delta", text="He"),),
            seq=Seq(5),
            state="running",
        ),
        {
            "events": [{"seq": 3, "msg": {"type": "task_started"}}],
            "open": [{"item": "i7", "type": "agent_message_delta", "text": "He"}],
            "seq": 5,
            "state": "running",
        },
    ),
    (PlainOk(), {"status": "ok"}),
    (
        STATUS,
        {
            "state": "idle",
            "seq": 9,
            "title": "Hunt the fox",
            "cwd": "/project",
            "model": "gpt-5",
            "updated_at": "2025-08-08T12:00:00Z",
            "questions": [],
            "tokens": None,
            "owner": None,
        },
    ),
    (
        msgspec.structs.replace(
            STATUS,
            state="asking",
            approvals=(
                ListedApproval(
                    approval_id=ApprovalId(U3),
                    conversation_id=HERE,
                    call_id=CallId("c1"),
                    kind="exec",
                    message="Allow?",
                    asked_at="2025-08-08T12:00:00Z",
                    command=("git", "init"),
                    cwd="/project",
                ),
                ListedApproval(
                    approval_id=ApprovalId(U3),
                    conversation_id=HERE,
                    call_id=CallId("c2"),
                    kind="patch",
                    message="Allow?",
                    asked_at="2025-08-08T12:00:01Z",
                    changes={"/project/a": "delete"},
                ),
            ),
            tokens=Tokens(
                input_tokens=1, cached_input_tokens=2, output_tokens=3, reasoning_output_tokens=4, total_tokens=5
            ),
            owner=Owner(pid=7, since="2025-08-08T11:00:00Z"),
        ),
        {
            "state": "asking",
            "seq": 9,
            "title": "Hunt the fox",
            "cwd": "/project",
            "model": "gpt-5",
            "updated_at": "2025-08-08T12:00:00Z",
            "questions": [
                {
                    "approval_id": U3,
                    "conversation_id": U1,
                    "call_id": "c1",
                    "kind": "exec",
                    "message": "Allow?",
                    "asked_at": "2025-08-08T12:00:00Z",
                    "command": ["git", "init"],
                    "cwd": "/project",
                },
                {
                    "approval_id": U3,
                    "conversation_id": U1,
                    "call_id": "c2",
                    "kind": "patch",
                    "message": "Allow?",
                    "asked_at": "2025-08-08T12:00:01Z",
                    "changes": {"/project/a": "delete"},
                },
            ],
            "tokens": {
                "input_tokens": 1,
                "cached_input_tokens": 2,
                "output_tokens": 3,
                "reasoning_output_tokens": 4,
                "total_tokens": 5,
            },
            "owner": {"pid": 7, "since": "2025-08-08T11:00:00Z"},
        },
    ),
]


@pytest.mark.parametrize(("result", "shape"), RESULTS, ids=[type(result).__name__ for result, _ in RESULTS])
def test_a_result_reads_as_the_protocol_says(result: Struct, shape: dict[str, Any]) -> None:
    assert as_json(result) == shape
