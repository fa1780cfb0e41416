"""Finds the API key of a provider, in the environment or in auth.json in the home."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from parley.common.files import read_file
from parley.config.providers import READY_PROVIDERS
from parley.config.types import Provider

__all__ = ["AUTH_FILE", "find_key", "key_variable", "may_use_stored_key"]

AUTH_FILE: Final = "auth.json"
"""The name of the file that stores API keys. The file contains a JSON object that maps names of environment
variables to API keys. These keys replace the values of the variables.
"""
OPENAI_KEY: Final = "OPENAI_API_KEY"


def key_variable(provider: Provider) -> str | None:
    """Return the name of the environment variable with the key of a provider; None if the provider needs no key."""
    return OPENAI_KEY if provider.is_openai else provider.env_key


def find_key(provider: Provider, home: str, environ: Mapping[str, str]) -> str | None:
    """Return the key of a provider; None if neither auth.json nor the environment contains it. A key in auth.json
    takes precedence over the environment.
    """
    if (variable := key_variable(provider)) is None:
        return None
    stored = _stored_key(home, variable) if may_use_stored_key(provider) else None
    return stored or environ.get(variable, "").strip() or None


def may_use_stored_key(provider: Provider) -> bool:
    """Return whether a key in auth.json may be sent to a provider.

    The key may be sent to OpenAI, and to a preconfigured provider whose URL and key variable were not changed. It
    must not be sent to any other URL, because clients can change the URLs of providers for their conversations.
    """
    if provider.is_openai:
        return True
    ready = READY_PROVIDERS.get(provider.id, {})
    return (
        provider.base_url is not None
        and provider.base_url == ready.get("base_url")
        and provider.env_key == ready.get("env_key")
    )


def _stored_key(home: str, variable: str) -> str | None:
    """Return the key that auth.json contains for `variable`; None if the file does not contain the key or cannot be
    used.
    """
    try:
        members = msgspec.json.decode(read_file(os.path.join(home, AUTH_FILE)), type=dict[str, Any])
    except (OSError, ValueError):
        return None  # the environment may contain the key
    key = members.get(variable)
    return key.strip() or None if isinstance(key, str) else None
