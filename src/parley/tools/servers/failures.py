"""Describes failures of tool servers for people and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.common.os_errors import os_detail
from parley.config.types import ToolServer
from parley.rpc.errors import (
    CannotReach,
    HttpRefused,
    RequestRefused,
    SessionError,
    SessionLost,
    TooLarge,
    UnreadableAnswer,
)
from parley.tools.errors import NotStarted
from parley.tools.servers.names import SERVER_NAME_PATTERN

__all__ = [
    "LOST",
    "TIMED_OUT",
    "UNREADABLE",
    "bad_name",
    "call_failure",
    "describe",
    "not_stored",
    "one_line",
    "start_failure",
]

LOST: Final = "the connection to the tool server was lost"
TIMED_OUT: Final = "request timed out"
UNREADABLE: Final = "its response cannot be read"

MAX_DETAIL_CHARACTERS: Final = 500
"""The maximum number of characters that are quoted from the message of a tool server."""


def start_failure(server: ToolServer, detail: str) -> str:
    """Return the client-facing message for a server that failed to start for the reason `detail`."""
    return f"MCP client for `{server.name}` failed to start: {detail}"


def not_stored(keys: Sequence[str]) -> str:
    """Return the reason why a tool server cannot be started if some of its settings are missing. An earlier request
    supplied these settings. They are not stored, because they may be secrets. `keys` contains their names.
    """
    named = ", ".join(f"`{key}`" for key in keys)
    return f"secrets of an earlier call are not stored ({named}); put this tool server into config.toml"


def bad_name(name: str) -> str:
    return f"invalid server name '{name}': must match pattern {SERVER_NAME_PATTERN}"


def describe(error: Exception) -> str:
    """Return the reason why a tool server could not be reached or did not respond correctly, as text for people.
    `error` is the exception that the connection or the request raised.
    """
    match error:
        case NotStarted() | CannotReach():
            return one_line(error.detail)
        case SessionError():
            return call_failure(error) or one_line(
                error.message if isinstance(error, RequestRefused) else str(error)
            )
        case TimeoutError():
            return TIMED_OUT
        case OSError():
            return one_line(os_detail(error))
        case _:
            return one_line(str(error)) or type(error).__name__


def call_failure(error: SessionError) -> str | None:
    """Return the reason why a request to a tool server got no valid response, as text for people and models. Return
    None if the tool server responded with a JSON-RPC error.
    """
    match error:
        case SessionLost():
            return LOST
        case UnreadableAnswer():
            return UNREADABLE
        case TooLarge(unit="bytes"):
            return f"its response is longer than {error.limit} bytes"
        case TooLarge():
            return f"its response has more than {error.limit} {error.unit}"
        case HttpRefused():
            return f"the server answered {error.status} {one_line(error.reason)}".strip()
        case RequestRefused():
            return None
        case _:
            return one_line(str(error))


def one_line(text: str, limit: int = MAX_DETAIL_CHARACTERS) -> str:
    """Return text from a tool server on one line, without control characters and with at most `limit`
    characters.
    """
    shown = "".join(one if one.isprintable() else " " for one in text[: 2 * limit])
    return " ".join(shown.split())[:limit]
