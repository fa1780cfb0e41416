"""Encodes steps as the server-sent events of a model API, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, assert_never

from parley.testing.dialects import DIALECTS, Dialect, details_of, signature_of
from parley.testing.steps import Call, Data, Delay, Hold, Pieces, Reasoning, Step, Usage
from parley.wire.jsonrpc import encode

__all__ = [
    "AnthropicWriter",
    "Api",
    "ChatWriter",
    "Pause",
    "ResponsesWriter",
    "Writer",
    "event",
    "render",
    "writer_for",
]

Api: TypeAlias = Literal["chat", "responses", "anthropic"]
Pause: TypeAlias = Literal[Hold.HOLD] | Delay


class Writer(Protocol):
    """The interface of an object that encodes one response for one model API. Each method returns the server-sent
    events for one part of the response.
    """

    def begin(self) -> Iterable[bytes]: ...
    def text(self, delta: str) -> Iterable[bytes]: ...
    def reasoning(self, text: str) -> Iterable[bytes]: ...
    def call(self, call: Call) -> Iterable[bytes]: ...
    def end(self, usage: Usage | None) -> Iterable[bytes]: ...


def event(data: bytes) -> bytes:
    """Encode data as a server-sent event."""
    return b"data: %b\n\n" % data


def render(writer: Writer, steps: Sequence[Step], *, whole: bool = True) -> Iterator[bytes | Pause]:
    """Yield the events and pauses of a reply. The end of the reply is included only if `whole` is true."""
    usage: Usage | None = None
    yield from writer.begin()
    for step in steps:
        match step:
            case str():
                yield from writer.text(step)
            case Pieces(text=text, size=size):
                for at in range(0, len(text), size):
                    yield from writer.text(text[at : at + size])
            case Reasoning(text=text):
                yield from writer.reasoning(text)
            case Call():
                yield from writer.call(step)
            case Usage():
                usage = step
            case Data(text=text):
                yield event(text.encode())
            case Hold.HOLD | Delay():
                yield step
            case _:
                assert_never(step)
    if whole:
        yield from writer.end(usage)


class ChatWriter:
    """Writes a reply in the format of Chat Completions: deltas, a finish reason and `[DONE]`, in the dialect of a
    provider.
    """

    def __init__(self, *, wants_usage: bool = False, dialect: Dialect = DIALECTS["openai"]) -> None:
        self._wants_usage = wants_usage
        self._dialect = dialect
        self._calls = 0

    def begin(self) -> Iterable[bytes]:
        if self._dialect.comment:
            yield self._dialect.comment
        if self._dialect.reasoning == "reasoning_content":
            yield _choice({"role": "assistant", "content": None, "reasoning_content": ""})

    def text(self, delta: str) -> Iterable[bytes]:
        is_list = self._dialect.reasoning == "parts"
        yield _choice({"content": [{"type": "text", "text": delta}] if is_list else delta})

    def reasoning(self, text: str) -> Iterable[bytes]:
        match self._dialect.reasoning:
            case "reasoning" | "reasoning_content" as name:
                yield _choice({name: text})
            case "parts":
                thinking = [{"type": "text", "text": text}]
                yield _choice({"content": [{"type": "thinking", "thinking": thinking}]})
            case "reasoning_details":
                block = details_of(text)
                signature = block.pop("signature")
                for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
                    details = [{**block, "text": piece}]
                    yield _choice({"content": "", "reasoning": piece, "reasoning_details": details})
                del block["text"]
                yield _choice({"content": "", "reasoning_details": [{**block, "signature": signature}]})

    def call(self, call: Call) -> Iterable[bytes]:
        dialect, arguments = self._dialect, _arguments(call)
        place = {} if dialect.index == "none" else {"index": self._calls if dialect.index == "counted" else 0}
        cut = len(arguments) // 2 if dialect.in_pieces else len(arguments)
        one: dict[str, Any] = {**place, "id": call.call_id, "type": "function"}
        one["function"] = {"name": call.name, "arguments": arguments[:cut]}
        if dialect.has_signatures and not self._calls:
            one["extra_content"] = {"google": {"thought_signature": signature_of(str(call.call_id))}}
        self._calls += 1
        yield _choice({"tool_calls": [one]})
        if cut < len(arguments):
            yield _choice({"tool_calls": [{**place, "function": {"arguments": arguments[cut:]}}]})

    def end(self, usage: Usage | None) -> Iterable[bytes]:
        finish, extra = {"finish_reason": "tool_calls" if self._calls else "stop"}, self._dialect.extra
        spent = usage or Usage()
        tokens = {
            "prompt_tokens": spent.input_tokens,
            "prompt_tokens_details": {"cached_tokens": spent.cached_input_tokens},
            "completion_tokens": spent.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": spent.reasoning_output_tokens},
            "total_tokens": spent.total_tokens,
        }
        place = self._dialect.usage if self._wants_usage or self._dialect.usage == "unasked" else None
        yield _choice({}, {**extra, "usage": tokens} if place == "unasked" else extra, **finish)
        if place == "second_finish":
            yield _choice({"content": ""}, {**extra, "usage": tokens}, **finish)
        elif place == "after":
            yield event(encode({"choices": [], "usage": tokens}))
        yield event(b"[DONE]")


class ResponsesWriter:
    """Writes a reply in the format of the Responses API: text deltas, each complete item, and `response.completed`
    with the usage.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._items = 0

    def begin(self) -> Iterable[bytes]:
        yield _typed("response.created", response={"id": "resp_1"})

    def text(self, delta: str) -> Iterable[bytes]:
        self._text.append(delta)
        yield _typed("response.output_text.delta", delta=delta)

    def reasoning(self, text: str) -> Iterable[bytes]:
        yield from self._end_text()
        yield _typed("response.reasoning_summary_text.delta", delta=text)
        summary = [{"type": "summary_text", "text": text}]
        yield self._done({"type": "reasoning", "id": self._id("rs"), "summary": summary})

    def call(self, call: Call) -> Iterable[bytes]:
        yield from self._end_text()
        item = {"type": "function_call", "id": self._id("fc"), "call_id": call.call_id, "name": call.name}
        yield self._done({**item, "arguments": _arguments(call)})

    def end(self, usage: Usage | None) -> Iterable[bytes]:
        yield from self._end_text()
        spent = usage or Usage()
        tokens = {
            "input_tokens": spent.input_tokens,
            "input_tokens_details": {"cached_tokens": spent.cached_input_tokens},
            "output_tokens": spent.output_tokens,
            "output_tokens_details": {"reasoning_tokens": spent.reasoning_output_tokens},
            "total_tokens": spent.total_tokens,
        }
        yield _typed("response.completed", response={"id": "resp_1", "usage": tokens})

    def _end_text(self) -> Iterable[bytes]:
        if self._text:
            content = [{"type": "output_text", "text": "".join(self._text)}]
            self._text.clear()
            yield self._done({"type": "message", "role": "assistant", "id": self._id("msg"), "content": content})

    def _done(self, item: dict[str, Any]) -> bytes:
        return _typed("response.output_item.done", item=item)

    def _id(self, kind: str) -> str:
        self._items += 1
        return f"{kind}_{self._items}"


