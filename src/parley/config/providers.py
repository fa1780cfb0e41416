"""The preconfigured providers, which need no settings. Most of them need an API key in the environment."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

__all__ = ["AZURE_ENDPOINT", "READY_PROVIDERS", "provider_table", "split_model"]

AZURE_ENDPOINT: Final = "AZURE_OPENAI_ENDPOINT"
"""The environment variable with the URL of the Azure resource. The path of the API is appended to this URL."""


def _service(name: str, base_url: str | None, env_key: str, **more: Any) -> dict[str, Any]:
    """Return the settings table of a provider on the internet. Such a provider needs a key, which the environment
    variable `env_key` contains. `base_url` is None if the URL is different for each user. `more` contains the
    other settings of the table.
    """
    address = {} if base_url is None else {"base_url": base_url}
    instructions = f"Set it to your API key for {name}, or run `parley config init --force` to store a key."
    return {"name": name, **address, "env_key": env_key, "env_key_instructions": instructions, **more}


def _server(name: str, port: int) -> dict[str, Any]:
    """Return the settings table of a provider that is a model server on this computer and needs no key."""
    return {"name": name, "base_url": f"http://localhost:{port}/v1", **_COUNTS}


_COUNTS: Final = {"stream_usage": True}

READY_PROVIDERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "anthropic": _service("Anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", wire_api="anthropic"),
    "gemini": _service(
        "Gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", **_COUNTS
    ),
    "openrouter": _service("OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", **_COUNTS),
    "deepseek": _service("DeepSeek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", **_COUNTS),
    "kimi": _service("Kimi", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", **_COUNTS),
    "mistral": _service("Mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "groq": _service("Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", **_COUNTS),
    "azure": _service("Azure OpenAI", None, "AZURE_OPENAI_API_KEY", wire_api="responses"),
    "ollama": _server("Ollama", 11434),
    "vllm": _server("vLLM", 8000),
    "llamacpp": _server("llama.cpp", 8080),
    "lmstudio": _server("LM Studio", 1234),
}
"""The tables of the preconfigured providers, in the form of `[model_providers.NAME]`, keyed by NAME."""


def provider_table(
    name: str, tables: Mapping[str, Mapping[str, Any]], *, azure_endpoint: str | None
) -> dict[str, Any] | None:
    """Return the settings table of the provider `name`; None if there is no such provider. `azure_endpoint` is the
    URL of the Azure resource; None if there is none.

    The settings in `tables` override the settings of the preconfigured provider with the same name. The key of a
    preconfigured provider is sent only to the preconfigured URL. If the table in `tables` contains a URL, a key is
    sent to this URL only if the same table also contains `env_key`, the name of the environment variable with the
    key.
    """
    ready, own = READY_PROVIDERS.get(name), tables.get(name)
    if ready is None:
        return None if own is None else dict(own)
    table = dict(ready)
    if own is not None and "base_url" in own and "base_url" in ready:
        table.pop("env_key", None)
        table.pop("env_key_instructions", None)
    elif name == "azure" and azure_endpoint:
        table["base_url"] = f"{azure_endpoint.rstrip('/')}/openai/v1"
    return {**table, **(own or {})}


def split_model(model: str, tables: Container[str]) -> tuple[str, str] | None:
    """Split a string such as `anthropic/claude-opus-4-5` into the name of the provider and the name of the model.
    Return None if `model` does not begin with `openai`, the name of a preconfigured provider, or the name of a
    provider in `tables`.
    """
    provider, slash, name = model.partition("/")
    is_known = provider in READY_PROVIDERS or provider in tables or provider == "openai"
    return (provider, name) if slash and name and is_known else None
