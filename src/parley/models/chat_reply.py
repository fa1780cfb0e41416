"""Decoder for streamed replies of the Chat Completions API.

The decoder takes bytes and returns chunks. It performs no I/O. Providers stream the same content in different ways.
The decoder accepts all of these ways from every provider: tool calls with and without an index or an id, reasoning
in one of three members or as parts of the content, errors in the middle of the stream, and several ways to end a
response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.config.types import ReplyLimits
from parley.conversation.records import CallItem, MessageFields, MessageItem
from parley.errors import ModelStreamBroken
from parley.models.payloads import (
    MAX_ERROR_BYTES,
    NO_REASON,
    error_in,
    message_of,
    read_json,
    read_payload,
    read_piece,
    text_or_json,
)
from parley.models.reasoning_details import ReasoningDetails
from parley.models.reply_body import ReplyBody
from parley.models.reply_size import DEFAULT_LIMITS, ReplySize
from parley.models.surrogates import storable
from parley.models.text_buffer import TextBuffer
from parley.models.usage import InputDetails, OutputDetails, token_count
from parley.models.web_search import cited_pages, search_event
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId
from parley.wire.jsonrpc import encode, is_json

__all__ = ["ChatDecoder"]

END_MARK: Final = b"[DONE]"

FAILED: Final = frozenset({"error", "network_error", "insufficient_system_resource"})
"""Finish reasons of a response that failed at the provider. OpenRouter, Z.ai and DeepSeek send them."""

CUT: Final = frozenset({"length", "model_length", "max_tokens", "content_filter", "sensitive"})
"""Finish reasons of a response that the provider ended before the model had finished."""

MEASURE_BYTES: Final = 256 * 1024
"""The number of bytes of the stream between two checks of the size of the reply."""

MAX_INDEX_DIGITS: Final = 9
"""The maximum number of digits of an index that is a string. A longer index counts as missing."""


class _Thought(Struct, frozen=True, gc=False):
    text: str | None = None
    content: str | None = None


class _Function(Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: Raw | UnsetType = UNSET


class _CallPiece(Struct, frozen=True, gc=False):
    index: int | str | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Raw | UnsetType = UNSET


class _Part(Struct, frozen=True, gc=False):
    """A part of a message whose content is a list of parts, as in messages from Mistral."""

    text: str | None = None
    thinking: Raw | UnsetType = UNSET
    """Reasoning, as a list of text parts or as a string."""


class _Delta(Struct, frozen=True, gc=False):
    content: str | tuple[_Part, ...] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | _Thought | None = None
    reasoning_details: Raw | UnsetType = UNSET
    tool_calls: tuple[_CallPiece, ...] | None = None
    annotations: Raw | UnsetType = UNSET
    """The pages that the message cites, after a web search by OpenRouter."""


class _Choice(Struct, frozen=True, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None
    error: Raw | UnsetType = UNSET


class _Event(Struct, frozen=True, gc=False):
    choices: tuple[_Choice, ...] | None = None
    error: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET
    """The token counts, still encoded. They are decoded separately, so that an unknown shape does not affect the
    text in the same event.
    """


class _WholeChoice(Struct, frozen=True):
    """A choice of a response that is not streamed. The choice has a message instead of a delta."""

    message: _Delta | None = None


class _WholeEvent(Struct, frozen=True):
    choices: tuple[_WholeChoice, ...]


class _Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_WHOLE_EVENT: Final = msgspec.json.Decoder(_WholeEvent)
_USAGE: Final = msgspec.json.Decoder(_Usage | None)


class _Call:
    """A tool call whose fragments are still arriving. The tool call is complete when the response ends."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments = TextBuffer()
        self.extra_content: Raw | UnsetType = UNSET
        self.last_piece = ""

    def item(self, by: str) -> CallItem:
        return CallItem(
            call_id=CallId(self.id or f"call_{uuid4()}"),  # the output of the call must contain an id
            name=self.name,
            arguments=self.arguments.text() + self.arguments.joiner.end(),
            extra_content=self.extra_content,
            by="" if self.extra_content is UNSET else by,
        )


