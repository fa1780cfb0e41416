"""The messages in the body of a POST."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from parley.wire.jsonrpc import (
    INVALID_REQUEST,
    ErrorObject,
    Message,
    NestedTooDeeply,
    RequestId,
    decode_lenient,
    decode_message,
    encode,
)
from parley.wire.mcp import CallToolParams, InitializeParams

__all__ = ["BadBody", "PostedMessage", "error_body", "read_messages"]

PARSE_ERROR: Final = -32700
MOST_MESSAGES: Final = 1000
"""The most messages in one array."""
STREAMED_TOOLS: Final = frozenset({"codex", "codex-reply"})
"""Tools whose calls are answered by a stream: they take long and send notifications."""


class _Named(Struct):
    name: str = ""


_array_decoder: Final = msgspec.json.Decoder(list[Raw])
_named_decoder: Final = msgspec.json.Decoder(_Named)


class BadBody(Exception):
    """The body is not a message."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class PostedMessage(Struct, frozen=True):
    """One message."""

    frame: bytes
    id: RequestId | None
    """None if it is not a request."""
    is_initialize: bool
    is_streamed: bool
    """True if its answer is a stream of messages."""


def read_messages(body: bytes) -> tuple[list[PostedMessage], bool]:
    """Return the messages of a body, and whether they are an array.

    Raises:
        BadBody: it has none, or one of them is invalid.
    """
    if body.lstrip()[:1] != b"[":
        return [_read(body)], False
    try:
        frames = _array_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise BadBody(PARSE_ERROR, "the body is not JSON") from None
    if not 0 < len(frames) <= MOST_MESSAGES:
        raise BadBody(INVALID_REQUEST, f"an array has 1 to {MOST_MESSAGES} messages")
    messages = [_read(bytes(frame)) for frame in frames]
    if any(message.is_initialize for message in messages):
        raise BadBody(INVALID_REQUEST, "`initialize` cannot be part of an array")
    return messages, True


def _read(frame: bytes) -> PostedMessage:
    try:
        message = decode_message(frame)
    except NestedTooDeeply:
        raise BadBody(INVALID_REQUEST, "the message is nested too deeply") from None
    except msgspec.ValidationError:
        raise BadBody(INVALID_REQUEST, "the body is not a JSON-RPC message") from None
    except msgspec.DecodeError:
        raise BadBody(PARSE_ERROR, "the body is not JSON") from None
    has_method = isinstance(message.method, str)
    if not has_method and message.id is UNSET:
        raise BadBody(INVALID_REQUEST, "the body is not a JSON-RPC message")
    return PostedMessage(
        frame,
        message.id if has_method and message.id is not UNSET else None,
        message.method == InitializeParams.METHOD,
        message.method == CallToolParams.METHOD and _tool_name(message) in STREAMED_TOOLS,
    )


def _tool_name(message: Message) -> str:
    try:
        return "" if message.params is UNSET else decode_lenient(_named_decoder, message.params).name
    except msgspec.DecodeError:
        return ""


def error_body(number: int, message: str, *, request_id: RequestId | None = None, data: object = UNSET) -> bytes:
    """Encode a JSON-RPC error for an HTTP error."""
    error = ErrorObject(number, message, UNSET if data is UNSET else Raw(encode(data)))
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode(request_id), encode(error))
