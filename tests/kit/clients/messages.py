"""Complete messages that a client reads, as plain JSON values to compare with."""

from __future__ import annotations

from typing import Any, Final

import pytest

from parley.testing.render import Api
from parley.wire.jsonrpc import encode

__all__ = [
    "APIS",
    "CAPABILITIES",
    "EITHER_API",
    "EVERY_API",
    "PATHS",
    "TASK_STARTED",
    "TOKEN_COUNT",
    "agent_message",
    "answered",
    "delta",
    "error",
    "failed",
    "initial_state",
    "item_name",
    "live",
    "refused",
    "remains",
    "spoken",
    "taken_over",
    "task_complete",
    "turn_value",
    "user_message",
    "without_code",
]

APIS: Final[tuple[Api, ...]] = ("chat", "responses")
EVERY_API: Final[tuple[Api, ...]] = (*APIS, "anthropic")
PATHS: Final[dict[Api, str]] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}
"""The path of a request to the scripted model, by API."""
EITHER_API: Final = ("chat", pytest.param("responses", marks=pytest.mark.long))
"""Parameters for tests whose model only writes text. `make test` uses one API, and the long run uses both."""

CAPABILITIES: Final = {
    "tools": {},
    "logging": {},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {},
    "completions": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
"""The capabilities that the server announces at 2025-11-25."""

# --- events --------------------------------------------------------------------------

TASK_STARTED: Final = {"type": "task_started"}

TOKEN_COUNT: Final = {
    "type": "token_count",
    "input_tokens": 10,
    "cached_input_tokens": 0,
    "output_tokens": 5,
    "reasoning_output_tokens": 0,
    "total_tokens": 15,
}
"""The usage that a scripted response reports by default."""


def delta(text: str) -> Any:
    return {"type": "agent_message_delta", "delta": text}


def agent_message(text: str) -> Any:
    return {"type": "agent_message", "message": text}


def task_complete(text: str | None) -> Any:
    return {"type": "task_complete", "last_agent_message": text}


def error(message: str) -> Any:
    return {"type": "error", "message": message}


def user_message(text: str, message_id: str) -> Any:
    """Return the event for a message of a local client."""
    content = [{"type": "text", "text": text}]
    return {"type": "user_message", "message_id": message_id, "content": content, "principal": "local"}


def remains(api: Api, *texts: str) -> list[Any]:
    """Return the events of a turn without the deltas, as a client that reads after the end gets them."""
    events: list[Any] = [TASK_STARTED]
    for text in texts:
        events += [agent_message(text), *([TOKEN_COUNT] if api != "chat" else [])]
    return [*events, task_complete(texts[-1])]


def spoken(api: Api, *deltas: str) -> list[Any]:
    """Return a turn with one response, as a client sees it from the beginning."""
    started, *rest = remains(api, "".join(deltas))
    return [started, *map(delta, deltas), *rest]


def item_name(number: int) -> str:
    """Return the id of the open item with this number in the first turn of a conversation.

    In later turns the id depends on whether the lease was released in between.
    """
    return f"i1.{number}"


# --- messages ------------------------------------------------------------------------


def answered(request_id: int, value: Any) -> Any:
    """Build the typed result of a tool."""
    return _typed(request_id, value, is_error=False)


def failed(request_id: int, message: str, code: str | None = None) -> Any:
    """Build the typed failure of most conversation tools; it has a code at 2025-11-25."""
    value = {"status": "error", "message": message}
    return _typed(request_id, value if code is None else {**value, "code": code}, is_error=True)


def without_code(answer: Any) -> Any:
    """Return a typed failure without its code, if it has one."""
    value = {key: member for key, member in answer["result"]["structuredContent"].items() if key != "code"}
    return _typed(answer["id"], value, is_error=True)


def refused(request_id: int, text: str) -> Any:
    """Build the plain failure of a tool."""
    result = {"content": [{"type": "text", "text": text}], "isError": True}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _typed(request_id: int, value: Any, *, is_error: bool) -> Any:
    text = encode(value).decode()
    result = {"content": [{"type": "text", "text": text}], "isError": is_error, "structuredContent": value}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def initial_state(conversation: str, *events: Any) -> Any:
    return {
        "jsonrpc": "2.0",
        "method": "notifications/initial_state",
        "params": {
            "_meta": {"conversationId": conversation},
            "initial_state": {"events": [{"msg": event} for event in events]},
        },
    }


def live(event: Any, *, of: str | None = None) -> Any:
    """Build one event of a streamed conversation, with the conversation's id if several are streamed."""
    params = {"msg": event} if of is None else {"_meta": {"conversationId": of}, "msg": event}
    return {"jsonrpc": "2.0", "method": event["type"], "params": params}


def taken_over(conversation: str) -> Any:
    return {
        "jsonrpc": "2.0",
        "method": "notifications/stream_disconnected",
        "params": {"_meta": {"conversationId": conversation}, "reason": "New stream() took over"},
    }


def turn_value(conversation: object, text: str, reason: str = "done", code: str | None = None) -> dict[str, Any]:
    """Return the structured content of `codex` and `codex-reply` at 2025-11-25."""
    value = {
        "threadId": conversation,
        "sessionId": conversation,
        "content": text,
        "message": text,
        "reason": reason,
    }
    return value if code is None else {**value, "code": code}
