"""Imitates the differences between providers of Chat Completions, both in their streams and in the requests that
they refuse.

A dialect is an entry of `DIALECTS`. `ChatWriter` writes replies in a dialect. `refused` checks requests as the
provider does: some providers refuse a history without the reasoning that they sent.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from parley.testing.replies import Failure
from parley.wire.jsonrpc import encode

__all__ = ["DIALECTS", "Dialect", "DialectName", "details_of", "refused", "signature_of"]

DialectName: TypeAlias = Literal[
    "openai",
    "deepseek",
    "kimi",
    "gemini",
    "openrouter",
    "ollama",
    "vllm",
    "mistral",
    "llama.cpp",
    "groq",
    "lmstudio",
]


class Dialect(Struct, frozen=True, kw_only=True):
    """The deviations of one provider from the Chat Completions API of OpenAI."""

    reasoning: Literal["reasoning", "reasoning_content", "reasoning_details", "parts"] = "reasoning"
    """The name of the field that contains reasoning; `parts` if reasoning is a part of a content list."""
    index: Literal["counted", "zero", "none"] = "counted"
    """The index of a tool call: `counted` if calls are numbered, `zero` if every call has the index 0, `none` if
    the index is missing.
    """
    in_pieces: bool = False
    """True if a tool call arrives in two fragments. The second fragment has no id and no name."""
    has_signatures: bool = False
    """True if the first tool call of a reply has a thought signature in `extra_content`."""
    comment: bytes = b""
    """Bytes that are sent before the first event, such as a comment of server-sent events."""
    usage: Literal["after", "second_finish", "unasked"] = "after"
    """The event that contains the token counts: a separate event after the finish reason (`after`), an event with a
    second finish reason (`second_finish`), or the event with the finish reason, even if the request does not ask
    for token counts (`unasked`).
    """
    extra: dict[str, Any] = {}
    """Additional members for the event that contains the finish reason."""
    requires: Literal["reasoning_content", "reasoning_details", "thought_signature"] | None = None
    """The field that the provider requires in each assistant message with tool calls in the history; None if no
    field is required.
    """
    takes_empty_reasoning: bool = True
    has_short_ids: bool = False
    """True if the ids of tool calls must consist of nine letters and digits."""


DIALECTS: Final[dict[DialectName, Dialect]] = {
    "openai": Dialect(),
    "deepseek": Dialect(reasoning="reasoning_content", in_pieces=True, requires="reasoning_content"),
    "kimi": Dialect(
        reasoning="reasoning_content", in_pieces=True, requires="reasoning_content", takes_empty_reasoning=False
    ),
    "gemini": Dialect(index="zero", has_signatures=True, requires="thought_signature"),
    "openrouter": Dialect(
        reasoning="reasoning_details",
        in_pieces=True,
        comment=b": OPENROUTER PROCESSING\n\n",
        usage="second_finish",
        extra={"provider": "Scripted"},
        requires="reasoning_details",
    ),
    "ollama": Dialect(index="zero"),
    "vllm": Dialect(in_pieces=True),
    "mistral": Dialect(reasoning="parts", index="none", usage="unasked", has_short_ids=True),
    "llama.cpp": Dialect(
        reasoning="reasoning_content", in_pieces=True, extra={"timings": {"prompt_n": 1, "predicted_n": 1}}
    ),
    "groq": Dialect(extra={"x_groq": {"id": "req_1"}}),
    "lmstudio": Dialect(reasoning="reasoning_content", in_pieces=True),
}
assert tuple(DIALECTS) == get_args(DialectName)


_SHORT_ID: Final = re.compile("[a-zA-Z0-9]{9}")


def signature_of(seed: str) -> str:
    """Return the signature that the scripted model sends with a tool call or with a thinking block. `seed` is the
    id of the call or the text of the block.
    """
    return f"signature of {seed}"


def details_of(text: str) -> dict[str, Any]:
    """Return the `reasoning_details` block that contains the reasoning `text`."""
    return {
        "type": "reasoning.text",
        "text": text,
        "format": "scripted-v1",
        "index": 0,
        "signature": f"signature of {text}",
    }


def refused(dialect: Dialect, body: dict[str, Any]) -> Failure | None:
    """Return the error with which a provider of the given dialect refuses a request; None if the provider accepts
    the request.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    if dialect.usage == "unasked" and "stream_options" in body:
        return _refusal("`stream_options`: extra inputs are not permitted")
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not calls:
            continue
        long_id = next((call["id"] for call in calls if not _SHORT_ID.fullmatch(call["id"])), None)
        if dialect.has_short_ids and long_id is not None:
            return _refusal(f"Tool call id was {long_id} but must be a-z, A-Z, 0-9, with a length of 9.")
        outputs = [later.get("tool_call_id") for later in messages[place + 1 : place + 1 + len(calls)]]
        if outputs != [call["id"] for call in calls]:
            return _refusal("a message with `tool_calls` must be followed by one tool message for each call")
        if dialect.requires is not None and not _has_required(dialect, message):
            return _refusal(f"`{dialect.requires}` is missing in the assistant message at index {place}")
    return None


def _has_required(dialect: Dialect, message: dict[str, Any]) -> bool:
    match dialect.requires:
        case "reasoning_content":
            sent = message.get("reasoning_content")
            return isinstance(sent, str) and (bool(sent) or dialect.takes_empty_reasoning)
        case "reasoning_details":
            blocks = message.get("reasoning_details", [])
            return all(block == details_of(block.get("text", "")) for block in blocks)
        case "thought_signature":
            google = message["tool_calls"][0].get("extra_content", {}).get("google", {})
            known = (signature_of(message["tool_calls"][0]["id"]), "skip_thought_signature_validator")
            return google.get("thought_signature") in known
        case None:
            return True


def _refusal(message: str) -> Failure:
    return Failure(status=400, body=encode({"error": {"message": message, "code": 400}}).decode())
