"""Finds the secrets that a recording could contain, and redacts them.

The secrets are the values of headers and of certain environment variables and settings, and strings that look like
keys. A secret is not found if it is encoded in a form other than JSON or a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

from parley.common.secret_values import MIN_SECRET_CHARACTERS
from parley.common.variable_names import names_a_secret
from parley.config.secret_settings import (
    secrets_in_arguments,
    secrets_in_headers,
    secrets_in_url,
    secrets_in_variables,
    secrets_of_tool_server,
)
from parley.config.types import Settings
from parley.models.credentials import HIDDEN, credentials
from parley.models.errors import MissingVariable
from parley.wire.jsonrpc import encode

__all__ = ["Redactor", "secrets_of"]

_KEYS: Final = re.compile(
    r"\bsk-[\w-]{16,}"  # OpenAI, Anthropic and others
    r"|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}"  # Slack
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}"  # Amazon and Google
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"  # signed tokens
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{1,20000}",
    re.ASCII,
)
"""The pattern of keys in well-known forms."""

_QUOTE: Final = r"\\{0,3}[\"']"
"""The pattern of a quotation mark, which may be escaped. Command outputs are JSON strings, and an output can itself
contain JSON.
"""
_NAMED: Final = re.compile(
    r"([Bb]earer |\b[A-Z0-9_]{0,60}(?:API_?KEY|_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)[A-Z0-9_]{0,60}"
    rf"(?:{_QUOTE})?\s?[=:]\s?(?:{_QUOTE})?"
    r"|\b(?:password|passwd|secret|token|api_?key|client_secret|access_token|refresh_token)"
    rf"{_QUOTE}\s?:\s?{_QUOTE})"
    r"([^\s\"'@,;\\]{16,})",
    re.ASCII,
)
"""The pattern of a secret that follows its name in a header, in a list of variables, or in JSON."""

_PASSWORD_IN_URL: Final = re.compile(r"(://[^\s/@:]{0,100}:)[^\s/@]{1,200}(?=@)")


class Redactor:
    """Replaces secrets in JSON values with `***`.

    A secret that follows a name such as `API_KEY` is recognised by this name. From then on, the secret is also
    replaced where it occurs without the name.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = set(secrets)
        self._forms = _forms_of(self._secrets)

    def redact(self, value: Any, secrets: Iterable[str] = ()) -> Any:
        """Find the secrets in a JSON value. Return a copy of the value in which these secrets, the given `secrets`,
        and the secrets of earlier calls are redacted.

        Later calls also redact the secrets of this call.
        """
        found = {*secrets, *_found_after_names(value)} - self._secrets
        if found:
            self._secrets |= found
            self._forms = _forms_of(self._secrets)
        return self.value(value)

    def text(self, text: str) -> str:
        """Return the text with the known secrets, and all strings that look like secrets, redacted."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        text = _KEYS.sub(HIDDEN, text)
        for pattern in (_NAMED, _PASSWORD_IN_URL):
            text = pattern.sub(rf"\g<1>{HIDDEN}", text)
        return text

    def value(self, value: Any) -> Any:
        """Return a copy of a JSON value in which secrets are redacted in all strings, including the names of
        members. The method `text` redacts each string.
        """
        match value:
            case str():
                return self.text(value)
            case list() | tuple():
                return [self.value(one) for one in value]
            case dict():
                return {self.text(name): self.value(one) for name, one in value.items()}
            case _:
                return value


def _forms_of(secrets: Iterable[str]) -> list[str]:
    """Return all forms in which a string can contain one of the secrets, the longest form first."""
    forms = {form for secret in secrets if len(secret) >= MIN_SECRET_CHARACTERS for form in _forms(secret)}
    return sorted(forms, key=len, reverse=True)


def _found_after_names(value: Any) -> Iterator[str]:
    """Yield the secrets in the strings of a JSON value. A secret is recognised because it follows a name that
    suggests a secret.
    """
    match value:
        case str():
            yield from (found[2] for found in _NAMED.finditer(value))
        case list() | tuple():
            for one in value:
                yield from _found_after_names(one)
        case dict():
            for one in value.values():
                yield from _found_after_names(one)
        case _:
            pass


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret unchanged, and in the forms that it has in JSON, in JSON within JSON, and in a URL."""
    yield secret
    yield (in_json := encode(secret)[1:-1].decode())
    yield encode(in_json)[1:-1].decode()
    yield quote(secret, safe="", errors="replace")


def secrets_of(settings: Settings) -> Iterator[str]:
    """Yield the secrets in the settings and the environment of a conversation."""
    try:
        yield from credentials(settings).secrets
    except MissingVariable:
        pass  # the request fails for the same reason
    for name, value in settings.environ.items():
        if name in settings.key_variables or names_a_secret(name):
            yield value.strip()
    for server in settings.mcp_servers:
        yield from secrets_of_tool_server(server)
    yield from secrets_in_variables(settings.shell_environment.set)
    yield from secrets_in_arguments(settings.notify)
    yield from secrets_in_url(settings.provider.base_url)
    yield from secrets_in_headers(settings.provider.http_headers)
