"""Responses to HTTP requests, and the headers of Streamable HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

__all__ = ["HEADERS", "LAST_EVENT_ID", "METHOD", "NAME", "PROTOCOL_VERSION", "SESSION_ID", "HttpAnswer"]

SESSION_ID: Final = "Mcp-Session-Id"
PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
LAST_EVENT_ID: Final = "Last-Event-ID"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Server": "parley",
    "X-Content-Type-Options": "nosniff",
}
"""The headers that every HTTP response has."""


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """An HTTP response with a complete body, as opposed to a stream."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
