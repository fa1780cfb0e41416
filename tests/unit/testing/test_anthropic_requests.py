"""Requests that the scripted model refuses as Anthropic's service does."""

from __future__ import annotations

from typing import Any

import pytest

from parley.testing.anthropic_requests import refused_by_anthropic
from parley.testing.dialects import signature_of


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


TEXT = {"type": "text", "text": "Hi"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": signature_of("Hm.")}
CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([user(TEXT), assistant(THOUGHT, TEXT, CALL), user(RESULT, TEXT)], None),
        ([], "required"),
        ([assistant(TEXT)], "alternate"),
        ([user(TEXT), user(TEXT)], "alternate"),
        ([user({"type": "text", "text": " "})], "non-whitespace"),
        ([user(TEXT), assistant({**THOUGHT, "thinking": "Other."}, TEXT)], "signature"),
        ([user(TEXT), assistant(THOUGHT)], "final block"),
        ([user(TEXT), assistant({**CALL, "input": "{}"}), user(RESULT)], "object"),
        ([user(TEXT), assistant(CALL)], "tool_result"),
        ([user(TEXT), assistant(CALL), user(TEXT, RESULT)], "tool_result"),
    ],
)
def test_a_history_that_breaks_the_rules_is_refused(messages: list[Any], why: str | None) -> None:
    refusal = refused_by_anthropic({"messages": messages, "max_tokens": 1})

    assert (refusal is None) == (why is None)
    assert refusal is None or (refusal.status == 400 and str(why) in refusal.body)
