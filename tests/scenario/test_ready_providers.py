"""Every ready provider against a stand-in for its service: two calls, a second request, and the key."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kit.clients.codex_calls import events_in, speaking
from kit.clients.messages import PATHS
from parley.config.providers import READY_PROVIDERS
from parley.testing import Call, Reasoning, ScriptedModel, Usage
from parley.testing.dialects import DIALECTS, DialectName

KEY: Final = "sk-0123456789-the-key"
CALLS: Final = (Call("look", {"at": "one"}, "c1"), Call("look", {"at": "two"}, "c2"))
SERVICES: Final = [*READY_PROVIDERS, "openai"]
DIALECT_OF: Final[dict[str, DialectName]] = {
    **{name: name for name in DIALECTS},
    "llamacpp": "llama.cpp",
}


def _outputs(api: str, body: Any) -> list[str]:
    """Return the ids of the calls whose outputs a request contains, in order."""
    if api == "responses":
        return [item["call_id"] for item in body["input"] if item["type"] == "function_call_output"]
    if api == "anthropic":
        blocks = [block for message in body["messages"] for block in message["content"]]
        return [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    return [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]


@pytest.mark.promises("settings.ready-providers", "model.keys", "model.usage")
@pytest.mark.parametrize("name", SERVICES)
async def test_a_ready_provider_answers_with_only_its_key(parley_model: ScriptedModel, name: str) -> None:
    ready = READY_PROVIDERS.get(name, {"wire_api": "responses", "env_key": "OPENAI_API_KEY"})
    api, variable = ready.get("wire_api", "chat"), ready.get("env_key")
    parley_model.dialect = DIALECT_OF.get(name, "openai")
    parley_model.says(Reasoning("I look twice."), "Looking.", *CALLS, Usage(input_tokens=9, output_tokens=2))
    config, env = 'model_provider = "openai"\n', {"NOTHING": "x"}
    if variable is not None:
        env[variable] = KEY
    if name != "openai":  # the stand-in is at another address, so its table names the variable of the key
        config += f'[model_providers.{name}]\nbase_url = "{parley_model.base_url}"\n'
        config += "" if variable is None else f'env_key = "{variable}"\n'
        model = f"{name}/the-model"
    else:
        env["OPENAI_BASE_URL"], model = parley_model.base_url, "the-model"
    async with speaking(parley_model, config=config, env=env) as wire:
        wire.codex(1, "go", model=model)
        messages = await wire.answer(1)
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    assert len(parley_model.requests) == 3
    for request in parley_model.requests:
        assert request.path == PATHS[api]
        assert request.body["model"] == "the-model"
        assert request.headers.get("authorization") == (f"Bearer {KEY}" if variable else None)
    for request in parley_model.requests[1:]:
        assert _outputs(api, request.body) == ["c1", "c2"]
    counts = [event["total_tokens"] for event in events_in(messages) if event["type"] == "token_count"]
    assert counts[:1] == ([] if name == "mistral" else [11])


@pytest.mark.promises("failures.messages", "settings.ready-providers")
@pytest.mark.parametrize("name", ["gemini", "kimi", "groq"])
async def test_a_missing_key_is_named(parley_model: ScriptedModel, name: str) -> None:
    async with speaking(parley_model, config='model_provider = "openai"', env={}) as wire:
        wire.codex(1, "go", model=f"{name}/the-model")
        messages = await wire.answer(1)

    variable = READY_PROVIDERS[name]["env_key"]
    assert messages[-1]["result"]["error"].startswith(f"Missing environment variable: `{variable}`. Set it to")
    assert parley_model.requests == []
