"""Answers to HTTP requests, and the headers of Streamable HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

__all__ = ["LAST_EVENT_ID", "PROTOCOL_VERSION", "SESSION_ID", "HttpAnswer"]

SESSION_ID: Final = "Mcp-Session-Id"
PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
LAST_EVENT_ID: Final = "Last-Event-ID"


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """An answer without a stream."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
