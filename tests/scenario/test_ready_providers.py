"""Every ready provider against a stand-in for its service: two calls, a second request, the key and the address."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from kit.clients.codex_calls import events_in, speaking
from kit.clients.messages import PATHS
from kit.models.sent_back import RESPONSE, sent_back
from parley.config.providers import READY_PROVIDERS
from parley.testing import ScriptedModel
from parley.testing.dialects import DialectName

KEY: Final = "sk-0123456789-the-key"
OPENAI: Final = {"wire_api": "responses", "base_url": "https://api.openai.com/v1", "env_key": "OPENAI_API_KEY"}
SERVICES: Final[dict[str, Any]] = {"openai": OPENAI, **READY_PROVIDERS}
STAND_INS: Final[dict[str, DialectName]] = {
    "gemini": "gemini",
    "openrouter": "openrouter",
    "deepseek": "deepseek",
    "kimi": "kimi",
    "mistral": "mistral",
    "groq": "groq",
    "ollama": "ollama",
    "vllm": "vllm",
    "llamacpp": "llama.cpp",
    "lmstudio": "lmstudio",
}
"""The stand-in for each provider of Chat Completions. A new provider needs one."""
MEMBERS: Final = {"chat": "messages", "responses": "input", "anthropic": "messages"}
"""The member of a request that contains the history, by API."""


@pytest.mark.promises("settings.ready-providers", "model.keys", "model.usage", "model.history")
@pytest.mark.parametrize("name", SERVICES)
async def test_a_ready_provider_answers_with_only_its_key(parley_model: ScriptedModel, name: str) -> None:
    ready = SERVICES[name]
    api, variable = ready.get("wire_api", "chat"), ready.get("env_key")
    if api == "chat":
        parley_model.dialect = STAND_INS[name]
    parley_model.says(*RESPONSE)
    config = 'model_provider = "openai"\n'
    env: dict[str, str] = {}
    if name == "openai":
        env = {variable: KEY, "OPENAI_BASE_URL": parley_model.base_url}
    elif variable is None:  # a server on this computer: the stand-in is a proxy in front of it
        env = {"http_proxy": parley_model.base_url.removesuffix("/v1")}
    else:  # the stand-in is at another address, so the table also names the variable of the key
        env = {variable: KEY}
        config += f'[model_providers.{name}]\nbase_url = "{parley_model.base_url}"\nenv_key = "{variable}"\n'
    async with speaking(parley_model, config=config, env=env) as wire:
        wire.codex(1, "go", model="the-model" if name == "openai" else f"{name}/the-model")
        messages = await wire.answer(1)
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    first, second, third = parley_model.requests
    for request in (first, second, third):
        assert request.path == (PATHS[api] if variable else f"{ready['base_url']}/chat/completions")
        assert request.body["model"] == "the-model"
        assert request.headers.get("authorization") == (f"Bearer {KEY}" if variable else None)
    history = MEMBERS[api]
    assert second.body[history] == [*first.body[history], *sent_back(api, parley_model.dialect)]
    assert third.body[history][: len(second.body[history])] == second.body[history]
    counts = [event["total_tokens"] for event in events_in(messages) if event["type"] == "token_count"]
    assert counts[:1] == [11]


@pytest.mark.promises("settings.ready-providers")
@pytest.mark.parametrize("name", [name for name, ready in READY_PROVIDERS.items() if "env_key" in ready])
async def test_requests_go_to_the_address_of_the_service(parley_model: ScriptedModel, name: str) -> None:
    ready: Any = {"base_url": "https://me.openai.azure.com", **READY_PROVIDERS[name]}
    env = {ready["env_key"]: KEY, "https_proxy": parley_model.base_url, "AZURE_OPENAI_ENDPOINT": ready["base_url"]}
    # A test server defines providers with the names of the APIs, unless they are in the settings. A refused
    # connection is not repeated, because the pauses add up to 25 seconds.
    config = f"""
        model_provider = "openai"
        [model_providers.{name}]
        request_max_retries = 0
        stream_max_retries = 0
        """
    async with speaking(parley_model, config=config, env=env) as wire:
        wire.codex(1, "go", model=f"{name}/the-model")
        await wire.answer(1)

    # The connection is encrypted, so the proxy sees only the host.
    assert {request.path for request in parley_model.requests} == {f"{urlsplit(ready['base_url']).hostname}:443"}


@pytest.mark.promises("failures.messages", "settings.ready-providers")
@pytest.mark.parametrize("name", ["gemini", "kimi", "groq"])
async def test_a_missing_key_is_named(parley_model: ScriptedModel, name: str) -> None:
    async with speaking(parley_model, config='model_provider = "openai"', env={}) as wire:
        wire.codex(1, "go", model=f"{name}/the-model")
        messages = await wire.answer(1)

    variable = READY_PROVIDERS[name]["env_key"]
    assert messages[-1]["result"]["error"].startswith(f"Missing environment variable: `{variable}`. Set it to")
    assert parley_model.requests == []
