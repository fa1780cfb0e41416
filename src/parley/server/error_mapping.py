"""Turns errors of tools into results.

Tools fail in different shapes, which clients of the original server know: text, a typed value, or a flag alone. The
row of a tool names its shape (`Faults`). Clients with the additions also get the code of the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from msgspec import UNSET, Struct

from parley.errors import BadArguments, BadSetting, ConfigError, ParleyError, UnknownConversation
from parley.server.errors import BadCursor, PositionBeyondEnd, error_code
from parley.server.hosts import Features
from parley.wire.mcp import CallToolResult, TextContent, typed_result
from parley.wire.tools import CreateFailed, Failed

__all__ = ["FAILED_VALUES", "NO_ARGUMENTS", "TEXT_FAULTS", "Faults", "failure"]

NO_ARGUMENTS: Final = "no arguments"
"""The detail of a call that has no `arguments` at all."""


class Faults(Enum):
    """The shape in which a tool fails."""

    CODEX = auto()
    CREATE = auto()
    SEND = auto()
    STREAM = auto()
    PLAIN = auto()
    TYPED = auto()


FAILED_VALUES: Final[Mapping[Faults, type[Struct]]] = {
    faults: CreateFailed if faults is Faults.CREATE else Failed for faults in Faults
}
"""The types of the structured content of failures, for clients with the additions."""


TEXT_FAULTS: Final = frozenset({Faults.CODEX, Faults.STREAM, Faults.PLAIN})
"""Shapes that are a text for clients without the additions."""


def failure(tool: str, faults: Faults, error: ParleyError, features: Features) -> CallToolResult:
    """Return the result of a call that failed with `error`."""
    code = error_code(error) if features.additions else UNSET
    text: str | None
    match faults:
        case Faults.CREATE:
            return typed_result(CreateFailed(message=_create_text(tool, error), code=code), is_error=True)
        case Faults.SEND | Faults.TYPED:
            return typed_result(Failed(message=_typed_text(tool, faults, error), code=code), is_error=True)
        case Faults.STREAM if isinstance(error, UnknownConversation):
            text = "Conversation does not exist" if features.additions else None
        case Faults.CODEX:
            text = _codex_text(tool, error, features)
        case Faults.STREAM | Faults.PLAIN:
            text = _text(tool, error)
    content = () if text is None else (TextContent(text=text),)
    structured = UNSET if code is UNSET else Failed(message=text or "", code=code)
    return CallToolResult(content=content, is_error=True, structured_content=structured)


def _text(tool: str, error: ParleyError) -> str:
    if isinstance(error, BadArguments):
        return f"Failed to parse arguments for {tool}: {error.detail}"
    if isinstance(error, BadCursor | PositionBeyondEnd):
        return f"Failed to parse arguments for {tool}: {error}"
    return str(error)


def _typed_text(tool: str, faults: Faults, error: ParleyError) -> str:
    if isinstance(error, UnknownConversation):
        return "Session does not exist" if faults is Faults.SEND else "Conversation does not exist"
    return _text(tool, error)


def _create_text(tool: str, error: ParleyError) -> str:
    return f"Failed to load config: {error}" if isinstance(error, ConfigError) else _text(tool, error)


def _codex_text(tool: str, error: ParleyError, features: Features) -> str:
    match error:
        case BadArguments(field="arguments", detail=detail) if detail == NO_ARGUMENTS:
            fields = "`prompt` field is" if tool == "codex" else "`session_id` and `prompt` fields are"
            return f"Missing arguments for {tool} tool-call; the {fields} required."
        case BadArguments(detail=detail):
            return f"Failed to parse configuration for Codex tool: {detail}"
        case BadSetting(source=str(source)) if features.additions and source.startswith("/"):
            return f"Failed to load config: {error}"  # of a file, which no call overrides
        case ConfigError():
            return f"Failed to load Codex configuration from overrides: {error}"
        case UnknownConversation(conversation=conversation):
            return f"Session not found for session_id: {conversation}"
        case _:
            return str(error)
