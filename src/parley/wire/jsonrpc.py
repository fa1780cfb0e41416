"""JSON-RPC 2.0 envelopes: what a frame says before anybody looks at its method.

Reading is lenient where the protocol asks for it (a missing `jsonrpc`, unknown members, half a
surrogate pair); writing is bytes around bytes, because a body is often encoded already.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "ErrorObject",
    "Message",
    "NestedTooDeeply",
    "RequestId",
    "decode_lenient",
    "decode_message",
    "encode",
    "error_of",
    "error_response",
    "id_in_prefix",
    "notification",
    "request",
    "response",
]

T = TypeVar("T")

RequestId = int | str

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

encode: Final = msgspec.json.Encoder().encode
"""The one encoder: compact JSON as bytes."""


class NestedTooDeeply(msgspec.DecodeError):
    """JSON, as far as one can tell, with more levels than anybody means."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


class ErrorObject(Struct, frozen=True):
    """Read leniently: an error that says nothing is still the answer."""

    code: int = INTERNAL_ERROR
    message: str = ""
    data: Raw | UnsetType = UNSET


class Message(Struct, frozen=True):
    """Any message: a request has id and method, a notification only a method, an answer only an id."""

    id: int | str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    """As it came: `error_of` reads it."""


_decoder: Final = msgspec.json.Decoder(Message)
_error_decoder: Final = msgspec.json.Decoder(ErrorObject)

_LONE_SURROGATE: Final = re.compile(
    rb"""(?<!\\)((?:\\\\)*)             # an escape begins behind an even number of backslashes
         (?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})  # a pair: fine
           |\\u[dD][89a-fA-F][0-9a-fA-F]{2})                            # half a pair""",
    re.VERBOSE,
)


def _mend(match: re.Match[bytes]) -> bytes:
    return match[0] if match[2] else match[1] + rb"\ufffd"


def decode_lenient(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Decode `data`; where half a surrogate pair stands in the way, read it as U+FFFD.

    Raises:
        msgspec.DecodeError: this is not JSON, or not of the decoder's type, or nested beyond reason.
    """
    try:
        try:
            return decoder.decode(data)
        except msgspec.DecodeError:
            mended = _LONE_SURROGATE.sub(_mend, data)
            if mended == data:
                raise
            return decoder.decode(mended)
    except RecursionError:
        raise NestedTooDeeply from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error}") from None


def decode_message(line: bytes) -> Message:
    """The message on one line.

    Raises:
        msgspec.DecodeError: the line is not a JSON object with the members of a message.
    """
    return decode_lenient(_decoder, line)


def error_of(answer: Message) -> ErrorObject | None:
    """How a request failed; None: it did not. Whatever stands there is a failure, also where it says nothing."""
    if isinstance(answer.error, UnsetType) or bytes(answer.error) == b"null":
        return None
    try:
        return decode_lenient(_error_decoder, bytes(answer.error))
    except msgspec.DecodeError:
        return ErrorObject()


def response(request_id: RequestId, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode(request_id), result)


def error_response(request_id: RequestId, code: int, message: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode(request_id), encode(ErrorObject(code, message)))


def request(request_id: RequestId, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (encode(request_id), encode(method), params)


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), params)


_TOKEN: Final = re.compile(
    rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\]:,]|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[a-z]+', re.DOTALL
)


def id_in_prefix(prefix: bytes) -> RequestId | None:
    """The id of a request of which only the beginning was kept, if it stands there.

    Reads tokens, not text: an `"id"` within the params or within a string is not the request's.
    """
    depth, key_next, previous = 0, False, b""
    awaiting_id = False
    for match in _TOKEN.finditer(prefix):
        token = match[0]
        if match.end() == len(prefix) and token[:1] not in b"{}[]:,":
            return None  # cut off in the middle, perhaps
        if awaiting_id and token != b":":
            try:
                return msgspec.json.decode(token, type=int | str)
            except msgspec.DecodeError:
                return None
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        key_next = depth == 1 and previous in (b"{", b",")
        awaiting_id = (awaiting_id and token == b":") or (key_next and token == b'"id"')
        previous = token
    return None
