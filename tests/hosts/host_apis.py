"""The four model APIs that hosts speak, as far as a stand-in needs them.

Each API reads a request into a `View` (what the model sees) and writes a `Decision` as a streamed
answer: Anthropic Messages, OpenAI Responses, OpenAI Chat Completions, Gemini.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

__all__ = ["API_BY_PATH", "CallTool", "Decision", "Say", "View"]


@dataclass(frozen=True)
class View:
    """The content of one request to the host's model."""

    tools: tuple[str, ...]
    results: tuple[str, ...]
    """The texts of all tool results so far, oldest first."""
    definitions: tuple[Any, ...] = field(default=(), repr=False)
    """The tools as the host describes them to its model."""


@dataclass(frozen=True)
class Say:
    """A decision to answer with a text, which ends the run of the host."""

    text: str


@dataclass(frozen=True)
class CallTool:
    """A decision to call one tool.

    The tool is identified by the end of its name, because hosts add prefixes to the names of MCP tools, and some
    hosts change `-`.
    """

    tool: str
    arguments: dict[str, Any]

    def name(self, tools: Iterable[str]) -> str:
        """Return the name under which the host offers this tool."""
        end = re.escape(self.tool).replace(r"\-", "[-_]")
        matches = [name for name in tools if re.search(rf"(^|[_.]){end}$", name)]
        if len(matches) != 1:
            raise LookupError(f"the host offers {matches} for {self.tool}, of {tuple(tools)}")
        return matches[0]


Decision = Say | CallTool
_ids: Final = count(1)


class Api(Protocol):
    def view(self, request: Any) -> View: ...
    def encode(self, decision: Decision, request: Any, path: str) -> tuple[str, bytes]: ...


