"""The names of arguments, in every spelling."""

from __future__ import annotations

import time
from typing import Any

import pytest

from parley.errors import BadArguments
from parley.server.tools import TOOLS
from parley.wire.argument_names import respelled
from parley.wire.arguments import decode_call_arguments
from parley.wire.jsonrpc import encode
from parley.wire.tools import CodexArguments, ConversationArguments, SendMessageArguments


def test_arguments_get_the_names_of_the_schema() -> None:
    given = {
        "prompt": "go",
        "approvalPolicy": "never",
        "sandbox_mode": "read-only",
        "includePlanTool": True,
        "x": 1,
    }

    assert respelled(CodexArguments, given) == {
        "prompt": "go",
        "approval-policy": "never",
        "sandbox": "read-only",
        "include-plan-tool": True,
    }


@pytest.mark.parametrize("tool", list(TOOLS), ids=lambda tool: tool.name)
def test_no_argument_of_a_tool_is_a_near_miss_of_another(tool: Any) -> None:
    names = list(tool.args.__struct_encode_fields__)

    assert list(respelled(tool.args, dict.fromkeys(names, 1))) == names


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"sandbox": None, "sandboxMode": "read-only"}, {"sandbox": "read-only"}),
        ({"sandboxMode": "read-only", "sandbox": None}, {"sandbox": "read-only"}),
        ({"sandboxMode": None, "sandbox": None}, {"sandbox": None}),
        ({"sandboxMode": "read-only", "sandbox": "read-only"}, {"sandbox": "read-only"}),
        ({"sandbox_permissions": None}, {}),
    ],
)
def test_null_says_the_same_as_leaving_it_out(given: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert respelled(SendMessageArguments, given) == arguments


@pytest.mark.parametrize("other", ["danger-full-access", 1, True, 1.0, [], {}])
def test_two_spellings_with_different_values_are_refused(other: Any) -> None:
    with pytest.raises(BadArguments, match="`sandbox` and `sandbox_mode` are one argument with different values"):
        respelled(SendMessageArguments, {"sandbox": "read-only", "sandbox_mode": other})
    with pytest.raises(BadArguments, match="different values"):
        respelled(SendMessageArguments, {"sandbox": 1, "sandbox_mode": other if other != 1 or other is True else 2})


CONVERSATION = "00000000-0000-4000-8000-000000000000"
TEXT = {"type": "text", "text": "go"}
GOOD: dict[str, Any] = {"conversation_id": CONVERSATION, "content": [TEXT]}


@pytest.mark.parametrize(
    "arguments",
    [
        GOOD,
        {"conversationId": CONVERSATION, "content": [TEXT], "sandboxMode": None, "sandbox": "read-only"},
        {**GOOD, "trace": [{}, {}], "delivery": None},
        {**GOOD, "config": {"notify": ["a", {"b": [1, 2.5, None]}]}},
        {**GOOD, "sandbox": "read-only", "sandbox_mode": "danger-full-access"},
        {**GOOD, "aproval_policy": "never"},
        {**GOOD, **{f"trace{number}": 1 for number in range(101)}},
        {**GOOD, "conversation_id": 5},
        {**GOOD, "conversation_id": None},
        {**GOOD, "conversation_id": "x"},
        {**GOOD, "sandbox": "none"},
        {**GOOD, "model": ["m"]},
        {**GOOD, "config": []},
        {"content": [TEXT]},
        {},
        {**GOOD, "content": {}},
        {**GOOD, "content": [TEXT, 5]},
        {**GOOD, "content": [TEXT, {}]},
        {**GOOD, "content": [TEXT, {"type": "audio"}]},
        {**GOOD, "content": [TEXT, {"type": "text"}]},
        {**GOOD, "content": [TEXT, {"type": "image", "detail": "best"}]},
        {**GOOD, "content": [{"type": "text", "text": None}]},
        [],
        "text",
        1.5,
        None,
    ],
)
def test_large_arguments_are_decoded_as_small_ones_are(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = outcome_of(encode(arguments))
    monkeypatch.setattr("parley.wire.arguments.LARGE_BYTES", 0)

    assert outcome_of(encode(arguments)) == small


def outcome_of(encoded: bytes) -> Any:
    """Return the decoded arguments, or the error and its field."""
    try:
        return decode_call_arguments(SendMessageArguments, encoded)
    except BadArguments as error:
        return error.detail, error.field


def test_two_spellings_in_large_arguments_are_compared_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.wire.arguments.LARGE_BYTES", 0)
    begin = b'{"conversation_id":"%b","content":[],' % CONVERSATION.encode()

    decoded = decode_call_arguments(
        SendMessageArguments, begin + rb'"sandbox":"read-only","sandbox_mode":"rea\u0064-only"}'
    )

    assert decoded.sandbox == "read-only"


LARGE = "x" * 1_100_000


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ({**GOOD, "sandbox": LARGE}, f"unknown variant `{LARGE[:79]}…`, expected one of `read-only`"),
        ({**GOOD, "conversation_id": LARGE}, f'invalid value: string "{LARGE[:100]}…", expected a uuid'),
        ({**GOOD, "model": [LARGE]}, "invalid type: sequence, expected a string (model)"),
        ({**GOOD, "model": {LARGE: 1}}, "invalid type: map, expected a string (model)"),
        ({**GOOD, LARGE: 1}, f"unknown argument `{LARGE[:79]}…`: the name has more than 1000 characters"),
        ({**GOOD, "content": [{"type": "text", "text": LARGE}, {}]}, "missing field `type` (content[1])"),
        (
            {**GOOD, "content": [{"type": "text", "text": LARGE}, 5]},
            "invalid type: expected `object`, got `int` (content[1])",
        ),
        (
            {**GOOD, "content": [{"type": "text", "text": LARGE}, {"type": "audio"}]},
            "unknown variant 'audio' (content[1].type)",
        ),
        ({**GOOD, "trace": LARGE, "config": {"notify": [""] * 10_001}}, "more than 10000 values (config)"),
        (
            {**GOOD, "trace": LARGE, "config": {str(number): 1 for number in range(10_001)}},
            "more than 10000 values (config)",
        ),
    ],
)
def test_a_refusal_of_large_arguments_names_the_argument(arguments: Any, detail: str) -> None:
    refused, _ = outcome_of(encode(arguments))

    assert refused.startswith(detail)


def test_commas_in_a_long_text_of_config_are_not_counted() -> None:
    config = {"base_instructions": "one, two, [three]" * 100_000}

    assert outcome_of(encode({**GOOD, "config": config})).config == config


def test_very_many_unknown_arguments_are_refused_at_once() -> None:
    begin = time.process_time()
    with pytest.raises(BadArguments, match="more than 100 unknown arguments"):
        decode_call_arguments(
            ConversationArguments, encode({f"conversatiom{number:03}": 1 for number in range(200_000)})
        )

    assert time.process_time() - begin < 2
