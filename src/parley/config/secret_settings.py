"""Finds the values in settings that may be secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from parley.common.secret_values import MIN_SECRET_CHARACTERS
from parley.common.variable_names import names_a_secret
from parley.config.types import ToolServer

__all__ = [
    "secrets_in_arguments",
    "secrets_in_header",
    "secrets_in_headers",
    "secrets_in_url",
    "secrets_in_variables",
    "secrets_of_tool_server",
]

_ORDINARY_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
"""The names of the headers whose values are not secrets."""


def secrets_of_tool_server(server: ToolServer) -> Iterator[str]:
    """Yield the secrets in the variables, the headers, the arguments and the URL of a tool server."""
    yield from secrets_in_variables(server.env)
    yield from secrets_in_headers(server.http_headers)
    yield from secrets_in_arguments(server.args)
    yield from secrets_in_url(server.url)


def secrets_in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the parts of the header values that may be secrets. The values of the headers in `_ORDINARY_HEADERS`
    are left out.
    """
    for name, value in headers.items():
        if name.lower() not in _ORDINARY_HEADERS:
            yield from secrets_in_header(value)


def secrets_in_header(value: str) -> Iterator[str]:
    """Yield the parts of a header value that may be secrets: each word, and each part of a word, such as the value
    of a cookie.
    """
    yield from value.split()
    yield from re.split(r"[\s;,=]+", value)


def secrets_in_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables that may be secrets.

    An absolute path is not regarded as a secret, unless the name of the variable suggests a secret.
    """
    for name, value in variables.items():
        if names_a_secret(name) or not value.startswith("/"):
            yield value


def secrets_in_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments of a program that may be secrets. Options, paths and short words are not secrets."""
    for argument in arguments:
        value = argument.partition("=")[2] or argument
        if len(value) >= 2 * MIN_SECRET_CHARACTERS and not value.startswith("-") and "/" not in value:
            yield value


def secrets_in_url(url: str | None) -> Iterator[str]:
    """Yield the password and the values of the query parameters in a URL."""
    if url is None:
        return
    parts = urlsplit(url)
    if parts.password:
        yield parts.password
        yield unquote(parts.password)
    for pair in parts.query.split("&"):
        yield pair.partition("=")[2]