def _sse(events: Iterable[tuple[str | None, Any]]) -> tuple[str, bytes]:
    lines = []
    for name, data in events:
        if name is not None:
            lines.append(f"event: {name}\n")
        lines.append(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")
    return "text/event-stream", "".join(lines).encode()


def _texts(content: Any) -> str:
    """Join the texts of a content that is a string, a part, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text", "")) or json.dumps(content)
    return "\n".join(map(_texts, content or ()))


class Messages:
    """Anthropic Messages."""

    def view(self, request: Any) -> View:
        tools = request.get("tools") or []
        blocks = [
            block
            for message in request["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        results = [_texts(block.get("content")) for block in blocks if block["type"] == "tool_result"]
        return View(tuple(tool["name"] for tool in tools), tuple(results), tuple(tools))

    def encode(self, decision: Decision, request: Any, path: str) -> tuple[str, bytes]:
        if path.endswith("count_tokens"):
            return "application/json", b'{"input_tokens": 10}'
        names = [tool["name"] for tool in request.get("tools") or []]
        usage = {"input_tokens": 10, "output_tokens": 5}
        message = {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": request["model"]}
        if isinstance(decision, Say):
            whole: dict[str, Any] = {"type": "text", "text": decision.text}
            start: dict[str, Any] = {"type": "text", "text": ""}
            delta: dict[str, Any] = {"type": "text_delta", "text": decision.text}
            reason = "end_turn"
        else:
            whole = {
                "type": "tool_use",
                "id": f"toolu_{next(_ids)}",
                "name": decision.name(names),
                "input": decision.arguments,
            }
            start = {**whole, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(decision.arguments)}
            reason = "tool_use"
        if not request.get("stream"):
            answer = {**message, "content": [whole], "stop_reason": reason, "stop_sequence": None, "usage": usage}
            return "application/json", json.dumps(answer).encode()

        begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        events: list[tuple[str, Any]] = [
            ("message_start", {"message": begun}),
            ("content_block_start", {"index": 0, "content_block": start}),
            ("content_block_delta", {"index": 0, "delta": delta}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}),
            ("message_stop", {}),
        ]
        return _sse((name, {"type": name, **data}) for name, data in events)


class Responses:
    """OpenAI Responses."""

    def view(self, request: Any) -> View:
        tools = list(_flat(request.get("tools") or []))
        outputs = [item for item in request["input"] if item.get("type") in _OUTPUTS]
        results = [_texts(item.get("output") if "output" in item else item) for item in outputs]
        return View(tuple(tool.get("name", "") for tool in tools), tuple(results), tuple(tools))

    def encode(self, decision: Decision, request: Any, path: str) -> tuple[str, bytes]:
        number = next(_ids)
        item: dict[str, Any]
        if isinstance(decision, Say):
            item = {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": decision.text, "annotations": []}],
            }
        else:
            tools = list(_flat(request.get("tools") or []))
            name = decision.name([tool.get("name", "") for tool in tools])
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": name,
                "arguments": json.dumps(decision.arguments),
                "status": "completed",
            }
            namespace = next(tool.get("namespace") for tool in tools if tool.get("name") == name)
            if namespace is not None:
                item["namespace"] = namespace
        response = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        done = {**response, "status": "completed", "output": [item], "usage": usage}
        events: list[tuple[str, Any]] = [
            ("response.created", {"response": response}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": done}),
        ]
        return _sse((name, {"type": name, **data}) for name, data in events)


_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output", "mcp_tool_call_output")


def _flat(tools: Iterable[Any], namespace: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the tools, including those of a namespace."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from _flat(tool.get("tools") or [], tool.get("name"))
        else:
            yield tool if namespace is None else {**tool, "namespace": namespace}


class Chat:
    """OpenAI Chat Completions."""

    def view(self, request: Any) -> View:
        tools = [tool["function"] for tool in request.get("tools") or []]
        results = [_texts(message["content"]) for message in request["messages"] if message["role"] == "tool"]
        return View(tuple(tool["name"] for tool in tools), tuple(results), tuple(tools))

    def encode(self, decision: Decision, request: Any, path: str) -> tuple[str, bytes]:
        number = next(_ids)
        base = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": request["model"],
        }
        message: dict[str, Any]
        if isinstance(decision, Say):
            message, reason = {"role": "assistant", "content": decision.text}, "stop"
        else:
            names = [tool["function"]["name"] for tool in request.get("tools") or []]
            function = {"name": decision.name(names), "arguments": json.dumps(decision.arguments)}
            call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            answer = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
            return "application/json", json.dumps(answer).encode()
        chunks: list[tuple[str | None, Any]] = [
            (None, {**base, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}),
            (None, {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}),
            (None, "[DONE]"),
        ]
        return _sse(chunks)


class Gemini:
    """The Gemini API."""

    def view(self, request: Any) -> View:
        tools = [
            function for tool in request.get("tools") or [] for function in tool.get("functionDeclarations", ())
        ]
        parts = [part for content in request.get("contents") or [] for part in content.get("parts", ())]
        responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
        results = [
            _texts(answer["response"].get("output") or json.dumps(answer["response"])) for answer in responses
        ]
        return View(tuple(tool["name"] for tool in tools), tuple(results), tuple(tools))

    def encode(self, decision: Decision, request: Any, path: str) -> tuple[str, bytes]:
        if path.endswith("countTokens"):
            return "application/json", b'{"totalTokens": 10}'
        part: dict[str, Any]
        if isinstance(decision, Say):
            part = {"text": decision.text}
        else:
            name = decision.name(self.view(request).tools)
            part = {"functionCall": {"id": f"call_{next(_ids)}", "name": name, "args": decision.arguments}}
        answer = {
            "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
        }
        if path.endswith("streamGenerateContent"):
            return _sse([(None, answer)])
        return "application/json", json.dumps(answer).encode()


API_BY_PATH: Final[tuple[tuple[re.Pattern[str], Api], ...]] = (
    (re.compile(r"/v1/messages"), Messages()),
    (re.compile(r"/responses$"), Responses()),
    (re.compile(r"/chat/completions$"), Chat()),
    (re.compile(r"/models/[^/]+:"), Gemini()),
)
