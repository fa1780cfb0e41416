"""The chat completions API: what is asked, and what its stream of events means.

The decoder is pure and fed by hand; `ChatModel` puts it at the end of a connection. All that is
peculiar to this API stays here: calls in fragments, reasoning in three shapes, several ways to end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Final, assert_never
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.config.types import Settings
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageItem, OpaqueItem
from parley.errors import StreamDisconnected
from parley.models.content import file_data_url, flaw_of, is_pdf, left_out, refusal, text_in
from parley.models.endpoint import Endpoint
from parley.models.http import Http
from parley.models.payloads import read_payload, text_or_json
from parley.models.usage import InputDetails, OutputDetails, token_count
from parley.ports.clock import Clock
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    ModelRequest,
    RawReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
    ToolSpec,
)
from parley.wire.events import TokenCount
from parley.wire.framing import SseFramer
from parley.wire.ids import CallId
from parley.wire.items import FileItem, ImageItem, InputItem, TextItem, text_of
from parley.wire.jsonrpc import encode

__all__ = ["ChatDecoder", "ChatModel", "encode_chat"]


class ChatModel:
    """A model behind `/chat/completions`."""

    def __init__(self, settings: Settings, *, http: Http, environ: Mapping[str, str], clock: Clock) -> None:
        self._model = settings.model
        self._stream_usage = settings.provider.stream_usage
        self._endpoint = Endpoint(
            settings, "/chat/completions", headers={}, http=http, environ=environ, clock=clock
        )
        self.max_retries = settings.provider.stream_max_retries

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        body = encode_chat(request, model=self._model, stream_usage=self._stream_usage)
        return self._endpoint.stream(body, ChatDecoder(stream_usage=self._stream_usage))

    def cannot_carry(self, item: InputItem) -> str | None:
        if flaw := flaw_of(item):
            return flaw
        match item:
            case ImageItem(file_id=str()) | FileItem(file_url=str()):
                return refusal(item, api="chat")
            case FileItem(file_data=str(data)) if not is_pdf(data) and text_in(data) is None:
                return f"{refusal(item, api='chat')}, which takes only text and PDF"
            case _:
                return None


# --- the request -----------------------------------------------------------------------


def encode_chat(request: ModelRequest, *, model: str, stream_usage: bool) -> bytes:
    """The body of the request (docs/protocol.md, requests to the model)."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": request.instructions},
            *({"role": "user", "content": text} for text in request.context),
            *_messages(request.history),
        ],
        "stream": True,
    }
    if request.tools:  # providers refuse an empty list
        body["tools"] = [_tool(tool) for tool in request.tools]
    if stream_usage:
        body["stream_options"] = {"include_usage": True}
    return encode(body)


def _messages(history: Sequence[HistoryItem]) -> Iterator[dict[str, Any]]:
    for item in history:
        match item:
            case UserItem():
                yield {"role": "user", "content": _content(item.content)}
            case MessageItem(text=text):
                yield {"role": "assistant", "content": text}
            case CallItem(call_id=call_id, name=name, arguments=arguments):
                function = {"name": name, "arguments": arguments}
                call = {"id": call_id, "type": "function", "function": function}
                yield {"role": "assistant", "content": None, "tool_calls": [call]}
            case OutputItem(call_id=call_id, output=output):
                yield {"role": "tool", "tool_call_id": call_id, "content": output}
            case OpaqueItem():
                pass  # the thoughts of another API
            case _:
                assert_never(item)


def _content(content: tuple[InputItem, ...]) -> str | list[dict[str, Any]]:
    """Texts alone are one text, which every provider takes; parts are for what is more."""
    if all(isinstance(item, TextItem) for item in content):
        return text_of(content)
    return [_part(item) for item in content]


def _part(item: InputItem) -> dict[str, Any]:
    match item:
        case TextItem(text=text):
            return {"type": "text", "text": text}
        case ImageItem(image_url=str(url), detail=str(detail)):
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case ImageItem(image_url=str(url)):
            return {"type": "image_url", "image_url": {"url": url}}
        case FileItem(file_data=str(data), filename=str(filename)) if is_pdf(data):
            return {"type": "file", "file": {"file_data": file_data_url(data, filename), "filename": filename}}
        case FileItem(file_data=str(data), filename=str(filename)) if (words := text_in(data)) is not None:
            return {"type": "text", "text": f"File {filename}:\n\n{words}"}
        case FileItem(file_id=str(file_id)):
            return {"type": "file", "file": {"file_id": file_id}}
        case _:
            return {"type": "text", "text": left_out(item, api="chat")}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "strict": False,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


# --- the reply -------------------------------------------------------------------------


class _Thought(Struct, frozen=True, gc=False):
    text: str | None = None
    content: str | None = None


