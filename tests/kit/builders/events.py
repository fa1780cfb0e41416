"""Builds events with default fields."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from parley.wire.events import (
    AgentMessage,
    AgentReasoning,
    AgentReasoningRawContent,
    BackgroundEvent,
    Duration,
    ErrorEvent,
    ExecCommandBegin,
    ExecCommandEnd,
    TaskComplete,
    TaskStarted,
    TokenCount,
    TurnEndReason,
    UserMessage,
)
from parley.wire.ids import CallId, MessageId
from parley.wire.items import InputItem, TextItem

__all__ = [
    "agent_message",
    "agent_reasoning",
    "agent_reasoning_raw_content",
    "background_event",
    "error",
    "exec_command_begin",
    "exec_command_end",
    "task_complete",
    "task_started",
    "text",
    "token_count",
    "user_message",
]


def task_started() -> TaskStarted:
    return TaskStarted()


def task_complete(last_agent_message: str | None = None) -> TaskComplete:
    return TaskComplete(last_agent_message=last_agent_message)


def text(words: str) -> TextItem:
    return TextItem(text=words)


def user_message(
    *content: str | InputItem,
    message_id: str = "m1",
    parent: str | None = None,
    principal: str | UnsetType = UNSET,
) -> UserMessage:
    """Build a message of the user; strings become text items."""
    items = tuple(text(item) if isinstance(item, str) else item for item in content)
    before = UNSET if parent is None else MessageId(parent)
    return UserMessage(
        message_id=MessageId(message_id), parent_message_id=before, content=items, principal=principal
    )


def agent_message(message: str) -> AgentMessage:
    return AgentMessage(message=message)


def agent_reasoning(thought: str) -> AgentReasoning:
    return AgentReasoning(text=thought)


def agent_reasoning_raw_content(thought: str) -> AgentReasoningRawContent:
    return AgentReasoningRawContent(text=thought)


def background_event(message: str) -> BackgroundEvent:
    return BackgroundEvent(message=message)


def error(
    message: str,
    reason: TurnEndReason | UnsetType = UNSET,
    code: str | UnsetType = UNSET,
    principal: str | UnsetType = UNSET,
) -> ErrorEvent:
    return ErrorEvent(message=message, reason=reason, code=code, principal=principal)


def token_count(
    *, input_tokens: int, output_tokens: int, cached: int | None = None, reasoning: int | None = None
) -> TokenCount:
    return TokenCount(
        input_tokens=input_tokens,
        cached_input_tokens=cached,
        output_tokens=output_tokens,
        reasoning_output_tokens=reasoning,
        total_tokens=input_tokens + output_tokens,
    )


def exec_command_begin(call_id: str, *command: str, cwd: str = "/project") -> ExecCommandBegin:
    return ExecCommandBegin(call_id=CallId(call_id), command=command, cwd=cwd, parsed_cmd=())


def exec_command_end(call_id: str, stdout: str = "", *, exit_code: int = 0) -> ExecCommandEnd:
    no_time = Duration(secs=0, nanos=0)
    return ExecCommandEnd(call_id=CallId(call_id), stdout=stdout, stderr="", exit_code=exit_code, duration=no_time)
