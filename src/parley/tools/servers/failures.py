"""Texts for failures of tool servers, which people and models read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.config.types import ToolServer
from parley.tools.servers.names import SERVER_NAME_PATTERN

__all__ = [
    "LOST",
    "TIMED_OUT",
    "UNREADABLE",
    "bad_name",
    "not_stored",
    "one_line",
    "refusal",
    "start_failure",
    "too_long",
    "too_many_values",
]

LOST: Final = "the connection to the tool server was lost"
TIMED_OUT: Final = "request timed out"
UNREADABLE: Final = "its answer cannot be read"

MAX_DETAIL_CHARACTERS: Final = 500
"""The most characters of a tool server's own message that are shown."""


def start_failure(server: ToolServer, detail: str) -> str:
    """Return the text for clients when a server failed to start."""
    return f"MCP client for `{server.name}` failed to start: {detail}"


def too_long(limit_bytes: int) -> str:
    return f"its answer is longer than {limit_bytes} bytes"


def too_many_values(limit: int) -> str:
    return f"its answer has more than {limit} values"


def not_stored(keys: Sequence[str]) -> str:
    """Return the text for a server that lacks secrets of an earlier call, because secrets are not stored."""
    named = ", ".join(f"`{key}`" for key in keys)
    return f"secrets of an earlier call are not stored ({named}); put this tool server into config.toml"


def bad_name(name: str) -> str:
    return f"invalid server name '{name}': must match pattern {SERVER_NAME_PATTERN}"


def refusal(status: int, reason: str) -> str:
    """Return the text for an HTTP status that refuses a request."""
    return f"the server answered {status} {one_line(reason)}".strip()


def one_line(text: str, limit: int = MAX_DETAIL_CHARACTERS) -> str:
    """Return foreign text on one line: shortened, and without control characters."""
    shown = "".join(one if one.isprintable() else " " for one in text[: 2 * limit])
    return " ".join(shown.split())[:limit]
