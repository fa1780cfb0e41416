"""Sends requests to the Anthropic Messages API. `anthropic_reply.py` decodes the replies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, assert_never
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from parley.config.types import Provider, Settings
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.models.anthropic_reply import THINKING, AnthropicDecoder
from parley.models.content import flaw_of, is_pdf, left_out, refusal, text_in
from parley.models.endpoint import Endpoint, origin_of
from parley.models.http import Http
from parley.models.parts import encode_body, parts_of
from parley.models.payloads import read_payload
from parley.ports.clock import Clock
from parley.ports.model import Chunk, ModelRequest, ToolSpec
from parley.wire.items import FileItem, ImageItem, InputItem, LongTextItem, TextItem

__all__ = ["AnthropicModel", "api_version", "encode_anthropic"]

HOST: Final = "api.anthropic.com"
NEWEST_VERSION: Final = "2026-10-21"
"""The newest version of the API, which is used only for Anthropic's own service."""
COMMON_VERSION: Final = "2023-06-01"
"""The version of the API that is used for all services except Anthropic's own service."""

DEFAULT_MAX_OUTPUT_TOKENS: Final = 32_000
"""The maximum number of tokens in a response if the settings contain no limit. The API requires a limit, and does
not accept a limit that is larger than the model allows.
"""

EFFORTS: Final = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
"""The value of the API's parameter `effort` for each value of the setting `model_reasoning_effort`. The value
`none` is missing, because the parameter is then not sent.
"""

WEB_SEARCH: Final = {"type": "web_search_20250305", "name": "web_search"}
"""The tool with which the provider searches the web."""

_IMAGE: Final = re.compile(r"data:(image/(?:jpeg|png|gif|webp));base64,", re.IGNORECASE)
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID_DIGITS: Final = 24


class AnthropicModel:
    """A model that is accessed through `/v1/messages`."""

    def __init__(self, settings: Settings, *, http: Http, clock: Clock) -> None:
        self._settings = settings
        self._origin = f"{origin_of(settings.provider)} {settings.model_name}"
        path = urlsplit(settings.provider.base_url or "").path.rstrip("/")
        self._endpoint = Endpoint(
            settings,
            "/messages" if path.endswith("/v1") else "/v1/messages",  # base URLs are used with and without `/v1`
            headers={"anthropic-version": api_version(settings.provider)},
            http=http,
            clock=clock,
        )
        self.max_retries = settings.provider.stream_max_retries

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        body = encode_anthropic(request, self._settings, to=self._origin)
        return self._endpoint.stream(body, AnthropicDecoder(by=self._origin, limits=self._settings.provider))

    def why_unsupported(self, item: InputItem) -> str | None:
        if flaw := flaw_of(item):
            return flaw
        match item:
            case ImageItem(file_id=str()) | FileItem(file_id=str()):
                return refusal(item, api="anthropic")
            case ImageItem(image_url=str(url)) if url[:5].lower() == "data:" and not _IMAGE.match(url):
                return f"{refusal(item, api='anthropic')}, which takes only JPEG, PNG, GIF and WebP in base64"
            case FileItem(file_data=str(data)) if not is_pdf(data) and text_in(data) is None:
                return f"{refusal(item, api='anthropic')}, which takes only text and PDF"
            case _:
                return None


def api_version(provider: Provider) -> str:
    return NEWEST_VERSION if urlsplit(provider.base_url or "").hostname == HOST else COMMON_VERSION


# --- the request -----------------------------------------------------------------------


def encode_anthropic(request: ModelRequest, settings: Settings, *, to: str) -> bytes:
    """Return the JSON body of a request to the Messages API (docs/protocol.md#model-requests).

    `to` names the provider and the model. Reasoning is sent back only to the provider and model that produced it.
    """
    body: dict[str, Any] = {
        "model": settings.model_name,
        "max_tokens": settings.model_max_output_tokens or DEFAULT_MAX_OUTPUT_TOKENS,
        "messages": _messages(request, to=to),
        "stream": True,
        "cache_control": {"type": "ephemeral"},
    }
    if system := "\n\n".join(filter(None, (request.instructions, request.developer_instructions))):
        body["system"] = system
    if request.tools:
        body["tools"] = [*map(_tool, request.tools), *([WEB_SEARCH] if settings.web_search else ())]
    if settings.model_thinking_budget is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": settings.model_thinking_budget}
    elif settings.model_thinking is not None:
        body["thinking"] = {"type": settings.model_thinking}
    output: dict[str, Any] = {}
    if effort := EFFORTS.get(settings.model_reasoning_effort or ""):
        output["effort"] = effort
    if request.output_schema is not None:
        output["format"] = {"type": "json_schema", "schema": request.output_schema}
    if output:
        body["output_config"] = output
    return encode_body(body)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


