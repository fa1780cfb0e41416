"""Reads the messages in the body of a POST."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.server.errors import RequestRefused
from parley.server.http.errors import PARSE_ERROR, BadBody, HttpRefused
from parley.wire.http import HttpAnswer
from parley.wire.jsonrpc import (
    ErrorObject,
    Message,
    NestedTooDeeply,
    RequestId,
    TooManySurrogates,
    decode_frame,
    decode_lenient,
    encode,
)
from parley.wire.mcp import CallToolParams, InitializeParams
from parley.wire.modern import named_version

__all__ = ["JSON", "TOO_MANY", "UNAVAILABLE", "PostedMessage", "read_messages", "refusal"]

JSON: Final = {"Content-Type": "application/json"}
RETRY_SECONDS: Final = "30"
"""The value of the header `Retry-After`: the time in seconds after which a client may repeat a request that failed
because the server is overloaded.
"""
TOO_MANY: Final = HttpAnswer(status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})
"""The response to a request that exceeds the rate limit of its principal."""
UNAVAILABLE: Final = HttpAnswer(status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": RETRY_SECONDS})
"""The response to a request that cannot be handled now, because its principal has too many connections or the
server accepts no new clients.
"""
MAX_MESSAGES: Final = 1000
"""The maximum number of messages in the array of one POST."""
MAX_ID_LENGTH: Final = 1024
"""The maximum length of a request id, in characters. The event ids of a `codex` call contain the request id of the
call. The client sends an event id in a header, whose length is limited.
"""
MAX_INITIALIZE_BYTES: Final = 64 * 1024
"""The maximum size of an `initialize` request, in bytes. The size is limited because the session keeps the
parameters in memory.
"""
STREAMED_TOOLS: Final = frozenset({"codex", "codex-reply"})
"""The tools whose calls get a stream of messages as the response. These calls take a long time and send
notifications.
"""


_RETRY_AFTER: Final = {
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": RETRY_SECONDS},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": "10"},
}
_ARRAY: Final = re.compile(rb"\s*\[")


class _Named(Struct, rename="camel"):
    name: str = ""
    uri: str = ""
    task_id: str = ""


_array_decoder: Final = msgspec.json.Decoder(list[Raw])
_named_decoder: Final = msgspec.json.Decoder(_Named)


class PostedMessage(Struct, frozen=True):
    """One message in the body of a POST."""

    frame: bytes
    id: RequestId | None
    """The request id; None if the message is a notification or a response."""
    is_initialize: bool
    is_streamed: bool
    """True if the message is a call of a tool in `STREAMED_TOOLS`."""
    method: str = ""
    name: str = ""
    """The first non-empty value of `name`, `uri` and `taskId` in the parameters; empty if the parameters contain
    none of them.
    """
    version: Any = UNSET
    """The protocol version in `_meta`; UNSET if `_meta` contains no version."""
    params: Raw | UnsetType = UNSET

    @property
    def names_version(self) -> bool:
        return self.version is not UNSET


def read_messages(body: bytes) -> tuple[list[PostedMessage], bool]:
    """Return the messages in the request body, and whether the body is an array.

    Raises:
        BadBody: the body contains no message, or one of its messages is invalid.
    """
    if _ARRAY.match(body) is None:
        return [_read(body)], False
    try:
        frames = decode_lenient(_array_decoder, body)
    except msgspec.DecodeError:
        raise BadBody("the body is not JSON", number=PARSE_ERROR) from None
    if not 0 < len(frames) <= MAX_MESSAGES:
        raise BadBody(f"an array has 1 to {MAX_MESSAGES} messages")
    messages = [_read(bytes(frame)) for frame in frames]
    if any(message.is_initialize for message in messages):
        raise BadBody("`initialize` cannot be part of an array")
    return messages, True


def _read(frame: bytes) -> PostedMessage:
    try:
        message, frame = decode_frame(frame)
    except NestedTooDeeply:
        raise BadBody("the message is nested too deeply") from None
    except TooManySurrogates as error:
        raise BadBody(f"the message {error}") from None
    except msgspec.ValidationError:
        raise BadBody("the body is not a JSON-RPC message") from None
    except msgspec.DecodeError:
        raise BadBody("the body is not JSON", number=PARSE_ERROR) from None
    has_method = isinstance(message.method, str)
    if not has_method and message.id is UNSET:
        raise BadBody("the body is not a JSON-RPC message")
    if message.id is not UNSET and len(str(message.id)) > MAX_ID_LENGTH:
        raise BadBody(f"the id of a message has at most {MAX_ID_LENGTH} characters")
    if message.method == InitializeParams.METHOD and len(frame) > MAX_INITIALIZE_BYTES:
        raise BadBody(f"`initialize` has at most {MAX_INITIALIZE_BYTES} bytes")
    name = _name(message)
    return PostedMessage(
        frame,
        message.id if has_method and message.id is not UNSET else None,
        message.method == InitializeParams.METHOD,
        message.method == CallToolParams.METHOD and name in STREAMED_TOOLS,
        method=message.method if isinstance(message.method, str) else "",
        name=name,
        version=named_version(message.params),
        params=message.params,
    )


def _name(message: Message) -> str:
    try:
        named = _Named() if message.params is UNSET else decode_lenient(_named_decoder, message.params)
    except msgspec.DecodeError:
        return ""
    return named.name or named.uri or named.task_id


def refusal(error: RequestRefused, request_id: RequestId | None = None) -> HttpAnswer:
    """Return the HTTP response for `error`: an HTTP error status and a JSON-RPC error. `request_id` is the id of
    the JSON-RPC request; None if this id is unknown.
    """
    data = {**(error.details or {}), "code": error.code}
    status = error.status if isinstance(error, HttpRefused) else HTTPStatus.BAD_REQUEST
    body = encode(ErrorObject(error.number, str(error), Raw(encode(data))))
    return HttpAnswer(
        status=status,
        body=b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode(request_id), body),
        headers={**JSON, **_RETRY_AFTER.get(status, {})},
    )
