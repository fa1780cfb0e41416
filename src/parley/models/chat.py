"""Sends requests to the Chat Completions API.

`chat_reply.py` decodes the replies. Providers differ in how they stream reasoning, and in which reasoning they
require in the next request. docs/protocol.md#model-requests has the rules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, assert_never

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from parley.config.types import Settings
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.errors import UnexpectedStatus
from parley.models.answer_format import named_schema
from parley.models.chat_reply import ChatDecoder
from parley.models.content import file_data_url, flaw_of, is_pdf, joined_text, left_out, refusal, text_in
from parley.models.endpoint import Endpoint, origin_of
from parley.models.http import Http
from parley.models.parts import encode_body, parts_of
from parley.models.payloads import read_json
from parley.ports.clock import Clock
from parley.ports.model import Chunk, ModelRequest, ToolSpec
from parley.wire.items import FileItem, ImageItem, InputItem, LongTextItem, TextItem, is_text

__all__ = ["ChatModel", "encode_chat"]


WEB_SEARCH: Final = {"type": "openrouter:web_search"}
"""The tool with which OpenRouter searches the web. Other providers do not have this tool."""


class ChatModel:
    """A model that is accessed through `/chat/completions`."""

    def __init__(self, settings: Settings, *, http: Http, clock: Clock) -> None:
        self._model = settings.model_name
        self._provider = settings.provider
        self._origin = f"{origin_of(settings.provider)} {settings.model_name}"
        self._endpoint = Endpoint(settings, "/chat/completions", headers={}, http=http, clock=clock)
        self._adjusted = NOT_ADJUSTED
        self._searches = settings.web_search and settings.provider.id == "openrouter"
        self.max_retries = settings.provider.stream_max_retries

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        stream_usage = self._provider.stream_usage
        while True:
            body = encode_chat(
                request,
                model=self._model,
                stream_usage=stream_usage,
                searches=self._searches,
                to=self._origin,
                adjusted=self._adjusted,
            )
            decoder = ChatDecoder(stream_usage=stream_usage, by=self._origin, limits=self._provider)
            try:
                async with aclosing(self._endpoint.stream(body, decoder)) as batches:
                    async for batch in batches:
                        yield batch
                return
            except UnexpectedStatus as refused:
                adjusted = self._adjusted.after(refused)
                if adjusted == self._adjusted:
                    raise
                self._adjusted = adjusted

    def why_unsupported(self, item: InputItem) -> str | None:
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


EMPTY_REASONING: Final = " "
"""The text that is sent in place of missing reasoning if the provider requires reasoning. The text is a space,
because Kimi does not accept empty text.
"""

UNSIGNED: Final = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""Google's documented placeholder for the thought signature of a tool call that another model made."""


REASONING: Final = ("reasoning", "reasoning_content", "reasoning_details")
"""The names of the members of a message that may contain reasoning."""

NOT_ACCEPTED: Final = re.compile(
    "unsupported|not supported|not permitted|not allowed|extra_forbidden|unrecognised|additional propert"
    "|unknown (?:name|field|parameter|property|argument)",
    re.IGNORECASE,
)
"""The pattern of the error message with which a provider rejects a member that it does not accept."""

SHORT_IDS: Final = "length of 9"
"""A part of the error message of Mistral's models, which accept only tool call ids of nine letters and digits."""
_SHORT_ID: Final = re.compile("[a-zA-Z0-9]{9}")


class Adjustments(Struct, frozen=True, kw_only=True):
    """The changes that a provider needs in requests, as learned from its error messages.

    Messages from another model, or messages that an older version of Parley stored, may need such changes.
    """

    reasoning_content: bool = False
    """True to add the member `reasoning_content` to messages that lack this member."""
    thought_signature: bool = False
    """True to add a thought signature to the first tool call of a response if this call lacks one."""
    left_out: frozenset[str] = frozenset()
    """The names of the members with reasoning that are left out because the provider does not accept them."""
    short_ids: bool = False
    """True to replace the ids of tool calls with ids of nine letters and digits."""

    def after(self, refused: UnexpectedStatus) -> Adjustments:
        """Return the adjustments for sending a request again after the provider has refused it with the error
        `refused`. The body of the error names the member that is missing or not accepted.
        """
        if refused.status not in (400, 422):
            return self
        short_ids = self.short_ids or SHORT_IDS in refused.body
        if NOT_ACCEPTED.search(refused.body):
            named = {name for name in REASONING if re.search(rf"\b{name}\b", refused.body)}
            return replace(self, left_out=self.left_out | named, short_ids=short_ids)
        return replace(
            self,
            reasoning_content=self.reasoning_content or "reasoning_content" in refused.body,
            thought_signature=self.thought_signature or "thought_signature" in refused.body,
            short_ids=short_ids,
        )

    def call_id(self, call_id: str) -> str:
        """Return the id of a tool call in a form that the provider accepts: unchanged, or as nine letters and
        digits if `short_ids` is True.
        """
        if not self.short_ids or _SHORT_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


NOT_ADJUSTED: Final = Adjustments()


