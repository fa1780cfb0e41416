"""The one place where an error becomes what a client reads.

Tools fail in different shapes, because clients of the original know them: plain text, a typed
value, or nothing but a flag. A tool names its shape in its row (`Faults`); the words are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from msgspec import Struct

from parley.errors import BadArguments, BadSetting, ConfigError, ParleyError, UnknownConversation
from parley.server.errors import BadCursor, PositionBeyondEnd
from parley.wire.mcp import CallToolResult, text_result, typed_result
from parley.wire.tools import CreateFailed, Failed

__all__ = ["FAILED_VALUES", "NO_ARGUMENTS", "Faults", "RequestRefused", "failure"]

NO_ARGUMENTS: Final = "no arguments"
"""The detail of a call that has no `arguments` at all."""


class RequestRefused(Exception):
    """A request that gets a JSON-RPC error instead of a result."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Faults(Enum):
    """How a tool fails."""

    CODEX = auto()
    CREATE = auto()
    SEND = auto()
    STREAM = auto()
    PLAIN = auto()
    TYPED = auto()


FAILED_VALUES: Final[Mapping[Faults, type[Struct]]] = {
    Faults.CREATE: CreateFailed,
    Faults.SEND: Failed,
    Faults.TYPED: Failed,
}
"""The values of failures that are typed; the others are text."""


def failure(tool: str, faults: Faults, error: ParleyError, *, full: bool = False) -> CallToolResult:
    """The result of a call that failed with `error`; `full` for a client that gets the additions."""
    match faults:
        case Faults.CODEX:
            return text_result(_codex_text(tool, error, full=full), is_error=True)
        case Faults.CREATE:
            return typed_result(CreateFailed(message=_create_text(tool, error)), is_error=True)
        case Faults.SEND:
            unknown = isinstance(error, UnknownConversation)
            text = "Session does not exist" if unknown else _text(tool, error)
            return typed_result(Failed(message=text), is_error=True)
        case Faults.STREAM:
            if isinstance(error, UnknownConversation):
                nothing = CallToolResult(content=(), is_error=True)
                return text_result("Conversation does not exist", is_error=True) if full else nothing
            return text_result(_text(tool, error), is_error=True)
        case Faults.PLAIN:
            return text_result(_text(tool, error), is_error=True)
        case Faults.TYPED:
            unknown = isinstance(error, UnknownConversation)
            text = "Conversation does not exist" if unknown else _text(tool, error)
            return typed_result(Failed(message=text), is_error=True)


def _text(tool: str, error: ParleyError) -> str:
    if isinstance(error, BadArguments):
        return f"Failed to parse arguments for {tool}: {error.detail}"
    if isinstance(error, BadCursor | PositionBeyondEnd):
        return f"Failed to parse arguments for {tool}: {error}"
    return str(error)


def _create_text(tool: str, error: ParleyError) -> str:
    return f"Failed to load config: {error}" if isinstance(error, ConfigError) else _text(tool, error)


def _codex_text(tool: str, error: ParleyError, *, full: bool) -> str:
    match error:
        case BadArguments(field="arguments", detail=detail) if detail == NO_ARGUMENTS:
            fields = "`prompt` field is" if tool == "codex" else "`session_id` and `prompt` fields are"
            return f"Missing arguments for {tool} tool-call; the {fields} required."
        case BadArguments(detail=detail):
            return f"Failed to parse configuration for Codex tool: {detail}"
        case BadSetting(source=str(source)) if full and source.startswith("/"):
            return f"Failed to load config: {error}"  # of a file, which no call overrides
        case ConfigError():
            return f"Failed to load Codex configuration from overrides: {error}"
        case UnknownConversation(conversation=conversation):
            return f"Session not found for session_id: {conversation}"
        case _:
            return str(error)
