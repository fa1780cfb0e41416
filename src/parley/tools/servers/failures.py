"""What goes wrong with tool servers, in the words that people and models read."""

from __future__ import annotations

import os
from typing import Final

from parley.config.types import ToolServer
from parley.errors import ParleyError, ToolError
from parley.tools.servers.names import SERVER_NAME_PATTERN

__all__ = ["LOST", "NotStarted", "ToolServerFailed", "bad_name", "one_line", "start_failure", "system_error"]

LOST: Final = "the connection to the tool server was lost"

MAX_DETAIL_CHARACTERS: Final = 500
"""What a tool server says of itself may be of any length; this much explains."""


class NotStarted(ParleyError):
    """A tool server did not come to answer."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ToolServerFailed(ToolError):
    """A call that a tool server did not answer with a result; `detail` where it did not answer at all."""

    def __init__(self, server: str, tool: str, detail: str | None = None) -> None:
        why = f": {detail}" if detail else ""
        super().__init__(f"tool call error: tool call failed for `{server}/{tool}`{why}")
        self.server, self.tool, self.detail = server, tool, detail


def start_failure(server: ToolServer, detail: str) -> str:
    """What clients are told of a server that could not be started."""
    return f"MCP client for `{server.name}` failed to start: {detail}"


def bad_name(name: str) -> str:
    return f"invalid server name '{name}': must match pattern {SERVER_NAME_PATTERN}"


def system_error(error: OSError) -> str:
    if error.errno is None:
        return one_line(str(error))
    return f"{os.strerror(error.errno)} (os error {error.errno})"


def one_line(text: str, limit: int = MAX_DETAIL_CHARACTERS) -> str:
    """Foreign text as a part of a sentence of ours: short, and without characters that move a cursor."""
    shown = "".join(one if one.isprintable() else " " for one in text[: 2 * limit])
    return " ".join(shown.split())[:limit]
