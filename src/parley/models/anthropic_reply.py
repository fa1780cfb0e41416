"""Decoder for streamed replies of the Anthropic Messages API.

The decoder takes bytes and returns chunks. It performs no I/O. A reply consists of content blocks. Each event of a
block contains the index of the block, by which the decoder assembles the block. Reasoning and blocks that only the
provider understands are stored and sent back unchanged.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.config.types import ReplyLimits
from parley.conversation.records import CallItem, MessageItem, OpaqueItem
from parley.errors import ModelStreamBroken
from parley.models.payloads import failure_in, read_json, read_payload, read_piece, text_or_json
from parley.models.reply_body import ReplyBody
from parley.models.reply_size import DEFAULT_LIMITS, ReplySize
from parley.models.surrogates import storable
from parley.models.text_buffer import TextBuffer
from parley.models.usage import InputDetails, OutputDetails, token_count
from parley.models.web_search import search_event
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    OpaqueDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
)
from parley.wire.events import TokenCount, WebSearch
from parley.wire.ids import CallId
from parley.wire.jsonrpc import encode, is_json

__all__ = ["AnthropicDecoder"]

NOT_CLOSED: Final = "stream closed before message_stop"
OVERFLOW: Final = "model_context_window_exceeded: the reply filled the context window of the model"
"""The error message for a reply that was cut off because the context window was full. It contains a phrase by which
`agent/retry.py` recognises that the turn must compact the history.
"""

CUT: Final = "max_tokens"
PAUSED: Final = "pause_turn"
REFUSED: Final = "refusal"
TOO_LONG: Final = "model_context_window_exceeded"

SEARCH_RESULT: Final = "web_search_tool_result"

THINKING: Final = frozenset({"thinking", "redacted_thinking"})

TEXT_BLOCK: Final = Raw(b'{"type":"text","text":""}')

BLOCK_CHARACTERS: Final = 100
"""The number of characters that the size check adds for each block, because an empty block also takes memory."""


class _Delta(Struct, frozen=True, gc=False):
    """A fragment of a content block or, in the event `message_delta`, the end of the message."""

    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: Raw | UnsetType = UNSET


class _Event(Struct, frozen=True, gc=False):
    type: str
    index: int = 0
    delta: _Delta | None = None
    content_block: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET


class _Kind(Struct, frozen=True):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None


class _ToolUse(Struct, frozen=True):
    id: Raw | UnsetType = UNSET
    name: str | None = None
    input: Raw | UnsetType = UNSET


class _StopDetails(Struct, frozen=True):
    category: str | None = None
    explanation: str | None = None


class _OutputDetails(Struct, frozen=True):
    thinking_tokens: int | None = None


class _Usage(Struct, frozen=True):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Message(Struct, frozen=True):
    """The message in the event `message_start`, or a whole response that is not streamed."""

    content: tuple[Raw, ...] = ()
    stop_reason: str | None = None
    stop_details: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET


_EVENT: Final = msgspec.json.Decoder(_Event)
_KIND: Final = msgspec.json.Decoder(_Kind)
_TOOL_USE: Final = msgspec.json.Decoder(_ToolUse)
_STOP_DETAILS: Final = msgspec.json.Decoder(_StopDetails | None)
_USAGE: Final = msgspec.json.Decoder(_Usage | None)
_MESSAGE: Final = msgspec.json.Decoder(_Message)


class _Block:
    """A content block whose fragments are still arriving."""

    def __init__(self, kind: str, start: Raw) -> None:
        self.kind = kind
        self.start = start
        """The block as the event `content_block_start` contained it."""
        self.pieces = TextBuffer()
        """The received fragments of the text, the reasoning or the arguments."""
        self.signature = TextBuffer()
        self.is_whole = False

    def text(self) -> str:
        return self.pieces.text() + self.pieces.joiner.end()


class AnthropicDecoder:
    """Decodes one reply. The reply is complete after `message_stop`. If the stream ends without `message_stop`, the
    reply is complete if a stop reason was received.
    """

    def __init__(self, *, by: str = "", limits: ReplyLimits = DEFAULT_LIMITS) -> None:
        """Create a decoder. `by` names the provider and the model. The name is stored with reasoning, because
        another model cannot check the signature of the reasoning. `limits` are the size limits for the reply.
        """
        self.done = self.whole = self.got_content = False
        self._by = by
        self._body = ReplyBody(limits)
        self._size = ReplySize(limits)
        self._blocks: dict[int, _Block] = {}
        """The blocks whose items have not been returned yet, keyed by index."""
        self._text = TextBuffer()
        """The text of the complete text blocks since the last block of another type. Consecutive text blocks are
        one message, because a provider begins a new block for each quotation of a source.
        """
        self._has_halves = False
        """True if a surrogate pair in this reply was split between two events."""
        self._failure: str | None = None
        self._stop_reason: str | None = None
        self._stop_details: Raw | UnsetType = UNSET
        self._usage = _Usage()
        self._queries: dict[str, Any] = {}
        """The queries of the web searches that the provider made, keyed by the ids of the searches."""

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.got_content = False
        decode, has_content = _EVENT.decode, False
        for payload in self._body.feed(data):
            has_halves = False
            event: _Event | None
            try:
                event = decode(payload)
            except (ValueError, RecursionError):
                event = read_piece(_EVENT, payload)
                if event is None:
                    if self._read_failure(payload):
                        break
                    continue
                self._has_halves = has_halves = True
            match event.type:
                case "content_block_delta":
                    if event.delta is not None and self._extend(event, event.delta, chunks, has_halves=has_halves):
                        has_content = True
                case "content_block_start":
                    self._begin(event.index, event.content_block, chunks)
                    has_content = True
                case "content_block_stop":
                    if (block := self._blocks.get(event.index)) is not None:
                        block.is_whole = has_content = True
                        self._take_blocks(chunks)
                case "message_start":
                    message = read_payload(_MESSAGE, event.message) if event.message is not UNSET else None
                    if message is not None:
                        self._count(message.usage)
                case "message_delta":
                    self._count(event.usage)
                    if event.delta is not None and event.delta.stop_reason and not self.whole:
                        self._stop_reason, self._stop_details = event.delta.stop_reason, event.delta.stop_details
                        self.whole = has_content = True
                case "message_stop":
                    self.done = True
                    break
                case _:
                    if self._read_failure(payload):
                        break
        self.got_content = has_content
        self._size.check()
        return chunks

    def end(self) -> list[Chunk]:
        chunks = self._read_body()
        if self._failure is not None:
            raise ModelStreamBroken(self._failure)
        if not (self.done or self.whole):
            raise ModelStreamBroken(NOT_CLOSED) if self._body.has_events else self._body.no_response()
        if self._stop_reason == TOO_LONG:
            raise ModelStreamBroken(OVERFLOW)
        self._take_blocks(chunks, rest=True)
        self._end_text(chunks)
        self._size.check()
        chunks.append(
            ResponseDone(
                _token_count(self._usage),
                CUT if self._stop_reason == CUT else None,
                refused=_refusal(self._stop_details) if self._stop_reason == REFUSED else None,
                is_paused=self._stop_reason == PAUSED,
                cache_write_tokens=max(0, self._usage.cache_creation_input_tokens or 0),
            )
        )
        return chunks

    # --- blocks --------------------------------------------------------------------------

    def _begin(self, index: int, raw: Raw | UnsetType, chunks: list[Chunk]) -> _Block:
        start = storable(raw, has_halves=self._has_halves) if raw is not UNSET else Raw(b"{}")
        kind = read_payload(_KIND, start) or _Kind(type="")
        if index in self._blocks:  # a repeated index begins a new block, so the earlier block is complete
            self._take_blocks(chunks, rest=True)
        block = self._blocks[index] = _Block(kind.type, start)
        if kind.type == "tool_use":
            self._size.calls += 1
            self._size.arguments += len(bytes(start))
            return block
        self._size.text += BLOCK_CHARACTERS + len(bytes(start))
        if kind.type == "text" and kind.text:
            block.pieces.append(kind.text)
            chunks.append(TextDelta(kind.text))
        if kind.type == "thinking":
            if kind.thinking:
                block.pieces.append(kind.thinking)
                chunks.append(ReasoningDelta(kind.thinking))
            block.signature.append(kind.signature or "")
        return block

    def _extend(self, event: _Event, delta: _Delta, chunks: list[Chunk], *, has_halves: bool) -> bool:
        """Add a delta to its content block, and append new text and reasoning to `chunks`. Return whether the delta
        had any content.

        Text for an unknown block begins a text block. `has_halves` is True if the event was decoded with stand-ins
        for halves of surrogate pairs (`surrogates.py`).
        """
        block = self._blocks.get(event.index)
        if block is None:
            if not delta.text:
                return False
            block = self._begin(event.index, TEXT_BLOCK, chunks)
        piece = delta.text or delta.thinking or delta.partial_json or ""
        if not piece:
            if not delta.signature:
                return False
            self._size.text += len(delta.signature)
            block.signature.append(delta.signature)
            block.signature.compact_if_many()
            return True
        size = len(piece)
        if self._has_halves:
            piece = block.pieces.joiner.join(piece, has_halves=has_halves)
        if delta.partial_json:
            self._size.arguments += size
        else:
            self._size.text += size
            if piece:
                chunks.append(TextDelta(piece) if delta.text else ReasoningDelta(piece))
        block.pieces.append(piece)
        block.pieces.compact_if_many()
        return True

    def _take_blocks(self, chunks: list[Chunk], *, rest: bool = False) -> None:
        """Append the items of the blocks to `chunks`, in the order of the block indices. Stop at the first block
        that is incomplete. If `rest` is True, append the items of all blocks, even of incomplete blocks.
        """
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if not (block.is_whole or rest):
                return
            del self._blocks[index]
            if block.kind == "text":
                self._text.append(block.text())
                self._text.compact_if_many()
            else:
                self._end_text(chunks)
                chunks.append(self._item_of(block))

    def _end_text(self, chunks: list[Chunk]) -> None:
        """If text has been received since the last block of another type, append the message with this text to
        `chunks`.
        """
        if text := self._text.text():
            chunks.append(MessageDone(MessageItem(text=text)))
            self._text = TextBuffer()

    def _item_of(self, block: _Block) -> Chunk:
        if block.kind == "tool_use":
            return self._call(block)
        if block.kind in THINKING:
            verbatim, text = block.start, block.text()
            if block.kind == "thinking":
                members = {"thinking": text, "signature": block.signature.text()}
                verbatim = Raw(encode({**_object(block.start), **members}))
            item = OpaqueItem(verbatim=verbatim, by=self._by)
            return ReasoningDone(summaries=(text,) if text else (), raw=(), item=item)
        verbatim = block.start
        if (text := block.text()) and is_json(text):  # this is the input of a tool that the provider runs
            verbatim = Raw(encode({**_object(block.start), "input": Raw(text.encode())}))
        return OpaqueDone(OpaqueItem(verbatim=verbatim, by=self._by), search=self._search_in(block.kind, verbatim))

    def _search_in(self, kind: str, verbatim: Raw) -> WebSearch | None:
        """Return the web search whose results a content block contains; None if the block contains no results. The
        query of the search comes from an earlier block.

        `kind` is the type of the block, and `verbatim` is its JSON.
        """
        if kind not in ("server_tool_use", SEARCH_RESULT):
            return None
        match _object(verbatim):
            case {"id": str(call_id), "input": {"query": query}}:
                self._queries[call_id] = query
                return None
            case {"tool_use_id": str(call_id), "content": {"error_code": str(code)}}:
                return search_event(call_id, self._queries.get(call_id), None, code)
            case {"tool_use_id": str(call_id), "content": results}:
                return search_event(call_id, self._queries.get(call_id), results)
            case _:
                return None

    def _call(self, block: _Block) -> CallDone:
        call = read_payload(_TOOL_USE, block.start) or _ToolUse()
        arguments = block.text()
        if not arguments:
            given = text_or_json(call.input)[0]
            # the reply was truncated before the arguments began
            is_cut = self._stop_reason == CUT and given in ("", "{}")
            arguments = "" if is_cut else given or "{}"
        known, is_text = text_or_json(call.id)
        # The output of the call must contain the id of the call.
        call_id = CallId(known if is_text and known else f"call_{uuid4()}")
        return CallDone(CallItem(call_id=call_id, name=call.name or "", arguments=arguments))

    # --- the end -------------------------------------------------------------------------

    def _count(self, raw: Raw | UnsetType) -> None:
        """Replace the stored token counts with the token counts in `raw`, the member `usage` of an event. Each
        event reports totals for the whole response. A count that the event does not contain is unchanged.
        """
        usage = read_payload(_USAGE, raw) if raw is not UNSET else None
        if usage is not None:
            known = {
                name: value for name in _Usage.__struct_fields__ if (value := getattr(usage, name)) is not None
            }
            self._usage = msgspec.structs.replace(self._usage, **known)

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
        if self._read_failure(body):
            return []
        chunks: list[Chunk] = []
        message = read_payload(_MESSAGE, body)
        if message is not None and (message.content or message.stop_reason):
            self._count(message.usage)
            self._stop_reason, self._stop_details = message.stop_reason, message.stop_details
            for index, block in enumerate(message.content):
                self._begin(index, block, chunks).is_whole = True
                self._take_blocks(chunks)
            self.done = True
        return chunks


def _object(raw: Raw) -> dict[str, Any]:
    value = read_json(raw)
    return value if isinstance(value, dict) else {}


def _refusal(raw: Raw | UnsetType) -> str:
    """Return the category and the explanation of a refusal by the model, as text that begins with the category in
    parentheses or with a colon.

    A category or an explanation that the provider does not state is left out.
    """
    details = read_payload(_STOP_DETAILS, raw) if raw is not UNSET else None
    if details is None:
        return ""
    category = f" ({details.category})" if details.category else ""
    return f"{category}: {details.explanation}" if details.explanation else category


def _token_count(usage: _Usage) -> TokenCount | None:
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = usage.cache_read_input_tokens
    given = sum(max(0, part or 0) for part in (usage.input_tokens, usage.cache_creation_input_tokens, cached))
    details = usage.output_tokens_details
    return token_count(
        given=given,
        made=usage.output_tokens,
        total=given + max(0, usage.output_tokens),
        given_details=InputDetails(cached),
        made_details=OutputDetails(details.thinking_tokens) if details else None,
    )