def encode_chat(
    request: ModelRequest,
    *,
    model: str,
    stream_usage: bool,
    searches: bool = False,
    to: str = "",
    adjusted: Adjustments = NOT_ADJUSTED,
) -> bytes:
    """Return the JSON body of a request to the Chat Completions API
    (docs/protocol.md#model-requests).

    `to` names the provider and the model. Reasoning is sent back only to the provider and model that produced it.
    If `stream_usage` is True, the request asks for token counts. If `searches` is True, the request contains the
    tool with which OpenRouter searches the web. `adjusted` contains the changes that the provider needs.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": _system(request)},
            *({"role": "user", "content": text} for text in request.context),
            *_messages(request.history, frozenset(request.breaks), to=to, adjusted=adjusted),
        ],
        "stream": True,
    }
    if request.tools:  # providers refuse an empty list
        body["tools"] = [*map(_tool, request.tools), *([WEB_SEARCH] if searches else ())]
    if stream_usage:
        body["stream_options"] = {"include_usage": True}
    if request.output_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": named_schema(request.output_schema)}
    return encode_body(body)


def _system(request: ModelRequest) -> str:
    """Join the instructions and the developer instructions of a request into a single string, because many
    providers accept only one system message and no developer message.
    """
    return "\n\n".join(filter(None, (request.instructions, request.developer_instructions)))


class _Response:
    """One response of the model: an assistant message and the outputs of its tool calls."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.text: str | None = None
        self.calls: dict[str, dict[str, Any]] = {}
        """The tool calls of the response, keyed by call id."""
        self.outputs: list[dict[str, Any]] = []

    def ends_before(self, item: HistoryItem) -> bool:
        """Return whether the item begins the next response. This method is for a history that does not record where
        responses end, such as a history from an old log.
        """
        match item:
            case UserItem() | MessageFields():
                return True
            case MessageItem():
                return self.text is not None or bool(self.calls)
            case CallItem(call_id=call_id):
                return call_id in self.calls
            case _:
                return False

    def add(self, item: HistoryItem, *, to: str, adjusted: Adjustments) -> None:
        match item:
            case MessageFields(fields=fields, by=by):
                if by == to and isinstance(members := read_json(fields), dict):
                    self.fields = members
            case MessageItem(text=text):
                self.text = text
            case CallItem():
                self.calls[item.call_id] = _call(item, to=to, is_first=not self.calls, adjusted=adjusted)
            case OutputItem(call_id=call_id, output=output):
                self.outputs.append({"role": "tool", "tool_call_id": adjusted.call_id(call_id), "content": output})
            case OpaqueItem() | UserItem():
                pass  # reasoning of another API is left out here, and `_messages` yields user messages
            case _:
                assert_never(item)

    def messages(self, adjusted: Adjustments) -> Iterator[dict[str, Any]]:
        if self.text is not None or self.calls:  # providers refuse a message that contains only reasoning
            fields = {name: value for name, value in self.fields.items() if name not in adjusted.left_out}
            thinking = fields.pop("content", None)
            is_filled = adjusted.reasoning_content and "reasoning_content" not in adjusted.left_out
            if "reasoning_content" in fields or is_filled:
                reasoning = fields.pop("reasoning_content", "")
                if reasoning or self.calls or is_filled:
                    fields["reasoning_content"] = reasoning or EMPTY_REASONING
            content: Any = self.text
            if thinking is not None:
                content = [*thinking, *([{"type": "text", "text": self.text}] if self.text else ())]
            message: dict[str, Any] = {"role": "assistant", "content": content, **fields}
            if self.calls:
                message["tool_calls"] = list(self.calls.values())
            yield message
        yield from self.outputs


def _messages(
    history: Sequence[HistoryItem], breaks: frozenset[int], *, to: str, adjusted: Adjustments
) -> Iterator[dict[str, Any]]:
    """Yield the messages of the history. Each response is one assistant message, followed by the outputs of its
    tool calls. `breaks` are the indices in `history` at which a response has ended, and `to` names the provider and
    the model. `adjusted` contains the changes that the provider needs.
    """
    response = _Response()
    for place, item in enumerate(history):
        if place in breaks or response.ends_before(item):
            yield from response.messages(adjusted)
            response = _Response()
        if isinstance(item, UserItem):
            yield {"role": "user", "content": _content(item.content)}
        else:
            response.add(item, to=to, adjusted=adjusted)
    yield from response.messages(adjusted)


def _call(item: CallItem, *, to: str, is_first: bool, adjusted: Adjustments) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    call: dict[str, Any] = {"id": adjusted.call_id(item.call_id), "type": "function", "function": function}
    if item.extra_content is not UNSET and item.by == to:
        call["extra_content"] = item.extra_content
    elif adjusted.thought_signature and is_first:
        call["extra_content"] = UNSIGNED
    return call


def _content(content: tuple[InputItem, ...]) -> str | Raw | list[Any]:
    """Return the content of a user message: a single string if all items are text; otherwise a list of parts."""
    if is_text(content):
        return joined_text(content)
    return parts_of(content, _part)


class _TextPart(Struct, frozen=True, tag_field="type", tag="text", gc=False):
    """A text part of a message. It is not a dict, because a dict would take several times the memory and a message
    may have very many parts.
    """

    text: str | Raw


def _part(item: InputItem) -> dict[str, Any] | _TextPart:
    match item:
        case LongTextItem(encoded=encoded):
            return _TextPart(encoded)
        case TextItem(text=text):
            return _TextPart(text)
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
