"""Sends requests to the Responses API. `responses_reply.py` decodes the replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Final, assert_never

from msgspec import UNSET, Raw, Struct

from parley.config.family import family
from parley.config.types import Settings
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.models.answer_format import named_schema
from parley.models.content import file_data_url, flaw_of, left_out
from parley.models.endpoint import Endpoint, origin_of
from parley.models.http import Http
from parley.models.parts import encode_body, parts_of
from parley.models.responses_reply import LOCAL_SHELL, ResponsesDecoder
from parley.ports.clock import Clock
from parley.ports.model import (
    Chunk,
    ModelRequest,
    ToolSpec,
)
from parley.wire.ids import ConversationId
from parley.wire.items import FileItem, ImageItem, InputItem, LongTextItem, TextItem

__all__ = ["ResponsesModel", "encode_responses"]

REASONING_MODELS: Final = ("o3", "o4-mini", "codex-mini-latest", "gpt-5")
"""Name prefixes of models that support reasoning."""

DEFAULT_EFFORT: Final = "medium"

LOCAL_SHELL_MODEL: Final = "codex-mini-latest"
"""The name prefix of the models that have a built-in shell tool. Their requests contain that tool instead of the
function `shell`.
"""


class ResponsesModel:
    """A model that is accessed through `/responses`."""

    def __init__(
        self,
        settings: Settings,
        conversation: ConversationId,
        *,
        http: Http,
        clock: Clock,
    ) -> None:
        self._settings, self._conversation = settings, conversation
        headers = {
            "openai-beta": "responses=experimental",
            "session_id": conversation,
            "originator": settings.internal_originator,
        }
        self._endpoint = Endpoint(settings, "/responses", headers=headers, http=http, clock=clock)
        self.max_retries = settings.provider.stream_max_retries

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        body = encode_responses(request, self._settings, self._conversation)
        provider = self._settings.provider
        return self._endpoint.stream(body, ResponsesDecoder(by=origin_of(provider), limits=provider))

    def why_unsupported(self, item: InputItem) -> str | None:
        return flaw_of(item)


def encode_responses(request: ModelRequest, settings: Settings, conversation: ConversationId) -> bytes:
    """Return the JSON body of a request to the Responses API (docs/protocol.md#model-requests)."""
    reasoning = _reasoning(settings)
    keeps_nothing = settings.disable_response_storage
    return encode_body(
        {
            "model": settings.model_name,
            "instructions": request.instructions,
            "input": [
                *_developer(request.developer_instructions),
                *map(_context, request.context),
                *_items(request.history, to=origin_of(settings.provider)),
            ],
            "tools": _tools(request, settings),
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": reasoning,
            "store": not keeps_nothing,
            "stream": True,
            # If the provider does not store responses, each request must contain the provider's reasoning.
            "include": [
                *(["reasoning.encrypted_content"] if keeps_nothing and reasoning else ()),
                *(["web_search_call.action.sources"] if settings.web_search else ()),
            ],
            "prompt_cache_key": conversation,
            **_text(request.output_schema),
        }
    )


def _text(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Return a dict with the member `text`, which contains the output schema. The dict is empty if there is no
    schema.
    """
    if schema is None:
        return {}
    return {"text": {"format": {"type": "json_schema", **named_schema(schema)}}}


def _reasoning(settings: Settings) -> dict[str, str] | None:
    is_known = family(settings.model_name).startswith(REASONING_MODELS)
    supported = settings.model_supports_reasoning_summaries or is_known
    if not supported or settings.model_reasoning_effort == "none":
        return None
    reasoning: dict[str, str] = {"effort": settings.model_reasoning_effort or DEFAULT_EFFORT}
    if settings.model_reasoning_summary != "none":
        reasoning["summary"] = settings.model_reasoning_summary
    return reasoning


def _tool(tool: ToolSpec, model: str) -> dict[str, Any]:
    if tool.name == "shell" and family(model).startswith(LOCAL_SHELL_MODEL):
        return {"type": LOCAL_SHELL}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "strict": False,
        "parameters": tool.parameters,
    }


def _tools(request: ModelRequest, settings: Settings) -> list[dict[str, Any]]:
    """Return the tools of a request. If the settings allow the provider's web search, it is included, except in a
    request without tools, such as a request for a summary.
    """
    tools = [_tool(tool, settings.model_name) for tool in request.tools]
    return [*tools, {"type": "web_search"}] if settings.web_search and tools else tools


def _developer(text: str) -> list[dict[str, Any]]:
    content = {"type": "input_text", "text": text}
    return [{"type": "message", "id": None, "role": "developer", "content": [content]}] if text else []


def _context(text: str) -> dict[str, Any]:
    return _said_by_user((TextItem(text=text),))


def _said_by_user(content: tuple[InputItem, ...]) -> dict[str, Any]:
    return {"type": "message", "id": None, "role": "user", "content": parts_of(content, _part)}


class _InputText(Struct, frozen=True, tag_field="type", tag="input_text", gc=False):
    """A text part of a message. It is not a dict, because a dict would take several times the memory and a message
    may have very many parts.
    """

    text: str | Raw


def _part(item: InputItem) -> dict[str, Any] | _InputText:
    match item:
        case LongTextItem(encoded=encoded):
            return _InputText(encoded)
        case TextItem(text=text):
            return _InputText(text)
        case ImageItem(image_url=str(url)):
            return {"type": "input_image", "image_url": url, **_detail(item)}
        case ImageItem(file_id=str(file_id)):
            return {"type": "input_image", "file_id": file_id, **_detail(item)}
        case FileItem(file_data=str(data), filename=str(filename)):
            return {"type": "input_file", "file_data": file_data_url(data, filename), "filename": filename}
        case FileItem(file_url=str(url)):
            return {"type": "input_file", "file_url": url}
        case FileItem(file_id=str(file_id)):
            return {"type": "input_file", "file_id": file_id}
        case _:
            return {"type": "input_text", "text": left_out(item, api="responses")}


def _detail(item: ImageItem) -> dict[str, str]:
    return {"detail": item.detail} if item.detail else {}


def _items(history: Sequence[HistoryItem], *, to: str) -> Iterator[dict[str, Any] | Raw]:
    """Yield the items of the history in the form for the provider `to`.

    Items that this provider or this API does not understand are left out or replaced with text.
    """
    for item in history:
        match item:
            case UserItem():
                yield _said_by_user(item.content)
            case MessageItem(text=text, id=item_id, by=by):
                content = [{"type": "output_text", "text": text}]
                yield {
                    "type": "message",
                    "id": item_id if by in ("", to) else None,
                    "role": "assistant",
                    "content": content,
                }
            case CallItem():
                yield _call(item, to=to)
            case OutputItem(call_id=call_id, output=output):
                yield {"type": "function_call_output", "call_id": call_id, "output": output}
            case OpaqueItem(verbatim=verbatim, by=by):
                if by in ("", to):
                    yield verbatim
            case MessageFields():
                pass  # this is reasoning of Chat Completions
            case _:
                assert_never(item)


def _call(item: CallItem, *, to: str) -> dict[str, Any] | Raw:
    if item.verbatim is not UNSET and item.by in ("", to):
        return item.verbatim
    return {
        "type": "function_call",
        "id": None,
        "name": item.name,
        "arguments": item.arguments,
        "call_id": item.call_id,
    }
