"""Determines the key and headers of a request to a provider, and redacts the key and the values of secret headers
in errors.

The key is read for each request and is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from parley.common.secret_values import MIN_SECRET_CHARACTERS
from parley.config.provider_keys import find_key, key_variable
from parley.config.secret_settings import secrets_in_header
from parley.config.types import Provider, Settings
from parley.models.errors import MissingVariable

__all__ = ["HIDDEN", "Credentials", "credentials"]

OPENAI_HINT: Final = (
    "Set it to your API key for OpenAI, or run `parley config init` to store a key or to choose a provider."
)

HIDDEN: Final = "***"

_NAMES_A_SECRET: Final = re.compile("auth|key|token|secret|password|cookie", re.IGNORECASE)


class Credentials:
    """The headers of one request, and the secrets in them. `repr` shows neither the headers nor the secrets."""

    __slots__ = ("headers", "secrets")

    def __init__(self, headers: dict[str, str], secrets: set[str]) -> None:
        self.headers = headers
        """The headers of the request, keyed by their names in lower case."""
        self.secrets = sorted(secrets, key=len, reverse=True)

    def hide_in(self, text: str, *, is_cut: bool = False) -> str:
        """Return the text with the secrets of the request redacted. `is_cut` is True if the text was cut off and
        may end in the middle of a secret.
        """
        if is_cut:
            begun = max((_overlap(text, secret) for secret in self.secrets), default=0)
            text = text[: len(text) - begun]
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text


def credentials(settings: Settings) -> Credentials:
    """Return the headers of a request to the provider, including the provider's key.

    Raises:
        MissingVariable: the variable that holds the key is not set or is empty.
    """
    provider = settings.provider
    headers = {name.lower(): value for name, value in provider.http_headers.items()}
    found = [
        part for name, value in headers.items() if _NAMES_A_SECRET.search(name) for part in secrets_in_header(value)
    ]
    for value in provider.query_params.values():
        found += value.split()
    for name, variable in provider.env_http_headers.items():
        if value := settings.environ.get(variable, "").strip():
            headers[name.lower()] = value
            found += secrets_in_header(value)
    if key := _key(provider, settings.home, settings.environ):
        headers["authorization"] = f"Bearer {key}"
        found.append(key)
    # Users of local servers often configure a short placeholder such as `none` as the key.
    return Credentials(headers, {secret for secret in found if len(secret) >= MIN_SECRET_CHARACTERS})


def _key(provider: Provider, home: str, environ: Mapping[str, str]) -> str | None:
    if (variable := key_variable(provider)) is None:
        return None
    if (key := find_key(provider, home, environ)) is None:
        raise MissingVariable(variable, OPENAI_HINT if provider.is_openai else provider.env_key_instructions)
    return key


def _overlap(text: str, secret: str) -> int:
    """Return the length of the longest proper prefix of the secret that is a suffix of the text."""
    return next((n for n in range(len(secret) - 1, 0, -1) if text.endswith(secret[:n])), 0)
