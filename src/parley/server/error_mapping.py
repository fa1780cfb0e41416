"""Converts the errors that tools raise into results.

Clients that were written for Codex expect a different form of result from each failed tool: text, a structured
value, or only the flag `isError`. The tool table assigns one of these forms (`ErrorShape`) to each tool. Clients
that get Parley's additions to the protocol (`Features.additions`) also get the error code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from msgspec import UNSET, Struct

from parley.errors import (
    ApprovalIsSettled,
    BadArguments,
    ConfigError,
    ParleyError,
    UnknownConversation,
)
from parley.server.approval_text import settled_text
from parley.server.errors import BadCursor, PositionBeyondEnd, error_code
from parley.server.hosts import Features
from parley.server.times import iso
from parley.wire.mcp import CallToolResult, TextContent, typed_result
from parley.wire.tools import AnswerFailed, CreateFailed, Failed

__all__ = ["FAILED_VALUES", "NO_ARGUMENTS", "TEXT_SHAPES", "ErrorShape", "failure"]

NO_ARGUMENTS: Final = "no arguments"
"""The detail of the `BadArguments` error for a call without `arguments`."""


class ErrorShape(Enum):
    """The forms of the results that failed tools return."""

    CODEX = auto()
    CREATE = auto()
    SEND = auto()
    STREAM = auto()
    PLAIN = auto()
    TYPED = auto()
    ANSWER = auto()


FAILED_VALUES: Final[Mapping[ErrorShape, type[Struct]]] = {
    **dict.fromkeys(ErrorShape, Failed),
    ErrorShape.CREATE: CreateFailed,
    ErrorShape.ANSWER: AnswerFailed,
}
"""The type of the structured content in the result of a failed call, for each `ErrorShape`. These types apply to
clients that get Parley's additions to the protocol (`Features.additions`).
"""


TEXT_SHAPES: Final = frozenset({ErrorShape.CODEX, ErrorShape.STREAM, ErrorShape.PLAIN})
"""The values of `ErrorShape` for which the result of a failed call has no structured content, if the client does
not get Parley's additions to the protocol (`Features.additions`).
"""


def failure(tool: str, shape: ErrorShape, error: ParleyError, features: Features) -> CallToolResult:
    """Return the result of a call to `tool` that failed with `error`, in the form that `shape` names."""
    code = error_code(error) if features.additions else UNSET
    text: str | None
    match shape:
        case ErrorShape.CREATE:
            return typed_result(CreateFailed(message=_create_text(tool, error), code=code), is_error=True)
        case ErrorShape.ANSWER if isinstance(error, ApprovalIsSettled) and features.additions:
            return typed_result(_settled(error, features), is_error=True)
        case ErrorShape.SEND | ErrorShape.TYPED | ErrorShape.ANSWER:
            return typed_result(Failed(message=_typed_text(tool, shape, error), code=code), is_error=True)
        case ErrorShape.STREAM if isinstance(error, UnknownConversation):
            text = "Conversation does not exist" if features.additions else None
        case ErrorShape.CODEX:
            text = _codex_text(tool, error, features)
        case ErrorShape.STREAM | ErrorShape.PLAIN:
            text = _text(tool, error)
    content = () if text is None else (TextContent(text=text),)
    structured = UNSET if code is UNSET else Failed(message=text or "", code=code)
    return CallToolResult(content=content, is_error=True, structured_content=structured)


def _settled(error: ApprovalIsSettled, features: Features) -> AnswerFailed:
    return AnswerFailed(
        message=settled_text(error, features),
        code=error.code,
        decision=error.decision,
        by=error.by,
        principal=UNSET if error.principal is None else error.principal,
        reason=UNSET if error.reason is None else error.reason,
        settled_at=iso(error.at),
    )


def _text(tool: str, error: ParleyError) -> str:
    if isinstance(error, BadArguments):
        return f"Failed to parse arguments for {tool}: {error.detail}"
    if isinstance(error, BadCursor | PositionBeyondEnd):
        return f"Failed to parse arguments for {tool}: {error}"
    return str(error)


def _typed_text(tool: str, shape: ErrorShape, error: ParleyError) -> str:
    if isinstance(error, UnknownConversation):
        return "Session does not exist" if shape is ErrorShape.SEND else "Conversation does not exist"
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
        case ConfigError(source=str(source)) if features.additions and source.startswith("/"):
            return f"Failed to load config: {error}"  # an error in a file, which no argument overrides
        case ConfigError():
            return f"Failed to load Codex configuration from overrides: {error}"
        case UnknownConversation(conversation=conversation):
            return f"Session not found for session_id: {conversation}"
        case _:
            return str(error)