class _Function(Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: Raw | UnsetType = UNSET


class _CallPiece(Struct, frozen=True, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, frozen=True, gc=False):
    content: str | None = None
    reasoning: str | _Thought | None = None
    tool_calls: tuple[_CallPiece, ...] | None = None


class _Choice(Struct, frozen=True, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Fault(Struct, frozen=True, gc=False):
    message: str | None = None


class _Event(Struct, frozen=True, gc=False):
    choices: tuple[_Choice, ...] | None = None
    error: _Fault | None = None
    """Providers that fail in mid-sentence have no other place to say so."""
    usage: Raw | UnsetType = UNSET
    """Read only where it is wanted: a count of an odd shape must not cost the text beside it."""


class _Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_USAGE: Final = msgspec.json.Decoder(_Usage | None)

END_MARK: Final = b"[DONE]"


class _Call:
    """A call as far as it has come."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def extend(self, piece: _CallPiece) -> None:
        self.id = self.id or piece.id or ""
        if piece.function is not None:
            self.name = self.name or piece.function.name or ""
            self.arguments.append(text_or_json(piece.function.arguments)[0])

    def item(self) -> CallItem:
        call_id = CallId(self.id or f"call_{uuid4()}")  # its output has to name it
        return CallItem(call_id=call_id, name=self.name, arguments="".join(self.arguments))


class ChatDecoder:
    """One reply. Deltas come as they are fed; what they add up to comes with `end`.

    A finish reason ends the response, and so do the end mark and the end of the body. Where token
    counts were asked for they come after the finish reason, and are waited for a little.
    """

    def __init__(self, *, stream_usage: bool) -> None:
        self.done = self.whole = False
        self._stream_usage = stream_usage
        self._framer = SseFramer()
        self._failure: str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._usage: TokenCount | None = None

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        decode = _EVENT.decode
        for payload in self._framer.feed(data):
            event: _Event | None
            try:
                event = decode(payload)
            except (ValueError, RecursionError):
                if payload.strip() == END_MARK:
                    self.done = True
                    break
                event = read_payload(_EVENT, payload)
                if event is None:
                    continue
            if event.choices and not self.whole:
                choice = event.choices[0]
                if (delta := choice.delta) is not None:
                    if delta.reasoning and (thought := _thought(delta.reasoning)):
                        self._reasoning.append(thought)
                        chunks.append(RawReasoningDelta(thought))
                    if text := delta.content:
                        if self._reasoning:
                            chunks.append(self._thought_through())
                        self._text.append(text)
                        chunks.append(TextDelta(text))
                    for piece in delta.tool_calls or ():
                        self._call_of(piece).extend(piece)
                self.whole = bool(choice.finish_reason)
            elif event.error is not None and not self.whole:
                self._failure = event.error.message or "the provider gave no reason"
                self.done = True
                break
            if self._stream_usage and event.usage is not UNSET:
                self._usage = _token_count(event.usage) or self._usage
            if self.whole and not (self._stream_usage and self._usage is None):
                self.done = True
                break
        return chunks

    def end(self) -> list[Chunk]:
        if self._failure is not None:
            raise StreamDisconnected(self._failure)
        chunks: list[Chunk] = []
        if self._reasoning:
            chunks.append(self._thought_through())
        if self._text:
            chunks.append(MessageDone(MessageItem(text="".join(self._text))))
        chunks += [CallDone(self._calls[index].item()) for index in sorted(self._calls)]
        chunks.append(ResponseDone(self._usage))
        return chunks

    def _call_of(self, piece: _CallPiece) -> _Call:
        """The call that a piece belongs to. Some providers leave the index out: then a new id is a new call."""
        if piece.index is not None:
            return self._calls.setdefault(piece.index, _Call())
        last = max(self._calls, default=-1)
        if last < 0 or (piece.id and piece.id != self._calls[last].id):
            last += 1
        return self._calls.setdefault(last, _Call())

    def _thought_through(self) -> ReasoningDone:
        """A thought is whole when the model begins to speak."""
        raw, self._reasoning = "".join(self._reasoning), []
        return ReasoningDone(summaries=(), raw=(raw,))


def _thought(reasoning: str | _Thought) -> str:
    if isinstance(reasoning, str):
        return reasoning
    return reasoning.text or reasoning.content or ""


def _token_count(raw: Raw) -> TokenCount | None:
    usage = read_payload(_USAGE, bytes(raw))
    if usage is None:
        return None
    return token_count(
        given=usage.prompt_tokens,
        made=usage.completion_tokens,
        total=usage.total_tokens,
        given_details=usage.prompt_tokens_details,
        made_details=usage.completion_tokens_details,
    )
