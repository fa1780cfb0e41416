"""Approval requests for older and newer clients, and every form of an answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from kit.builders.json import as_json, from_json
from parley.wire.elicitation import (
    FULL_SCHEMA,
    PLAIN_SCHEMA,
    AnswerContent,
    ApprovalFields,
    ElicitationAnswer,
    ElicitationParams,
    read_answer,
)
from parley.wire.events import AddedFile, Decision, OtherChange
from parley.wire.ids import ApprovalId, CallId, EventId
from parley.wire.jsonrpc import Message, decode_message, encode

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
    approval = ElicitationParams(
        message="Allow Codex to run `git init --quiet 'repo dir'` in `/path`?",
        requested_schema=Raw(encode(PLAIN_SCHEMA)),
        **fields_of_a_command(),
    )

    assert as_json(approval) == {
        "message": "Allow Codex to run `git init --quiet 'repo dir'` in `/path`?",
        "requestedSchema": {"type": "object", "properties": {}},
        **EXEC_FIELDS,
    }


def test_an_older_client_is_asked_about_a_patch_in_the_plain_shape() -> None:
    approval = ElicitationParams(
        message="Allow Codex to apply proposed code changes?",
        requested_schema=Raw(encode(PLAIN_SCHEMA)),
        **fields_of_a_patch(),
    )

    assert as_json(approval) == {
        "message": "Allow Codex to apply proposed code changes?",
        "requestedSchema": {"type": "object", "properties": {}},
        **PATCH_FIELDS,
    }


def test_reason_and_grant_root_of_a_patch_are_there_when_they_are_set() -> None:
    approval = ElicitationParams(
        message="outside\nAllow Codex to apply proposed code changes?",
        requested_schema=Raw(encode(PLAIN_SCHEMA)),
        codex_reason="outside",
        codex_grant_root="/path",
        **fields_of_a_patch(),
    )

    assert as_json(approval) == {
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
    approval = ElicitationParams(
        meta=ApprovalFields(parley_approval_id=AN_APPROVAL, **fields),
        message="Allow?",
        requested_schema=Raw(encode(FULL_SCHEMA)),
        parley_approval_id=AN_APPROVAL,
        **fields,
    )

    assert as_json(approval) == {
        "_meta": {"parley_approval_id": AN_APPROVAL, **shape},
        "message": "Allow?",
        "requestedSchema": FULL_FORM,
        "parley_approval_id": AN_APPROVAL,
        **shape,
    }


def test_an_approval_about_a_limit_has_neither_command_nor_changes() -> None:
    approval = ElicitationParams(
        message="turn_tokens reached (12 of 10). Go on?",
        requested_schema=Raw(encode(FULL_SCHEMA)),
        codex_elicitation="limit",
        codex_mcp_tool_call_id="1",
        codex_event_id=EventId("2"),
        codex_call_id=CallId("call1"),
    )

    assert as_json(approval) == {
        "message": "turn_tokens reached (12 of 10). Go on?",
        "requestedSchema": FULL_FORM,
        "codex_elicitation": "limit",
        "codex_mcp_tool_call_id": "1",
        "codex_event_id": "2",
        "codex_call_id": "call1",
    }


def test_an_approval_is_put_by_elicitation_create() -> None:
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
def test_our_client_can_say_all_of_this(answer: dict[str, Any], read: ElicitationAnswer) -> None:
    assert from_json(ElicitationAnswer, answer) == read


@pytest.mark.parametrize(
    "answer", [{"decision": "maybe"}, {"decision": 5}, {"action": "shrug"}, "approved", [], None, 1], ids=str
)
def test_our_client_cannot_say_this(answer: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(ElicitationAnswer, answer)


@pytest.mark.parametrize("content", [None, {"decision": 5}, {"decision": None}, {"reason": None}], ids=str)
def test_accepting_counts_whatever_else_the_form_was_filled_with(content: Any) -> None:
    answer = from_json(ElicitationAnswer, {"action": "accept", "content": content})

    assert answer.action == "accept"


def test_an_approval_with_an_empty_reason_is_an_approval() -> None:
    answer = from_json(ElicitationAnswer, {"decision": "approved", "reason": None})

    assert (answer.decision, answer.action) == ("approved", UNSET)


# --- decisions -----------------------------------------------------------------------------------

DECISIONS: list[Decision] = ["approved", "approved_for_session", "denied", "abort"]


def decided(**answer: Any) -> tuple[Decision, str | None]:
    return read_answer(decode_message(encode({"jsonrpc": "2.0", "id": 0, **answer})))


@pytest.mark.parametrize("decision", DECISIONS)
def test_each_of_the_four_words_decides_in_either_form(decision: Decision) -> None:
    assert decided(result={"decision": decision}) == (decision, None)
    assert decided(result={"decision": decision, "action": "accept"}) == (decision, None)
    assert decided(result={"decision": decision, "action": "cancel"}) == (decision, None)
    assert decided(result={"action": "accept", "content": {"decision": decision}}) == (decision, None)


@pytest.mark.parametrize(
    ("result", "decision"),
    [
        ({"action": "accept"}, "approved"),
        ({"action": "accept", "content": None}, "approved"),
        ({"action": "accept", "content": {}}, "approved"),
        ({"action": "accept", "content": []}, "approved"),
        ({"action": "accept", "content": {"decision": "maybe"}}, "approved"),
        ({"action": "accept", "content": {"decision": 5}}, "approved"),
        ({"action": "accept", "decision": None}, "approved"),
        ({"action": "decline"}, "denied"),
        ({"action": "decline", "content": {"decision": "approved"}}, "denied"),
        ({"action": "cancel"}, "abort"),
        ({"action": "cancel", "content": {"decision": "approved"}}, "abort"),
    ],
    ids=str,
)
def test_an_action_decides_where_there_is_no_decision(result: Any, decision: Decision) -> None:
    assert decided(result=result) == (decision, None)


@pytest.mark.parametrize(
    "result",
    [
        {},
        None,
        [],
        ["approved"],
        "approved",
        True,
        1,
        {"decision": "maybe"},
        {"decision": "Approved"},
        {"decision": ["approved"]},
        {"decision": {"approved": True}},
        {"decision": True},
        {"decision": "", "action": "accept"},
        {"decision": "maybe", "action": "accept"},
        {"action": "shrug"},
        {"action": ["accept"]},
        {"content": {"decision": "approved"}},
    ],
    ids=str,
)
def test_an_answer_that_is_not_clearly_an_approval_denies(result: Any) -> None:
    assert decided(result=result) == ("denied", None)


def test_an_error_and_an_answer_without_a_result_are_a_no() -> None:
    assert decided(error={"code": -32601, "message": "no such method"}) == ("denied", None)
    assert decided(error={}, result={"decision": "approved"}) == ("denied", None)
    assert decided() == ("denied", None)
    assert decided(error=None, result={"decision": "approved"}) == ("approved", None)


def test_an_answer_that_is_nested_beyond_reason_is_a_no() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    message = Message(id=0, result=Raw(b'{"decision":"approved","more":%b}' % deep))

    assert read_answer(message) == ("denied", None)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"reason": "because"}, "because"),
        ({"content": {"reason": "because"}}, "because"),
        ({"reason": "because", "content": {"reason": "otherwise"}}, "because"),
        ({"reason": None, "content": {"reason": "because"}}, "because"),
        ({"reason": ["because"], "content": {"reason": 5}}, None),
        ({"reason": "", "content": {"reason": "because"}}, ""),
    ],
    ids=str,
)
def test_any_answer_may_give_a_reason_in_words(more: Any, reason: str | None) -> None:
    for decision in DECISIONS:
        assert decided(result={"decision": decision, **more}) == (decision, reason)
    assert decided(result={"action": "decline", **more}) == ("denied", reason)
    assert decided(result={"decision": "maybe", **more}) == ("denied", reason)