class _Calls:
    """The tool calls of one response, assembled from their fragments.

    A fragment belongs to the call with the same id and index. A new id begins a new call, unless the newest call
    with the index has no id yet. The index alone does not identify a call, because some providers send index 0 for
    every call. A fragment without an id continues the newest call with its index or, without an index, the last
    call. Such a fragment begins a new call instead if it has a name and the arguments of the earlier call look
    complete.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        """Maps each index to the newest tool call with this index."""
        self._named: dict[tuple[int | None, str], _Call] = {}
        """The tool calls that have an id, keyed by index and id."""

    def __len__(self) -> int:
        return len(self._calls)

    def in_order(self) -> list[_Call]:
        return sorted(self._calls, key=lambda call: call.index)

    def extend(self, piece: _CallPiece, *, has_halves: bool) -> int:
        """Add the fragment `piece` to its tool call, and return the number of characters that the fragment adds.
        `has_halves` is True if the fragment may contain stand-ins for halves of surrogate pairs (`surrogates.py`).
        """
        function = piece.function
        ids = len(self._named)
        arguments = text_or_json(function.arguments)[0] if function is not None else ""
        name = (function.name if function is not None else None) or ""
        call = self._call_of(piece, name, arguments)
        grown = len(call.id) if len(self._named) > ids else 0
        if not call.name:
            call.name = name
            grown += len(name)
        if piece.extra_content is not UNSET and bytes(piece.extra_content) != b"null":
            kept = storable(piece.extra_content, has_halves=has_halves)
            if kept != call.extra_content:
                call.extra_content = kept
                grown += len(bytes(kept))
        if has_halves or call.arguments.joiner.is_waiting:
            arguments = call.arguments.joiner.join(arguments, has_halves=has_halves)
        if arguments:
            call.arguments.append(arguments)
            call.arguments.compact_if_many()
            call.last_piece = arguments
        return grown + len(arguments)

    def _call_of(self, piece: _CallPiece, name: str, arguments: str) -> _Call:
        index, call_id = _index(piece.index), piece.id or ""
        current = self._at.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call_id:
            if (known := self._named.get((index, call_id))) is not None:
                return known
            if current is None or current.id:
                current = self._begin(index)
            current.id = call_id
            self._named[index, call_id] = current
        elif current is None or (
            # This piece has a name and no id, and the arguments of the current call look complete.
            name and current.last_piece.endswith("}") and (not arguments or arguments.startswith("{"))
        ):
            current = self._begin(index)
        return current

    def _begin(self, index: int | None) -> _Call:
        if index is None:
            index = self._calls[-1].index if self._calls else 0
        call = self._at[index] = _Call(index)
        self._calls.append(call)
        return call


class _Reasoning:
    """The reasoning of one response: the text that clients see, and the form that is sent back to the provider."""

    def __init__(self, size: ReplySize) -> None:
        self.got_content = False
        """True if the last delta contained reasoning in `reasoning_details`, even if clients see none of it."""
        self.size = 0
        """The number of characters of reasoning that were received so far."""
        self._reply_size = size
        self._thought = TextBuffer()
        """The reasoning, as clients see it, that was received since the last call of `take_thought`."""
        self._reasoning_content: TextBuffer | None = None
        self._reasoning = TextBuffer()
        self._thinking = TextBuffer()
        """The text of the thinking parts in the content of the message."""
        self._thinking_is_list = False
        self._details = ReasoningDetails()

    def extend(self, delta: _Delta, *, splits_pairs: bool, has_halves: bool) -> tuple[str, str]:
        """Add the reasoning in a delta. Return the added reasoning that clients see, and the message text in the
        delta.

        `splits_pairs` is True if the provider splits surrogate pairs between the deltas of this reply. `has_halves`
        is True if this delta was decoded with stand-ins for halves of surrogate pairs (`surrogates.py`).
        """

        def add(buffer: TextBuffer, piece: str) -> str:
            if splits_pairs:
                piece = buffer.joiner.join(piece, has_halves=has_halves)
            if piece:
                buffer.append(piece)
                buffer.compact_if_many()
            return piece

        thought, text = "", ""
        self.got_content = False
        if (piece := delta.reasoning_content) is not None:
            if self._reasoning_content is None:
                self._reasoning_content = TextBuffer()
            thought = add(self._reasoning_content, piece)
        if delta.reasoning is not None:
            piece = add(self._reasoning, _thought(delta.reasoning))
            thought = thought or piece  # some providers send the same text in both members
        if delta.reasoning_details is not UNSET:
            # the size is checked before the value is decoded into objects
            self._reply_size.check_text(len(bytes(delta.reasoning_details)))
            piece, size = self._details.extend(read_json(delta.reasoning_details), has_halves=has_halves)
            thought = thought or piece
            self.size += size
            self.got_content = size > 0
        if isinstance(delta.content, tuple):
            for part in delta.content:
                if part.thinking is not UNSET:
                    self._reply_size.check_text(len(bytes(part.thinking)))
                    piece, is_list = _thinking(part.thinking)
                    self._thinking_is_list = self._thinking_is_list or is_list
                    thought += add(self._thinking, piece)
                text += part.text or ""
        else:
            text = delta.content or ""
        text += delta.refusal or ""
        if thought:
            self._thought.append(thought)
            self._thought.compact_if_many()
            self.size += len(thought)
        return thought, text

    def take_thought(self) -> str:
        """Return the reasoning, as clients see it, that was received since the last call of this method."""
        text, self._thought = self._thought.text(), TextBuffer()
        return text

    def fields(self) -> dict[str, Any]:
        """Return the message members that send the reasoning back to the provider, keyed by name."""
        fields: dict[str, Any] = {}
        if self._reasoning_content is not None:
            fields["reasoning_content"] = self._reasoning_content.text() + self._reasoning_content.joiner.end()
        if self._reasoning:
            fields["reasoning"] = self._reasoning.text() + self._reasoning.joiner.end()
        if details := self._details.whole():
            fields["reasoning_details"] = details
        if self._thinking:
            text = self._thinking.text() + self._thinking.joiner.end()
            thinking = [{"type": "text", "text": text}] if self._thinking_is_list else text
            fields["content"] = [{"type": "thinking", "thinking": thinking}]
        return fields


class ChatDecoder:
    """Decodes one reply. `feed` returns deltas, and `end` returns the complete items.

    The response ends with a finish reason, the end mark `[DONE]`, or the end of the body. If token counts were
    requested, they follow the finish reason. While they are missing, `whole` is already True, because the response
    is complete, and `done` is still False, because the decoder needs the remaining bytes of the body. Some
    providers, such as Mistral, send token counts that were not requested. These counts are used if they arrive no
    later than the finish reason.
    """

    def __init__(self, *, stream_usage: bool, by: str = "", limits: ReplyLimits = DEFAULT_LIMITS) -> None:
        self.done = self.whole = self.got_content = False
        self._stream_usage = stream_usage
        self._by = by
        self._body = ReplyBody(limits)
        self._size = ReplySize(limits)
        self._unmeasured_bytes = 0
        self._failure: str | None = None
        self._finish: str | None = None
        self._is_marked = False
        """True if the end mark `[DONE]` was received."""
        self._has_choices = False
        """True if a choice without text was received. The body then contains a response, even if the response has
        no text.
        """
        self._last_read = b""
        self._text = TextBuffer()
        self._reasoning: _Reasoning | None = None
        self._is_thinking = False
        """True if reasoning was received since the last text of the message."""
        self._has_halves = False
        """True if a surrogate pair in this reply was split between two events."""
        self._calls = _Calls()
        self._usage: TokenCount | None = None
        self._cited: list[dict[str, Any]] = []

    def feed(self, data: bytes) -> list[Chunk]:
        self.got_content = False
        self._last_read = data
        chunks = self._decode(self._body.feed(data))
        self._unmeasured_bytes += len(data)
        if self._unmeasured_bytes > MEASURE_BYTES:
            self._unmeasured_bytes = 0
            self._measure()
        return chunks

    def _decode(self, payloads: Iterable[bytes]) -> list[Chunk]:
        """Decode the data of events, and return the chunks that this data completes."""
        chunks: list[Chunk] = []
        # Nearly all events are text, so names are looked up only once for each read, for speed.
        decode, add_chunk, add_text = _EVENT.decode, chunks.append, self._text.append
        whole, halves, stream_usage = self.whole, self._has_halves, self._stream_usage
        for payload in payloads:
            event: _Event | None
            has_halves = False
            try:
                event = decode(payload)
            except (ValueError, RecursionError):
                if payload.strip() == END_MARK:
                    self.done = self._is_marked = True
                    break
                event = read_piece(_EVENT, payload)
                if event is None:
                    if not whole and self._read_failure(None, payload):
                        break
                    continue
                self._has_halves = halves = has_halves = True
            if event.choices and not whole and (event.error is UNSET or bytes(event.error) == b"null"):
                choice = event.choices[0]
                if (delta := choice.delta) is not None:
                    text = delta.content
                    if (
                        delta.reasoning_content is not None
                        or delta.reasoning is not None
                        or delta.reasoning_details is not UNSET
                        or delta.refusal is not None
                        or delta.annotations is not UNSET
                        or halves
                        or isinstance(text, tuple)
                    ):
                        text = self._read(delta, chunks, has_halves=has_halves)
                    if text:
                        if self._is_thinking:
                            add_chunk(self._end_reasoning())
                        add_text(text)
                        add_chunk(TextDelta(text))
                    else:
                        self._has_choices = True
                    if delta.tool_calls:
                        self._read_calls(delta.tool_calls, has_halves=has_halves)
                else:
                    self._read_message(payload, chunks, has_halves=has_halves)
                if choice.finish_reason:
                    if self._read_finish_reason(choice):
                        break
                    whole = True
            elif not whole and self._read_failure(event, payload):
                break
            if event.usage is not UNSET:
                self._usage = _token_count(event.usage) or self._usage
            if whole and not (stream_usage and self._usage is None):
                self.done = True
                break
        if chunks:
            self.got_content = True
        return chunks

    def _measure(self) -> None:
        self._text.compact()
        self._size.text = self._text.size + (0 if self._reasoning is None else self._reasoning.size)
        self._size.calls = len(self._calls)
        self._size.check()

    def _read(self, delta: _Delta, chunks: list[Chunk], *, has_halves: bool) -> str:
        """Add the reasoning in a delta to the reply, and return the message text in the delta. `has_halves` is
        True if the delta was decoded with stand-ins for halves of surrogate pairs (`surrogates.py`).
        """
        if (reasoning := self._reasoning) is None:
            reasoning = self._reasoning = _Reasoning(self._size)
        thought, text = reasoning.extend(delta, splits_pairs=self._has_halves, has_halves=has_halves)
        self.got_content = self.got_content or reasoning.got_content
        if delta.annotations is not UNSET:
            size = len(bytes(delta.annotations))
            self._size.check_text(size)
            reasoning.size += size
            self._cited += cited_pages(read_json(delta.annotations))
        if self._has_halves and text:
            text = self._text.joiner.join(text, has_halves=has_halves)
        if thought:
            self._is_thinking = True
            chunks.append(RawReasoningDelta(thought))
        return text

    def _read_message(self, payload: bytes, chunks: list[Chunk], *, has_halves: bool) -> None:
        """Add the message of a response that is not streamed to the reply, and append its chunks to `chunks`. The
        `payload` contains a choice with this message. `has_halves` is True if the message may contain halves of
        surrogate pairs (`surrogates.py`).
        """
        self._has_choices = True
        event = (read_piece if has_halves else read_payload)(_WHOLE_EVENT, payload)
        message = event.choices[0].message if event is not None and event.choices else None
        if message is None:
            return
        if text := self._read(message, chunks, has_halves=has_halves):
            if self._is_thinking:
                chunks.append(self._end_reasoning())
            self._text.append(text)
            chunks.append(TextDelta(text))
        if message.tool_calls:
            self._read_calls(message.tool_calls, has_halves=has_halves)

    def _read_calls(self, pieces: tuple[_CallPiece, ...], *, has_halves: bool) -> None:
        """Add the fragments of tool calls in a delta to the reply. Empty fragments do not count as content."""
        self._size.check_pieces(len(pieces))
        calls, grown = len(self._calls), 0
        for piece in pieces:
            grown += self._calls.extend(piece, has_halves=has_halves)
        self._size.arguments += grown
        if grown or len(self._calls) > calls:
            self.got_content = True

    def _read_finish_reason(self, choice: _Choice) -> bool:
        """Store the finish reason of a choice. The response is then complete. Return whether this reason reports
        that the response failed.
        """
        self.whole = self.got_content = True
        self._finish = choice.finish_reason
        if self._finish in FAILED:
            self._failure = message_of(_error(choice.error))
            self.done = True
        return self.done

    def _read_failure(self, event: _Event | None, payload: bytes) -> bool:
        """Return whether an event reports that the response failed. If so, store the message of the error, and end
        the reply.

        `payload` is the data of the event, and `event` is the decoded event; None if the data has an unknown shape.
        This method is called only for events that have no choices, contain an error, or have an unknown shape.
        """
        error = None if event is None else _error(event.error)
        if error is None:
            error = error_in(payload)
        if error is None:
            return False
        self._failure = message_of(error)
        self.done = True
        return True

    def end(self) -> list[Chunk]:
        chunks = self._read_body()
        self._measure()
        has_ended = self.whole or self._is_marked
        if self._failure is None and not has_ended:
            self._failure = _failure_after_events(self._last_read)
        if self._failure is not None:
            raise ModelStreamBroken(self._failure)
        if not (has_ended or self._has_choices or self._text):
            raise self._body.no_response()
        if self._is_thinking:
            chunks.append(self._end_reasoning())
        if rest := self._text.joiner.end():
            self._text.append(rest)
            chunks.append(TextDelta(rest))
        if self._reasoning is not None and (fields := self._reasoning.fields()):
            kept = storable(Raw(encode(fields)), has_halves=self._has_halves)
            chunks.append(OpaqueDone(MessageFields(fields=kept, by=self._by)))
        if self._text:
            chunks.append(MessageDone(MessageItem(text=self._text.text())))
        if self._cited:  # OpenRouter does not report the query
            chunks.append(OpaqueDone(None, search=search_event(f"search_{uuid4()}", "", self._cited)))
        calls = [call.item(self._by) for call in self._calls.in_order()]
        chunks += [CallDone(call) for call in calls]
        cut_by = self._finish if self._finish in CUT else None
        if not has_ended and not all(is_json(call.arguments) for call in calls):
            cut_by = "end of the stream"
        chunks.append(ResponseDone(self._usage, cut_by))
        return chunks

    def _read_body(self) -> list[Chunk]:
        """Decode a body that is a single JSON object, from a provider that does not stream, and return its
        chunks.
        """
        body = None if self.done else self._body.take_json()
        return [] if body is None else self._decode((body,))

    def _end_reasoning(self) -> ReasoningDone:
        """Return the chunk that ends the current reasoning. Reasoning ends when the model begins its text or the
        response ends.
        """
        assert self._reasoning is not None  # `_is_thinking` is True only if there is reasoning
        self._is_thinking = False
        return ReasoningDone(summaries=(), raw=(self._reasoning.take_thought(),))


def _thought(reasoning: str | _Thought) -> str:
    if isinstance(reasoning, str):
        return reasoning
    return reasoning.text or reasoning.content or ""


def _thinking(raw: Raw) -> tuple[str, bool]:
    """Return the reasoning in a thinking part of a message. The second result is True if the provider sent this
    reasoning as a list of text parts, and False if it sent a string.
    """
    value = read_json(raw)
    if not isinstance(value, list):
        return (value if isinstance(value, str) else ""), False
    texts = (part.get("text") for part in value if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str)), True


def _error(raw: Raw | UnsetType) -> Any:
    """Decode the member `error` of an event or a choice, and return the error, which may have any shape. Return
    None if the member is missing.
    """
    if raw is UNSET:
        return None
    return read_json(raw) if len(bytes(raw)) <= MAX_ERROR_BYTES else NO_REASON


def _index(index: int | str | None) -> int | None:
    """Return the index of a tool call as a number; None if the index is not a number. Some providers send the index
    as a string.
    """
    if not isinstance(index, str):
        return index
    is_number = index.isascii() and index.isdecimal() and len(index) <= MAX_INDEX_DIGITS
    return int(index) if is_number else None


def _failure_after_events(data: bytes) -> str | None:
    """Return the message of an error that follows the last event of a truncated body; None if no error follows.
    Some servers write such an error as plain JSON instead of an event.
    """
    for line in data.splitlines():
        if line.lstrip().startswith(b"{") and len(line) <= MAX_ERROR_BYTES:
            match read_json(line):
                case {"error": error} if error is not None:
                    return message_of(error)
                case _:
                    pass
    return None


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