class AnthropicWriter:
    """Writes a reply in the format of the Anthropic Messages API: content blocks with deltas, a stop reason with
    the usage, and `message_stop`.
    """

    def __init__(self) -> None:
        self._blocks = 0
        self._has_text = False
        """True if the current content block is a text block."""
        self._has_calls = False

    def begin(self) -> Iterable[bytes]:
        usage = {"input_tokens": 1, "output_tokens": 1}
        yield _typed("message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": usage})
        yield b'event: ping\ndata: {"type": "ping"}\n\n'

    def text(self, delta: str) -> Iterable[bytes]:
        if not self._has_text:
            yield self._start({"type": "text", "text": ""})
            self._has_text = True
        yield self._delta({"type": "text_delta", "text": delta})

    def reasoning(self, text: str) -> Iterable[bytes]:
        yield from self._end_text()
        yield self._start({"type": "thinking", "thinking": "", "signature": ""})
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield self._delta({"type": "thinking_delta", "thinking": piece})
        yield self._delta({"type": "signature_delta", "signature": signature_of(text)})
        yield self._stop()

    def call(self, call: Call) -> Iterable[bytes]:
        yield from self._end_text()
        self._has_calls = True
        yield self._start({"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}})
        arguments = _arguments(call)
        for piece in ("", arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
            yield self._delta({"type": "input_json_delta", "partial_json": piece})
        yield self._stop()

    def end(self, usage: Usage | None) -> Iterable[bytes]:
        yield from self._end_text()
        spent = usage or Usage()
        tokens = {
            "input_tokens": spent.input_tokens - spent.cached_input_tokens - spent.cache_write_tokens,
            "cache_creation_input_tokens": spent.cache_write_tokens,
            "cache_read_input_tokens": spent.cached_input_tokens,
            "output_tokens": spent.output_tokens,
            "output_tokens_details": {"thinking_tokens": spent.reasoning_output_tokens},
        }
        reason = "tool_use" if self._has_calls else "end_turn"
        yield _typed("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=tokens)
        yield _typed("message_stop")

    def _end_text(self) -> Iterable[bytes]:
        if self._has_text:
            self._has_text = False
            yield self._stop()

    def _start(self, block: dict[str, Any]) -> bytes:
        return _typed("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _typed("content_block_delta", index=self._blocks, delta=delta)

    def _stop(self) -> bytes:
        self._blocks += 1
        return _typed("content_block_stop", index=self._blocks - 1)


def writer_for(api: Api, *, wants_usage: bool = False, dialect: Dialect = DIALECTS["openai"]) -> Writer:
    match api:
        case "chat":
            return ChatWriter(wants_usage=wants_usage, dialect=dialect)
        case "responses":
            return ResponsesWriter()
        case "anthropic":
            return AnthropicWriter()
        case _:
            assert_never(api)


def _arguments(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()


def _choice(delta: dict[str, Any], beside: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    return event(encode({"choices": [{"index": 0, "delta": delta, **more}], **(beside or {})}))


def _typed(kind: str, **fields: Any) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), event(encode({"type": kind, **fields})))
