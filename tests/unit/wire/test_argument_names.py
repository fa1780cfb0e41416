"""Names of arguments, in every spelling."""

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


def test_very_many_unknown_arguments_are_refused_at_once() -> None:
    begin = time.process_time()
    with pytest.raises(BadArguments, match="more than 100 unknown arguments"):
        decode_call_arguments(
            ConversationArguments, encode({f"conversatiom{number:03}": 1 for number in range(200_000)})
        )

    assert time.process_time() - begin < 2
