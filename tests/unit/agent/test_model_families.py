"""Models are recognised by the prefix of their names, in any case and with any provider prefix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kit.models.raw_provider import CONVERSATION, settings
from parley.agent.instructions import BASE_INSTRUCTIONS, PATCH_INSTRUCTIONS, instructions_for
from parley.agent.tokens import context_window
from parley.config.family import family
from parley.models.responses import encode_responses
from parley.ports.model import ModelRequest, ToolSpec


@pytest.mark.parametrize(
    ("model", "known_as"),
    [
        ("gpt-5", "gpt-5"),
        ("openai/gpt-5", "gpt-5"),
        ("gateway/openai/GPT-4.1-Mini", "gpt-4.1-mini"),
        ("", ""),
        ("mine/", ""),
    ],
)
def test_a_family_has_neither_maker_nor_capitals(model: str, known_as: str) -> None:
    assert family(model) == known_as


def sent_to(model: str) -> Any:
    shell = ToolSpec(name="shell", description="", parameters={})
    request = ModelRequest(instructions="", context=(), history=(), tools=(shell,))
    return json.loads(encode_responses(request, settings(model=model), CONVERSATION))


@pytest.mark.parametrize("maker", ["", "openai/", "gateway/OpenAI/"])
def test_the_provider_prefix_of_a_model_is_ignored(maker: str) -> None:
    assert instructions_for(f"{maker}GPT-4.1") == BASE_INSTRUCTIONS + PATCH_INSTRUCTIONS
    assert instructions_for(f"{maker}gpt-5") == BASE_INSTRUCTIONS
    assert context_window(f"{maker}o3-pro", None) == 200_000
    assert sent_to(f"{maker}O3")["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert sent_to(f"{maker}mine")["reasoning"] is None
    assert sent_to(f"{maker}codex-mini-latest")["tools"] == [{"type": "local_shell"}]
