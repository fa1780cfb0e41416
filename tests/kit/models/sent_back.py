"""A response with reasoning, a text and two calls, and the messages with which the next request sends it back."""

from __future__ import annotations

from typing import Any, Final

from parley.testing import Call, Reasoning, Usage
from parley.testing.dialects import DialectName, details_of, signature_of
from parley.testing.render import Api
from parley.testing.steps import Step

__all__ = ["ARGUMENTS", "CALLS", "FIELDS", "IDS", "RESPONSE", "THOUGHT", "sent_back"]

THOUGHT: Final = "I look twice."
ARGUMENTS: Final = ('{"at": "one"}', '{"at": "two"}')
IDS: Final = ("lookfirst", "looksecnd")
"""The ids of the calls. Mistral accepts only ids of nine letters and digits."""
CALLS: Final = (Call("look", ARGUMENTS[0], IDS[0]), Call("look", ARGUMENTS[1], IDS[1]))
RESPONSE: Final[tuple[Step, ...]] = (
    Reasoning(THOUGHT),
    "Looking.",
    *CALLS,
    Usage(input_tokens=9, output_tokens=2),
)
OUTPUT: Final = "unsupported call: look"

FIELDS: Final[dict[DialectName, dict[str, Any]]] = {
    "openai": {"reasoning": THOUGHT},
    "deepseek": {"reasoning_content": THOUGHT},
    "kimi": {"reasoning_content": THOUGHT},
    "gemini": {"reasoning": THOUGHT},
    "openrouter": {"reasoning": THOUGHT, "reasoning_details": [details_of(THOUGHT)]},
    "ollama": {"reasoning": THOUGHT},
    "vllm": {"reasoning": THOUGHT},
    "mistral": {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
            {"type": "text", "text": "Looking."},
        ]
    },
    "llama.cpp": {"reasoning_content": THOUGHT},
    "groq": {"reasoning": THOUGHT},
    "lmstudio": {"reasoning_content": THOUGHT},
}
"""The members with which each provider of Chat Completions expects the reasoning."""


def sent_back(api: Api, dialect: DialectName) -> list[Any]:
    """Return the items of the next request from the response to the last output. `dialect` is the provider of Chat
    Completions.
    """
    match api:
        case "chat":
            calls: list[dict[str, Any]] = [
                {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in CALLS
            ]
            if dialect == "gemini":
                calls[0]["extra_content"] = {"google": {"thought_signature": signature_of(IDS[0])}}
            return [
                {"role": "assistant", "content": "Looking.", "tool_calls": calls, **FIELDS[dialect]},
                *({"role": "tool", "tool_call_id": one.call_id, "content": OUTPUT} for one in CALLS),
            ]
        case "responses":
            text = [{"type": "output_text", "text": "Looking."}]
            return [
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]},
                {"type": "message", "role": "assistant", "id": "msg_2", "content": text},
                *(
                    item
                    for number, one in enumerate(CALLS, 3)
                    for item in (
                        {
                            "type": "function_call",
                            "id": f"fc_{number}",
                            "call_id": one.call_id,
                            "name": one.name,
                            "arguments": one.arguments,
                        },
                        {"type": "function_call_output", "call_id": one.call_id, "output": OUTPUT},
                    )
                ),
            ]
        case "anthropic":
            results = [{"type": "tool_result", "tool_use_id": one.call_id, "content": OUTPUT} for one in CALLS]
            spoken = [
                {"type": "thinking", "thinking": THOUGHT, "signature": signature_of(THOUGHT)},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": IDS[0], "name": "look", "input": {"at": "one"}},
                {"type": "tool_use", "id": IDS[1], "name": "look", "input": {"at": "two"}},
            ]
            return [{"role": "assistant", "content": spoken}, {"role": "user", "content": results}]
