"""The schemas of the six original tools, exactly as clients compare them.

Only the descriptions are Parley's own.
"""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types of its own
from msgspec import Struct
from msgspec.structs import fields

from parley.wire.events import EVENT_TYPES, PatchApplyBegin, UserMessage
from parley.wire.schema import schema_of
from parley.wire.tools import (
    CodexArguments,
    CodexReplyArguments,
    ConversationCreateArguments,
    ConversationsListArguments,
    ConversationStreamArguments,
    PlainCodexArguments,
    PlainCodexReplyArguments,
    PlainConversationCreateArguments,
    PlainSendMessageArguments,
    SendMessageArguments,
)

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
A_UUID: dict[str, Any] = {"type": "string", "format": "uuid"}
ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
POLICY: dict[str, Any] = {"type": "string", "enum": ["untrusted", "on-failure", "on-request", "never"]}
SANDBOX: dict[str, Any] = {"type": "string", "enum": ["read-only", "workspace-write", "danger-full-access"]}
DETAIL: dict[str, Any] = {"type": "string", "enum": ["low", "high", "auto"]}
PHASE: dict[str, Any] = {"type": "string", "enum": ["idle", "running", "asking"]}


def an_object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def an_item(tag: str, *required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return an_object(["type", *required], type={"type": "string", "enum": [tag]}, **properties)


ITEMS = [
    an_item("text", "text", text=STRING),
    an_item("image", image_url=STRING, file_id=STRING, detail=DETAIL),
    an_item("local_image", "path", path=STRING),
    an_item("file", file_url=STRING, file_id=STRING, file_data=STRING, filename=STRING),
]

CHOICES: dict[str, dict[str, Any]] = {
    "approval_policy": POLICY,
    "sandbox": SANDBOX,
    "config": ANY_OBJECT,
    "profile": STRING,
    "base_instructions": STRING,
}
"""The settings that a new conversation and a message may contain."""

SCHEMAS: list[tuple[type[Struct], dict[str, Any]]] = [
    (
        PlainCodexArguments,  # recorded from the original server, with the additions of its latest releases
        {
            "type": "object",
            "properties": {
                "approval-policy": POLICY,
                "base-instructions": STRING,
                "compact-prompt": STRING,
                "config": ANY_OBJECT,
                "cwd": STRING,
                "developer-instructions": STRING,
                "include-plan-tool": BOOLEAN,
                "model": STRING,
                "profile": STRING,
                "prompt": STRING,
                "sandbox": SANDBOX,
            },
            "required": ["prompt"],
        },
    ),
    (
        CodexArguments,
        an_object(
            ["prompt"],
            **{
                "approval-policy": POLICY,
                "base-instructions": STRING,
                "compact-prompt": STRING,
                "config": ANY_OBJECT,
                "cwd": STRING,
                "developer-instructions": STRING,
                "include-plan-tool": BOOLEAN,
                "model": STRING,
                "profile": STRING,
                "prompt": STRING,
                "repository": STRING,
                "sandbox": SANDBOX,
            },
        ),
    ),
    (
        CodexReplyArguments,
        an_object(["threadId", "prompt"], threadId=STRING, prompt=STRING),
    ),
    (
        PlainCodexReplyArguments,  # recorded from the original server
        an_object(["prompt", "sessionId"], prompt=STRING, sessionId=STRING),
    ),
    (
        PlainConversationCreateArguments,
        an_object(["prompt", "model", "cwd"], prompt=STRING, model=STRING, cwd=STRING, **CHOICES),
    ),
    (
        ConversationCreateArguments,
        an_object([], prompt=STRING, model=STRING, cwd=STRING, repository=STRING, **CHOICES),
    ),
    (
        PlainSendMessageArguments,
        an_object(
            ["conversation_id", "content"],
            conversation_id=A_UUID,
            content={"type": "array", "items": {"anyOf": ITEMS}},
            message_id=A_UUID,
            parent_message_id=A_UUID,
            model=STRING,
            cwd=STRING,
            **CHOICES,
        ),
    ),
    (
        SendMessageArguments,
        an_object(
            ["conversation_id", "content"],
            conversation_id=A_UUID,
            content={"type": "array", "items": {"anyOf": ITEMS}},
            message_id=A_UUID,
            parent_message_id=A_UUID,
            model=STRING,
            cwd=STRING,
            **CHOICES,
            delivery={"type": "string", "enum": ["join", "queue"]},
            output_schema=ANY_OBJECT,
        ),
    ),
    (
        ConversationStreamArguments,
        an_object(
            ["conversation_id"],
            conversation_id=A_UUID,
            after={**INTEGER, "minimum": 0},
            event_meta=BOOLEAN,
            last={**INTEGER, "minimum": 0, "maximum": 1000},
            exclusive=BOOLEAN,
            **{"as": {"type": "string", "enum": ["log"]}},
        ),
    ),
    (
        ConversationsListArguments,
        {
            "type": "object",
            "properties": {
                "limit": {**INTEGER, "minimum": 1, "maximum": 10_000},
                "cursor": STRING,
                "cwd": STRING,
                "text": STRING,
                "state": PHASE,
                "archived": BOOLEAN,
            },
        },
    ),
]


def comparable(schema: Any) -> Any:
    """Return a schema without descriptions, and with `required` as a set."""
    match schema:
        case {"properties": dict(properties)}:
            shown = {name: comparable(value) for name, value in properties.items()}
            return {"type": schema["type"], "properties": shown, "required": sorted(schema.get("required", []))}
        case dict():
            return {key: comparable(value) for key, value in schema.items() if key != "description"}
        case list():
            return [comparable(value) for value in schema]
        case _:
            return schema


@pytest.mark.parametrize(("arguments", "schema"), SCHEMAS, ids=[kind.__name__ for kind, _ in SCHEMAS])
def test_the_schema_of_a_tool_is_the_protocols(arguments: type[Struct], schema: dict[str, Any]) -> None:
    assert comparable(schema_of(arguments)) == comparable(schema)


@pytest.mark.parametrize("arguments", [kind for kind, _ in SCHEMAS], ids=lambda kind: str(kind.__name__))
def test_every_argument_is_described(arguments: type[Struct]) -> None:
    properties = schema_of(arguments)["properties"]

    assert [name for name, schema in properties.items() if not schema.get("description")] == []


def test_a_schema_without_required_arguments_does_not_mention_any() -> None:
    assert "required" not in schema_of(ConversationsListArguments)


def test_a_required_field_that_may_be_null_is_nullable_in_the_schema() -> None:
    class Holder(Struct):
        owner: str | None

    assert schema_of(Holder) == {
        "type": "object",
        "properties": {"owner": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["owner"],
    }


def test_a_kind_of_field_without_a_rule_is_noticed_at_once() -> None:
    class Holder(Struct):
        data: bytes

    with pytest.raises(TypeError, match="bytes"):
        schema_of(Holder)


# --- sent members ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_an_event_without_one_of_its_required_fields_does_not_fit_its_schema(kind: str) -> None:
    schema = schema_of(EVENT_TYPES[kind], nulls=True)
    needed = {field.encode_name for field in fields(EVENT_TYPES[kind]) if field.required}

    assert set(schema["required"]) == {"type", *needed}
    assert schema["properties"]["type"] == {"type": "string", "enum": [kind]}
    assert not Draft202012Validator(schema).is_valid({"type": kind} if needed else {})


def test_an_optional_field_may_be_null_only_in_what_is_sent() -> None:
    message = {"type": "user_message", "message_id": "m", "content": [{"type": "image", "image_url": None}]}

    assert Draft202012Validator(schema_of(UserMessage, nulls=True)).is_valid(message)
    assert not Draft202012Validator(schema_of(UserMessage)).is_valid(message)


def test_the_values_of_a_map_have_their_schema() -> None:
    begin = Draft202012Validator(schema_of(PatchApplyBegin, nulls=True))
    event = {"type": "patch_apply_begin", "call_id": "c", "auto_approved": True}

    assert begin.is_valid({**event, "changes": {"a": "delete", "b": {"add": {"content": ""}}}})
    assert not begin.is_valid({**event, "changes": {"a": "remove"}})
    assert not begin.is_valid({**event, "changes": {"b": {"add": {}}}})
