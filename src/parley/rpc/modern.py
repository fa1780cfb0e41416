"""The data that MCP 2026-07-28 adds to each request: the description of the client in `_meta`, and HTTP headers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final

from parley.version import __version__
from parley.wire.http import METHOD, NAME, PROTOCOL_VERSION
from parley.wire.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from parley.wire.mcp import CallToolParams
from parley.wire.modern import HEADER_MISMATCH, MODERN_VERSION, UNSUPPORTED_VERSION

__all__ = ["CLIENT_INFO", "NO_INITIALIZE", "HeaderNames", "header_names", "modern_headers", "modern_meta"]

CLIENT_INFO: Final = {"name": "parley", "version": __version__}

NO_INITIALIZE: Final = frozenset({UNSUPPORTED_VERSION, HEADER_MISMATCH, METHOD_NOT_FOUND, INVALID_PARAMS})
"""The JSON-RPC error codes that a server may return for `initialize` if it supports only MCP 2026-07-28."""

HeaderNames = Mapping[tuple[str, ...], str]
"""A mapping from tool arguments to headers in which the arguments are also sent. A key contains the property names
that lead to the argument. The value NAME stands for the header `Mcp-Param-NAME`.
"""

MAX_HEADERS: Final = 32
"""The maximum number of arguments of one tool that are also sent in headers."""
MAX_HEADERS_BYTES: Final = 12_000
"""The maximum total size of the headers of a request that contain arguments, in bytes as sent. An argument that
would exceed this limit has no header, because many servers accept at most 16 KiB of headers.
"""
MAX_DEPTH: Final = 32
"""The maximum number of property names that lead to an argument that is also sent in a header."""
MAX_DIGITS: Final = 32
"""The maximum number of digits of an integer that is also sent in a header."""

_META: Final = "io.modelcontextprotocol/"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")


def modern_meta() -> dict[str, Any]:
    return {
        f"{_META}protocolVersion": MODERN_VERSION,
        f"{_META}clientInfo": CLIENT_INFO,
        f"{_META}clientCapabilities": {},
    }


def modern_headers(method: str, params: Mapping[str, Any], names: HeaderNames) -> dict[str, str]:
    """Return the HTTP headers that MCP 2026-07-28 adds to a request. `names` contains the arguments of the called
    tool that are also sent in headers. An argument that would exceed `MAX_HEADERS_BYTES` has no header.
    """
    headers = {PROTOCOL_VERSION: MODERN_VERSION, METHOD: method}
    if method == CallToolParams.METHOD:
        headers[NAME] = _value(str(params.get("name", "")))
        room = MAX_HEADERS_BYTES
        for path, name in names.items():
            text = _text(_at(params.get("arguments"), path))
            if text is None or len(text) > room:  # the encoded text is not shorter
                continue
            header, value = f"Mcp-Param-{name}", _value(text)
            size = len(f"{header}: {value}\r\n")  # the header is ASCII
            if size <= room:
                headers[header] = value
                room -= size
    return headers


def header_names(schema: Any) -> HeaderNames:
    """Return the arguments of a tool that are also sent in headers. `schema` is the input schema of the tool. The
    member `x-mcp-header` of a property requests a header for the argument.
    """
    names: dict[tuple[str, ...], str] = {}
    for path, name in _annotations(schema, ()):
        if len(names) < MAX_HEADERS and _TOKEN.fullmatch(name):
            names[path] = name
    return names


def _annotations(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(schema, dict) or len(path) > MAX_DEPTH:
        return
    if path and isinstance(name := schema.get("x-mcp-header"), str):
        yield path, name
    properties = schema.get("properties")
    for key, value in properties.items() if isinstance(properties, dict) else ():
        yield from _annotations(value, (*path, key))


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        arguments = arguments.get(key) if isinstance(arguments, dict) else None
    return arguments


def _text(value: Any) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() if abs(value) < 10**MAX_DIGITS:
            return str(value)
        case _:
            return None


def _value(text: str) -> str:
    """Convert a string to the value of a header. A string that might be changed during transport is encoded in
    base64.
    """
    is_plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?")
    return text if is_plain else f"=?base64?{b64encode(text.encode('utf-8', 'replace')).decode()}?="
