"""Checks requests by the rules of the Anthropic Messages API, which rejects an invalid history with an error."""

from __future__ import annotations

from typing import Any

from parley.testing.dialects import signature_of
from parley.testing.replies import Failure
from parley.wire.jsonrpc import encode

__all__ = ["refused_by_anthropic"]


def refused_by_anthropic(body: dict[str, Any]) -> Failure | None:
    """Return the error with which the Anthropic Messages API would reject a request; None if the API would accept
    the request.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(body.get("max_tokens"), int):
        return _refusal("`messages` and `max_tokens` are required")
    for place, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[place % 2]:
            return _refusal(f"messages.{place}: roles must alternate, beginning with `user`")
        if (flaw := _flaw(message["role"], message["content"])) is not None:
            return _refusal(f"messages.{place}: {flaw}")
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if calls:
            following = messages[place + 1]["content"] if place + 1 < len(messages) else []
            results = [block.get("tool_use_id") for block in following[: len(calls)]]
            if sorted(map(str, results)) != sorted(calls):
                return _refusal(f"messages.{place}: `tool_use` ids without `tool_result` blocks directly after")
    return None


def _flaw(role: str, content: list[Any]) -> str | None:
    """Return a description of the first error in `content`, the blocks of a message with the role `role`; None if
    the blocks are valid.
    """
    for block in content:
        match block:
            case {"type": "text", "text": str(text)} if not text.strip():
                return "text content blocks must contain non-whitespace text"
            case {"type": "thinking", "thinking": str(text), "signature": signature}:
                if signature != signature_of(text):
                    return "invalid `signature` in `thinking` block"
            case {"type": "tool_use", "input": value} if not isinstance(value, dict):
                return "`input` of a `tool_use` block must be an object"
            case _:
                pass
    if role == "assistant" and content[-1]["type"] in ("thinking", "redacted_thinking"):
        return "the final block of an assistant message cannot be `thinking`"
    return None


def _refusal(message: str) -> Failure:
    error = {"type": "invalid_request_error", "message": message}
    return Failure(status=400, body=encode({"type": "error", "error": error}).decode())
