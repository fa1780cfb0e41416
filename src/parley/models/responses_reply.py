"""Decoder for streamed replies of the Responses API.

The decoder takes bytes and returns chunks. It performs no I/O. Items that only this API understands are stored and
sent back unchanged.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.config.types import ReplyLimits
from parley.conversation.records import CallItem, MessageItem, OpaqueItem
from parley.errors import ModelStreamBroken
from parley.models.payloads import (
    MAX_ERROR_BYTES,
    NO_REASON,
    failure_in,
    message_of,
    read_json,
    read_payload,
    read_piece,
    text_or_json,
)
from parley.models.reply_body import ReplyBody
from parley.models.reply_size import DEFAULT_LIMITS, ReplySize
from parley.models.surrogates import PairJoiner
from parley.models.usage import InputDetails, OutputDetails, token_count
from parley.models.web_search import search_event
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId
from parley.wire.sse import ErrorData

__all__ = ["LOCAL_SHELL", "ResponsesDecoder"]

LOCAL_SHELL: Final = "local_shell"
"""The type of the built-in shell tool, and the tool name in calls of this tool."""

NOT_CLOSED: Final = "stream closed before response.completed"

TEXT_DELTAS: Final = frozenset(
    {
        "response.output_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.function_call_arguments.delta",
    }
)
"""The types of events that contain a fragment of text, reasoning or tool arguments."""

OTHER_DELTAS: Final = frozenset(
    {
        "response.refusal.delta",
        "response.custom_tool_call_input.delta",
        "response.mcp_call_arguments.delta",
        "response.code_interpreter_call_code.delta",
    }
)
"""The types of events that contain a fragment of a refusal or of the input of a tool. Clients see only
the complete item, not these fragments. An event with an empty fragment is ignored.
"""

ITEM_CHARACTERS: Final = 100
"""The number of characters that the size check adds for each item, because an item without text also takes
memory.
"""

ESCAPED_BYTES: Final = 12
"""The maximum number of bytes of one character in JSON: two escapes of six bytes each."""


class _Event(Struct, frozen=True, gc=False):
    type: str
    delta: str | None = None
    item: Raw | UnsetType = UNSET
    response: Raw | UnsetType = UNSET


class _Kind(Struct, frozen=True):
    type: str
    role: str | None = None


class _Part(Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class _Message(Struct, frozen=True):
    content: tuple[_Part, ...]
    id: str | None = None


class _Reasoning(Struct, frozen=True):
    summary: tuple[_Part, ...] | None = None
    content: tuple[_Part, ...] | None = None


class _FunctionCall(Struct, frozen=True):
    call_id: Raw | UnsetType = UNSET
    name: str | None = None
    arguments: Raw | UnsetType = UNSET


class _LocalShellCall(Struct, frozen=True):
    action: Raw | UnsetType = UNSET
    call_id: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET


class _Failed(Struct, frozen=True):
    error: Raw = Raw(b"null")
    message: str | None = None


class _Whole(Struct, frozen=True):
    """A complete response, from a provider that does not stream."""

    output: tuple[Raw, ...]
    status: str | None = None


class _Details(Struct, frozen=True):
    reason: str | None = None


class _Incomplete(Struct, frozen=True):
    incomplete_details: _Details | None = None


class _Usage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class _Completed(Struct, frozen=True):
    usage: _Usage | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_KIND: Final = msgspec.json.Decoder(_Kind)
_MESSAGE: Final = msgspec.json.Decoder(_Message)
_REASONING: Final = msgspec.json.Decoder(_Reasoning)
_FUNCTION_CALL: Final = msgspec.json.Decoder(_FunctionCall)
_LOCAL_SHELL_CALL: Final = msgspec.json.Decoder(_LocalShellCall)
_FAILED: Final = msgspec.json.Decoder(_Failed)
_WHOLE: Final = msgspec.json.Decoder(_Whole)
_INCOMPLETE: Final = msgspec.json.Decoder(_Incomplete)
_COMPLETED: Final = msgspec.json.Decoder(_Completed)


class ResponsesDecoder:
    """Decodes one reply. The reply is complete when the provider reports it as completed or incomplete."""

    def __init__(self, *, by: str = "", limits: ReplyLimits = DEFAULT_LIMITS) -> None:
        """Create a decoder. `by` names the provider that sends the reply. The name is stored with the ids and the
        reasoning in the reply, because no other provider understands them. `limits` are the size limits for the
        reply.
        """
        self.done = self.whole = self.got_content = False
        self._by = by
        self._body = ReplyBody(limits)
        self._size = ReplySize(limits)
        self._items_size = ReplySize(limits)
        """The size of the complete items. They are counted separately, because they contain the text of the deltas
        again.
        """
        self._joiners: dict[str, PairJoiner] = {}
        """Maps event types to the objects that join the halves of surrogate pairs. The mapping is empty until an
        event contains only one half of a pair.
        """
        self._failure: str | None = None
        self._completed: ResponseDone | None = None

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.got_content = False
        # Nearly all events are text, so names are looked up only once for each read, for speed.
        decode, add_chunk, joiners, size, other_events = _EVENT.decode, chunks.append, self._joiners, 0, 0
        for payload in self._body.feed(data):
            event: _Event | None
            try:
                event = decode(payload)
            except (ValueError, RecursionError):
                event = self._read_piece(payload)
                if event is None:
                    if self._read_failure(payload):
                        break
                    continue
            else:
                if joiners:
                    event = self._joined(event)
            match event.type:
                case "response.output_text.delta":
                    if delta := event.delta:
                        size += len(delta)
                        add_chunk(TextDelta(delta))
                case "response.reasoning_summary_text.delta":
                    if event.delta:
                        size += len(event.delta)
                        chunks.append(ReasoningDelta(event.delta))
                case "response.reasoning_text.delta":
                    if event.delta:
                        size += len(event.delta)
                        chunks.append(RawReasoningDelta(event.delta))
                case "response.function_call_arguments.delta":
                    if event.delta:
                        self._size.arguments += len(event.delta)
                        other_events += 1
                case "response.output_item.done":
                    if event.item is not UNSET and (chunk := _item_done(event.item, self._by)):
                        self._count(chunk)
                        chunks.append(chunk)
                    self._joiners.clear()
                case "response.completed":
                    self._completed = ResponseDone(_token_count(event.response))
                    self.done = True
                    break
                case "response.incomplete":
                    self._completed = ResponseDone(_token_count(event.response), _why_incomplete(event.response))
                    self.done = True
                    break
                case "response.failed" | "error":
                    self._failure = _why(event.response) or _why(Raw(payload)) or NO_REASON
                    self.done = True
                    break
                case kind if kind in OTHER_DELTAS:
                    if event.delta:
                        size += len(event.delta)
                        other_events += 1
                case _:
                    if isinstance(payload, ErrorData) and self._read_failure(payload):
                        break
        self.got_content = bool(chunks or other_events)
        self._size.text += size
        self._size.check()
        return chunks

    def end(self) -> list[Chunk]:
        chunks = self._read_body()
        if self._failure is not None:
            raise ModelStreamBroken(self._failure)
        if self._completed is None:
            raise ModelStreamBroken(NOT_CLOSED) if self._body.has_events else self._body.no_response()
        return [*chunks, self._completed]

    def _read_failure(self, payload: bytes) -> bool:
        """Return whether an event of an unknown type or shape reports a failed response. If so, store the message
        of the error, and end the reply.
        """
        self._failure = failure_in(payload)
        self.done = self._failure is not None
        return self.done

    def _read_body(self) -> list[Chunk]:
        """Decode a body that is a single JSON object, from a provider that does not stream, and return its
        chunks.
        """
        body = None if self.done else self._body.take_json()
        if body is None:
            return []
        response, whole = Raw(body), read_payload(_WHOLE, body)
        if whole is None:
            self._read_failure(body)
            return []
        if (why := _why(response)) or whole.status == "failed":
            self._failure = why or NO_REASON
            return []
        chunks: list[Chunk] = []
        for item in whole.output:
            if chunk := _item_done(item, self._by):
                self._count(chunk)
                chunks.append(chunk)
        cut_by = _why_incomplete(response) if whole.status == "incomplete" else None
        self._completed = ResponseDone(_token_count(response), cut_by)
        return chunks

    def _read_piece(self, payload: bytes) -> _Event | None:
        """Decode an event that may contain half of a surrogate pair. Return None if the event is invalid."""
        event = read_piece(_EVENT, payload)
        if event is None or event.type not in TEXT_DELTAS or not event.delta:
            return read_payload(_EVENT, payload)
        joiner = self._joiners.setdefault(event.type, PairJoiner())
        return _Event(type=event.type, delta=joiner.join(event.delta, has_halves=True))

    def _joined(self, event: _Event) -> _Event:
        """Return the event with complete surrogate pairs in its text.

        A first half without its second half becomes U+FFFD. This method is called only for a reply that splits
        surrogate pairs between events.
        """
        joiner = self._joiners.get(event.type)
        if joiner is None or event.delta is None:
            return event
        return _Event(type=event.type, delta=joiner.join(event.delta, has_halves=False))

    def _count(self, chunk: Chunk) -> None:
        """Add the size of a complete item to the total size of the items in the reply.

        Raises:
            ReplyTooLarge: the total size exceeds a limit.
        """
        size = self._items_size
        size.text += ITEM_CHARACTERS
        match chunk:
            case MessageDone(item=MessageItem(text=text, id=item_id)):
                size.text += len(text) + len(item_id or "")
            case CallDone(item=CallItem() as call):
                size.arguments += len(call.arguments) + len(call.name) + len(call.call_id)
                if call.verbatim is not UNSET:  # `verbatim` contains the arguments again, and other members
                    size.arguments += max(0, len(bytes(call.verbatim)) - ESCAPED_BYTES * len(call.arguments))
                size.calls += 1
            case ReasoningDone(item=OpaqueItem(verbatim=verbatim)) | OpaqueDone(item=OpaqueItem(verbatim=verbatim)):
                size.text += len(bytes(verbatim))
            case _:
                pass
        size.check()


def _item_done(raw: Raw, by: str) -> Chunk | None:
    """Return the chunk for a complete item; None if the item does not have the shape of its type. `by` names the
    provider that sent the reply.
    """
    data = bytes(raw).decode(errors="replace").encode()  # the data is stored, so it must be valid JSON
    match read_payload(_KIND, data):
        case None:
            return None
        case _Kind(type="message", role=role):
            return _message_done(data, by) if role in (None, "assistant") else None
        case _Kind(type="reasoning"):
            return _reasoning_done(data, by)
        case _Kind(type="function_call"):
            return _function_call_done(data, by)
        case _Kind(type="web_search_call"):
            return _web_search_done(data, by)
        case _Kind(type="local_shell_call"):
            return _local_shell_call_done(data, by)
        case _:
            return OpaqueDone(OpaqueItem(verbatim=Raw(data), by=by))


def _web_search_done(data: bytes, by: str) -> Chunk:
    item = read_json(data)
    action = item.get("action") if isinstance(item, dict) else None
    if not isinstance(action, dict):  # the item has no text to show
        return OpaqueDone(OpaqueItem(verbatim=Raw(data), by=by))
    query = action.get("query") or action.get("url") or ""
    error = "failed" if item.get("status") == "failed" else None
    search = search_event(item.get("id"), query, action.get("sources"), error)
    return OpaqueDone(OpaqueItem(verbatim=Raw(data), by=by), search=search)


def _message_done(data: bytes, by: str) -> Chunk | None:
    if (message := read_payload(_MESSAGE, data)) is None:
        return None
    text = "".join(part.text or part.refusal or "" for part in message.content)
    return MessageDone(MessageItem(text=text, id=message.id, by=by))


def _reasoning_done(data: bytes, by: str) -> Chunk | None:
    if (reasoning := read_payload(_REASONING, data)) is None:
        return None
    item = OpaqueItem(verbatim=Raw(data), by=by)
    return ReasoningDone(summaries=_texts(reasoning.summary), raw=_texts(reasoning.content), item=item)


def _function_call_done(data: bytes, by: str) -> Chunk | None:
    if (call := read_payload(_FUNCTION_CALL, data)) is None:
        return None
    arguments, is_text = text_or_json(call.arguments)
    return _call_done(call.call_id, call.name or "", arguments, data, by, verbatim=is_text)


def _local_shell_call_done(data: bytes, by: str) -> Chunk | None:
    if (call := read_payload(_LOCAL_SHELL_CALL, data)) is None:
        return None
    arguments = bytes(call.action).decode() if call.action is not UNSET else ""
    # older items have an `id`, but no `call_id`
    call_id = call.call_id if text_or_json(call.call_id)[1] else call.id
    return _call_done(call_id, LOCAL_SHELL, arguments, data, by, verbatim=call.action is not UNSET)


def _call_done(
    call_id: Raw | UnsetType, name: str, arguments: str, data: bytes, by: str, *, verbatim: bool
) -> CallDone:
    """Return the chunk for a tool call. A malformed call gets a chunk as well, because every call needs an output.
    If a call has no id, a new id is created. `data` is the JSON of the call as the provider sent it. If `verbatim`
    is True and the call has an id, `data` is stored so that it can be sent back unchanged. `by` names the provider
    that sent the reply.
    """
    given, is_text = text_or_json(call_id)
    known = given if is_text else ""
    return CallDone(
        CallItem(
            call_id=CallId(known or f"call_{uuid4()}"),
            name=name,
            arguments=arguments,
            verbatim=Raw(data) if known and verbatim else UNSET,
            by=by,
        )
    )


def _texts(parts: tuple[_Part, ...] | None) -> tuple[str, ...]:
    return tuple(part.text for part in parts or () if part.text)


def _why(response: Raw | UnsetType) -> str | None:
    """Return the message of the error in a response or an event; None if there is no message."""
    failed = read_payload(_FAILED, response) if response is not UNSET else None
    if failed is None:
        return None
    error = read_json(failed.error) if len(bytes(failed.error)) <= MAX_ERROR_BYTES else None
    return failed.message if error is None else message_of(error)


def _why_incomplete(response: Raw | UnsetType) -> str:
    incomplete = read_payload(_INCOMPLETE, bytes(response)) if response is not UNSET else None
    details = incomplete.incomplete_details if incomplete else None
    return (details and details.reason) or "no reason given"


def _token_count(response: Raw | UnsetType) -> TokenCount | None:
    completed = read_payload(_COMPLETED, bytes(response)) if response is not UNSET else None
    if completed is None or completed.usage is None:
        return None
    usage = completed.usage
    return token_count(
        given=usage.input_tokens,
        made=usage.output_tokens,
        total=usage.total_tokens,
        given_details=usage.input_tokens_details,
        made_details=usage.output_tokens_details,
    )