class _Messages:
    """Builds the messages of a request. The roles of the messages alternate, and each response of the model is one
    assistant message.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._spoken: list[Any] = []
        """The content blocks of the current response of the model."""
        self._calls: set[str] = set()
        self._outputs: list[Any] = []
        self._result: dict[str, Any] | None = None
        """The output of the only tool call in the last response, if no other block follows this output; otherwise
        None.
        """

    def ends_before(self, item: HistoryItem) -> bool:
        """Return whether the item begins the next response. This method is for a history that does not record where
        responses end.
        """
        return isinstance(item, UserItem) or (isinstance(item, CallItem) and item.call_id in self._calls)

    def add(self, item: HistoryItem, *, to: str) -> None:
        match item:
            case UserItem(content=content):
                self._add("user", _content(content), is_image=all(isinstance(one, ImageItem) for one in content))
            case MessageItem(text=text):
                if text and not text.isspace():
                    self._spoken.append({"type": "text", "text": text})
            case OpaqueItem(verbatim=verbatim, by=by):
                if by == to:
                    self._spoken.append(verbatim)
            case CallItem(call_id=call_id):
                self._calls.add(call_id)
                self._spoken.append(_call(item))
            case OutputItem(call_id=call_id, output=output):
                self._outputs.append({"type": "tool_result", "tool_use_id": _call_id(call_id), "content": output})
            case MessageFields():
                pass  # this is reasoning of Chat Completions
            case _:
                assert_never(item)

    def end_response(self) -> None:
        """Add the assistant message of the current response.

        Then begin the next user message with the outputs of the tool calls in the response.
        """
        spoken, outputs = self._spoken, self._outputs
        self._spoken, self._outputs, self._calls = [], [], set()
        while spoken and isinstance(spoken[-1], Raw) and _is_thinking(spoken[-1]):
            spoken.pop()  # the API refuses a message that ends with reasoning
        self._add("assistant", spoken)
        self._add("user", outputs)
        self._result = outputs[0] if len(outputs) == 1 else None

    def _add(self, role: str, content: list[Any], *, is_image: bool = False) -> None:
        """Add content blocks to the last message if it has the role `role`; otherwise begin a message with these
        blocks.

        Images that directly follow the output of the only tool call in a response become a part of that output.
        """
        if not content:
            return
        result, self._result = self._result, None
        if result is not None and is_image:
            text = result["content"]
            result["content"] = [*([{"type": "text", "text": text}] if text.strip() else ()), *content]
        elif self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += content
        else:
            self.messages.append({"role": role, "content": content})


def _messages(request: ModelRequest, *, to: str) -> list[dict[str, Any]]:
    messages = _Messages()
    for text in request.context:
        messages.add(UserItem((TextItem(text=text),)), to=to)
    breaks = frozenset(request.breaks)
    for place, item in enumerate(request.history):
        if place in breaks or messages.ends_before(item):
            messages.end_response()
        messages.add(item, to=to)
    messages.end_response()
    return messages.messages


class _Kind(Struct, frozen=True):
    type: str


_KIND: Final = msgspec.json.Decoder(_Kind)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


def _is_thinking(block: Raw) -> bool:
    kind = read_payload(_KIND, block)
    return kind is not None and kind.type in THINKING


def _call(item: CallItem) -> dict[str, Any]:
    """Return the content block for a tool call.

    The API accepts only an object as the input of a tool. If the arguments are not an object, they are wrapped in
    an object.
    """
    encoded = item.arguments.encode("utf-8", "replace")
    is_object = read_payload(_OBJECT, encoded) is not None
    value: Any = Raw(encoded) if is_object else {"arguments": item.arguments}
    return {"type": "tool_use", "id": _call_id(item.call_id), "name": item.name, "input": value}


def _call_id(call_id: str) -> str:
    """Return the id of a tool call in a form that the API accepts. An id that the API does not accept is replaced
    with an id that is derived from it. Ids from other APIs may contain characters that this API does not accept.
    """
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:_ID_DIGITS]}"


def _content(content: tuple[InputItem, ...]) -> list[Any]:
    """Return the content blocks of a user message. Text items that consist of whitespace are left out, because the
    API does not accept them.
    """
    return parts_of(tuple(item for item in content if not _is_blank(item)), _part)


def _is_blank(item: InputItem) -> bool:
    return isinstance(item, TextItem) and not isinstance(item, LongTextItem) and not item.text.strip()


class _TextBlock(Struct, frozen=True, tag_field="type", tag="text", gc=False):
    """A text block of a message. It is not a dict, because a dict would take several times the memory and a message
    may have very many blocks.
    """

    text: str | Raw


def _part(item: InputItem) -> dict[str, Any] | _TextBlock:
    match item:
        case LongTextItem(encoded=encoded):
            return _TextBlock(encoded)
        case TextItem(text=text):
            return _TextBlock(text)
        case ImageItem(image_url=str(url)) if (found := _IMAGE.match(url)) is not None:
            source = {"type": "base64", "media_type": found[1].lower(), "data": url[found.end() :]}
            return {"type": "image", "source": source}
        case ImageItem(image_url=str(url)) if url[:5].lower() != "data:":
            return {"type": "image", "source": {"type": "url", "url": url}}
        case FileItem(file_data=str(data), filename=str(filename)) if is_pdf(data):
            source = {"type": "base64", "media_type": "application/pdf", "data": data}
            return {"type": "document", "source": source, "title": filename}
        case FileItem(file_data=str(data), filename=str(filename)) if (words := text_in(data)) is not None:
            return _TextBlock(f"File {filename}:\n\n{words}")
        case FileItem(file_url=str(url)):
            return {"type": "document", "source": {"type": "url", "url": url}}
        case _:
            return _TextBlock(left_out(item, api="anthropic"))
