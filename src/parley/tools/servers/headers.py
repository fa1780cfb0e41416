"""Determines the headers of requests to an HTTP tool server from its settings and the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from parley.config.types import ToolServer
from parley.tools.errors import NotStarted

__all__ = ["request_headers"]

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Names of headers that the settings must not set, because the HTTP library sets them for each connection."""


def request_headers(server: ToolServer, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for all requests to a tool server. The headers are sent only to the origin of the server's
    URL.

    Raises:
        NotStarted: a header is invalid, or the environment variable that holds the token is not set or is invalid.
            The error message contains no values of headers or variables.
    """
    headers = dict(server.http_headers)
    for name, variable in server.env_http_headers.items():
        if value := environ.get(variable, "").strip():
            headers[name] = value
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _FRAMING:
            raise NotStarted(f"`{name}` is not a header that can be set")
        if not value.isprintable():
            raise NotStarted(f"the value of the header `{name}` has control characters")
    if (token := _token(server, environ)) is not None:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _token(server: ToolServer, environ: Mapping[str, str]) -> str | None:
    variable = server.bearer_token_env_var
    if variable is None:
        return None
    token = environ.get(variable, "")
    if not token:
        raise NotStarted(f"Missing environment variable: `{variable}`")
    if not (token.isascii() and token.isprintable()):
        raise NotStarted(f"environment variable `{variable}` does not hold a token")
    return token
