"""Questions as clients old and new are asked them, and every form an answer may take."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from kit.json import as_json, from_json
from parley.wire.elicitation import (
    FULL_SCHEMA,
    PLAIN_SCHEMA,
    AnswerContent,
    ElicitationAnswer,
    ElicitationParams,
    QuestionFields,
)
from parley.wire.events import AddedFile, OtherChange
from parley.wire.ids import ApprovalId, CallId, EventId
from parley.wire.jsonrpc import encode

AN_APPROVAL = ApprovalId("00000000-0000-4000-8000-000000000003")

EXEC_FIELDS: dict[str, Any] = {
    "codex_elicitation": "exec-approval",
    "codex_mcp_tool_call_id": "1",
    "codex_event_id": "2",
    "codex_call_id": "call1",
    "codex_command": ["git", "init", "--quiet", "repo dir"],
    "codex_cwd": "/path",
}
PATCH_FIELDS: dict[str, Any] = {
    "codex_elicitation": "patch-approval",
    "codex_mcp_tool_call_id": "1",
    "codex_event_id": "2",
    "codex_call_id": "call1",
    "codex_changes": {"/path/a": {"add": {"content": "a\n"}}, "/path/gone": "delete"},
}
FULL_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "oneOf": [
                {"const": "approved", "title": "Yes, once"},
                {"const": "approved_for_session", "title": "Yes, for this session"},
                {"const": "denied", "title": "No"},
                {"const": "abort", "title": "No, and stop"},
            ],
        },
        "reason": {"type": "string", "title": "Reason, told to the agent"},
    },
}


def fields_of_a_command() -> dict[str, Any]:
    return {
        "codex_elicitation": "exec-approval",
        "codex_mcp_tool_call_id": "1",
        "codex_event_id": EventId("2"),
        "codex_call_id": CallId("call1"),
        "codex_command": ("git", "init", "--quiet", "repo dir"),
        "codex_cwd": "/path",
    }


def fields_of_a_patch() -> dict[str, Any]:
    return {
        "codex_elicitation": "patch-approval",
        "codex_mcp_tool_call_id": "1",
        "codex_event_id": EventId("2"),
        "codex_call_id": CallId("call1"),
        "codex_changes": {"/path/a": OtherChange(add=AddedFile(content="a\n")), "/path/gone": "delete"},
    }


def test_an_older_client_is_asked_about_a_command_in_the_plain_shape() -> None:
    question = ElicitationParams(
        message="Allow Codex to run `git init --quiet 'repo dir'` in `/path`?",
        requested_schema=Raw(encode(PLAIN_SCHEMA)),
        **fields_of_a_command(),
    )

    assert as_json(question) == {
        "message": "Allow Codex to run `git init --quiet 'repo dir'` in `/path`?",
        "requestedSchema": {"type": "object", "properties": {}},
        **EXEC_FIELDS,
    }


def test_an_older_client_is_asked_about_a_patch_in_the_plain_shape() -> None:
    question = ElicitationParams(
        message="Allow Codex to apply proposed code changes?",
        requested_schema=Raw(encode(PLAIN_SCHEMA)),
        **fields_of_a_patch(),
    )

    assert as_json(question) == {
        "message": "Allow Codex to apply proposed code changes?",
        "requestedSchema": {"type": "object", "properties": {}},
        **PATCH_FIELDS,
    }


def test_reason_and_grant_root_of_a_patch_are_there_when_they_are_set() -> None:
    question = ElicitationParams(
        message="outside\nAllow Codex to apply proposed code changes?",
        requested_schema=Raw(encode(PLAIN_SCHEMA)),
        codex_reason="outside",
        codex_grant_root="/path",
        **fields_of_a_patch(),
    )

    assert as_json(question) == {
        "message": "outside\nAllow Codex to apply proposed code changes?",
        "requestedSchema": {"type": "object", "properties": {}},
        "codex_reason": "outside",
        "codex_grant_root": "/path",
        **PATCH_FIELDS,
    }


@pytest.mark.parametrize(
    ("fields", "shape"),
    [(fields_of_a_command(), EXEC_FIELDS), (fields_of_a_patch(), PATCH_FIELDS)],
    ids=["command", "patch"],
)
def test_a_newer_client_gets_the_vendor_fields_in_meta_too_and_a_form_to_fill_in(
    fields: dict[str, Any], shape: dict[str, Any]
) -> None:
    question = ElicitationParams(
        meta=QuestionFields(parley_approval_id=AN_APPROVAL, **fields),
        message="Allow?",
        requested_schema=Raw(encode(FULL_SCHEMA)),
        parley_approval_id=AN_APPROVAL,
        **fields,
    )

    assert as_json(question) == {
        "_meta": {"parley_approval_id": AN_APPROVAL, **shape},
        "message": "Allow?",
        "requestedSchema": FULL_FORM,
        "parley_approval_id": AN_APPROVAL,
        **shape,
    }


def test_a_question_about_a_limit_has_neither_command_nor_changes() -> None:
    question = ElicitationParams(
        message="turn_tokens reached (12 of 10). Go on?",
        requested_schema=Raw(encode(FULL_SCHEMA)),
        codex_elicitation="limit",
        codex_mcp_tool_call_id="1",
        codex_event_id=EventId("2"),
        codex_call_id=CallId("call1"),
    )

    assert as_json(question) == {
        "message": "turn_tokens reached (12 of 10). Go on?",
        "requestedSchema": FULL_FORM,
        "codex_elicitation": "limit",
        "codex_mcp_tool_call_id": "1",
        "codex_event_id": "2",
        "codex_call_id": "call1",
    }


def test_a_question_is_put_by_elicitation_create() -> None:
    assert ElicitationParams.METHOD == "elicitation/create"


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ({"decision": "approved"}, ElicitationAnswer(decision="approved")),
        ({"decision": "approved_for_session"}, ElicitationAnswer(decision="approved_for_session")),
        ({"decision": "denied"}, ElicitationAnswer(decision="denied")),
        ({"decision": "abort"}, ElicitationAnswer(decision="abort")),
        ({"decision": "denied", "reason": "no"}, ElicitationAnswer(decision="denied", reason="no")),
        ({"action": "accept"}, ElicitationAnswer(action="accept")),
        ({"action": "accept", "content": {}}, ElicitationAnswer(action="accept", content=AnswerContent())),
        (
            {"action": "accept", "content": {"decision": "denied", "reason": "no"}},
            ElicitationAnswer(action="accept", content=AnswerContent(decision="denied", reason="no")),
        ),
        (
            {"action": "accept", "content": {"decision": "maybe"}},
            ElicitationAnswer(action="accept", content=AnswerContent(decision="maybe")),
        ),
        (
            {"action": "accept", "content": {"decision": "abort", "more": [1]}, "_meta": {}},
            ElicitationAnswer(action="accept", content=AnswerContent(decision="abort")),
        ),
        ({"action": "decline"}, ElicitationAnswer(action="decline")),
        ({"action": "cancel"}, ElicitationAnswer(action="cancel")),
        ({"decision": "denied", "action": "accept"}, ElicitationAnswer(decision="denied", action="accept")),
        ({}, ElicitationAnswer()),
    ],
    ids=str,
)
def test_an_answer_is_read_in_either_form(answer: dict[str, Any], read: ElicitationAnswer) -> None:
    assert from_json(ElicitationAnswer, answer) == read


@pytest.mark.parametrize(
    "answer", [{"decision": "maybe"}, {"decision": 5}, {"action": "shrug"}, "approved", [], None, 1], ids=str
)
def test_what_is_no_answer_is_refused(answer: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(ElicitationAnswer, answer)


@pytest.mark.parametrize("content", [None, {"decision": 5}, {"decision": None}, {"reason": None}], ids=str)
def test_accepting_counts_whatever_else_the_form_was_filled_with(content: Any) -> None:
    answer = from_json(ElicitationAnswer, {"action": "accept", "content": content})

    assert answer.action == "accept"


def test_an_approval_with_an_empty_reason_is_an_approval() -> None:
    answer = from_json(ElicitationAnswer, {"decision": "approved", "reason": None})

    assert (answer.decision, answer.action) == ("approved", UNSET)
