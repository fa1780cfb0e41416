"""Builds rollout files in the format of Codex CLI 0.21."""

from __future__ import annotations

import json
from typing import Any

__all__ = [
    "SESSION",
    "SHELL_OUTPUT",
    "STATE",
    "assistant",
    "function_call",
    "function_call_output",
    "local_shell_call",
    "reasoning",
    "rollout",
    "user",
]

SESSION = {
    "id": "0194f5a6-89ab-7cde-8123-456789abcdef",
    "timestamp": "2025-08-08T12:00:00.123Z",
    "instructions": None,
}

STATE = {"record_type": "state"}

SHELL_OUTPUT = '{"output":"x\\n","metadata":{"exit_code":0,"duration_seconds":0.1}}'
"""The output of a command, for the model."""


def rollout(*items: Any, session: Any = SESSION) -> list[bytes]:
    """Return the lines of a rollout file."""
    return [json.dumps(one).encode() + b"\n" for one in (session, *items)]


def user(*texts: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": None, "role": "user", "content": content}


def assistant(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": None,
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def reasoning(*summaries: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text} for text in summaries]
    return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"}


def function_call(call_id: str, arguments: str = '{"command": ["echo", "x"]}') -> dict[str, Any]:
    return {"type": "function_call", "id": None, "name": "shell", "arguments": arguments, "call_id": call_id}


def local_shell_call(call_id: str | None, item_id: str | None = None) -> dict[str, Any]:
    action = {"type": "exec", "command": ["ls"]}
    return {
        "type": "local_shell_call",
        "id": item_id,
        "call_id": call_id,
        "status": "completed",
        "action": action,
    }


def function_call_output(call_id: str, output: str = SHELL_OUTPUT) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}
