"""JSON-RPC 2.0 messages.

Decoding accepts a missing `jsonrpc`, unknown members and lone surrogates, as docs/protocol.md requires. Messages
are encoded by joining bytes, because their content is often already encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "RESOURCE_NOT_FOUND",
    "ErrorObject",
    "Message",
    "NestedTooDeeply",
    "Outline",
    "RequestId",
    "TooManySurrogates",
    "decode_frame",
    "decode_lenient",
    "decode_message",
    "encode",
    "error_of",
    "error_response",
    "is_null",
    "max_values",
    "notification",
    "read_outline",
    "request",
    "response",
]

T = TypeVar("T")

RequestId = int | str

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
"""The MCP error code for an unknown resource, in versions 2025-11-25 and earlier."""

encode: Final = msgspec.json.Encoder().encode
"""A function that encodes any message as compact JSON."""


class NestedTooDeeply(msgspec.DecodeError):
    """Raised when JSON has too many nested levels."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


class TooManySurrogates(msgspec.DecodeError):
    """Raised when JSON contains too many lone surrogates."""

    def __init__(self) -> None:
        super().__init__(f"has more than {MAX_LONE_SURROGATES} unpaired surrogates")


class ErrorObject(Struct, frozen=True):
    """The error in a response. Missing fields have defaults, so that an empty error object can be decoded."""

    code: int = INTERNAL_ERROR
    message: str = ""
    data: Raw | UnsetType = UNSET

    @property
    def name(self) -> str | None:
        """Parley's error code from `data.code`; None if the error contains no such code."""
        try:
            return None if self.data is UNSET else _named_decoder.decode(self.data).code
        except msgspec.DecodeError:
            return None


class _Named(Struct):
    code: str | None = None


class Message(Struct, frozen=True):
    """Any JSON-RPC message.

    A request has an id and a method. A notification has a method and no id. A response has an id and no method.
    """

    id: int | str | UnsetType = UNSET
    method: str | UnsetType | None = UNSET
    """The method of a request or a notification. It is never None, because `null` counts as missing."""
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    """The encoded error. `error_of` decodes it."""

    def __post_init__(self) -> None:
        if self.method is None:
            msgspec.structs.force_setattr(self, "method", UNSET)


_decoder: Final = msgspec.json.Decoder(Message)
_error_decoder: Final = msgspec.json.Decoder(ErrorObject)
_named_decoder: Final = msgspec.json.Decoder(_Named)
_raw_decoder: Final = msgspec.json.Decoder(Raw)
_id_decoder: Final[msgspec.json.Decoder[RequestId]] = msgspec.json.Decoder(int | str)

MAX_LONE_SURROGATES: Final = 10_000
"""The maximum number of lone surrogates in one message. A message with more lone surrogates is rejected, because
replacing them would take too long.
"""

_REPLACEMENT_CHARACTER: Final = "\ufffd".encode()
_ESCAPED_BACKSLASH: Final = rb"\\"
_STAND_IN: Final = b"\xff\xff"
"""Bytes that temporarily replace escaped backslashes during the search for lone surrogates. They never occur in
UTF-8.
"""

_LONE_SURROGATE: Final = re.compile(
    rb"""\\u[dD](?:
             [89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})                       # a first half
           | [c-fC-F](?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F])[0-9a-fA-F]{2}     # a second half
         )""",
    re.VERBOSE,
)
"""A pattern for an escaped surrogate that is not part of a surrogate pair. The searched data must not contain
escaped backslashes.
"""


def decode_lenient(
    decoder: msgspec.json.Decoder[T],
    data: bytes | Raw,
    *,
    half_as: bytes | Callable[[re.Match[bytes]], bytes] = _REPLACEMENT_CHARACTER,
) -> T:
    """Decode `data`, and replace each lone surrogate.

    `half_as` is the replacement, or a function that returns the replacement. The function is called with the match
    of each escaped lone surrogate.

    Raises:
        msgspec.DecodeError: `data` is not JSON, does not match the type of the decoder, is nested too deeply, or
            has too many lone surrogates.
    """
    return decode_repaired(decoder, data, half_as=half_as)[0]


def decode_repaired(
    decoder: msgspec.json.Decoder[T],
    data: bytes | Raw,
    *,
    half_as: bytes | Callable[[re.Match[bytes]], bytes] = _REPLACEMENT_CHARACTER,
) -> tuple[T, bytes | Raw]:
    """Decode `data` as `decode_lenient` does. Return the decoded value, and `data` with its lone surrogates
    replaced.

    Raises:
        msgspec.DecodeError: as for `decode_lenient`.
    """
    try:
        try:
            return decoder.decode(data), data
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            copied = bytes(data)
            if _STAND_IN[:1] in copied:
                raise
            # The replacement is constant, so no Python code runs for each match. Clients choose the number of
            # matches.
            escapes = copied.replace(_ESCAPED_BACKSLASH, _STAND_IN)
            repaired, count = _LONE_SURROGATE.subn(half_as, escapes, MAX_LONE_SURROGATES)
            if not count:
                raise
            if count == MAX_LONE_SURROGATES and _LONE_SURROGATE.search(repaired):
                raise TooManySurrogates from None
            repaired = repaired.replace(_STAND_IN, _ESCAPED_BACKSLASH)
            return decoder.decode(repaired), repaired
    except RecursionError:
        raise NestedTooDeeply from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error}") from None


def is_json(text: str) -> bool:
    """Return whether a string is one complete JSON value."""
    try:
        _raw_decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def max_values(data: bytes) -> int:
    """Return an upper bound on the number of JSON values in `data`: the number of commas and opening brackets,
    including those inside strings.
    """
    return data.count(b",") + data.count(b"{") + data.count(b"[")


def decode_message(line: bytes) -> Message:
    """Return the decoded message that one line contains.

    Raises:
        msgspec.DecodeError: the line is not a JSON object, or its members have invalid types.
    """
    return decode_lenient(_decoder, line)


def decode_frame(frame: bytes) -> tuple[Message, bytes]:
    """Decode a message. Return the message, and `frame` with its lone surrogates replaced. Decoding the returned
    frame again is fast.

    Raises:
        msgspec.DecodeError: the frame is not a JSON object, or its members have invalid types.
    """
    message, repaired = decode_repaired(_decoder, frame)
    return message, bytes(repaired)


def is_null(raw: Raw) -> bool:
    """Return whether the encoded JSON `raw` is `null`. Large values are not copied."""
    return len(memoryview(raw)) == len(b"null") and bytes(raw) == b"null"


def error_of(answer: Message) -> ErrorObject | None:
    """Return the error of a response; None if the response has no error.

    An `error` that is not null counts as an error even if it cannot be decoded.
    """
    if isinstance(answer.error, UnsetType) or is_null(answer.error):
        return None
    try:
        return decode_lenient(_error_decoder, answer.error)
    except msgspec.DecodeError:
        return ErrorObject()


def response(request_id: RequestId, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode(request_id), result)


def error_response(
    request_id: RequestId,
    number: int,
    message: str,
    *,
    code: str | None = None,
    details: Mapping[str, object] | None = None,
) -> bytes:
    """Return an encoded response that reports an error.

    `number` is the JSON-RPC error code. `code` is Parley's error code, which is sent as `data.code`. `details`
    contains further members of `data`.
    """
    members = {**(details or {}), **({} if code is None else {"code": code})}
    data = Raw(encode(members)) if members else UNSET
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (
        encode(request_id),
        encode(ErrorObject(number, message, data)),
    )


def request(request_id: RequestId, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (encode(request_id), encode(method), params)


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), params)


_TOKEN: Final = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]:,]|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[a-z]+', re.DOTALL
)


_ID_AT_THE_END: Final = re.compile(
    rb"""[,{]\s*"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*  # not inside a string: its quotes would be escaped
         (?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?
         \}\s*\Z                                       # ends the message, so the id is a member of it""",
    re.VERBOSE | re.DOTALL,
)


class Outline(NamedTuple):
    """The id and the kind of a message that was not decoded."""

    id: RequestId | None
    is_answer: bool | None
    """True for a response, False for a request or a notification, None if the kind is unknown."""


def read_outline(prefix: bytes, suffix: bytes) -> Outline:
    """Return the id and the kind of a message that is not available as a whole. `prefix` is the beginning of the
    message, and `suffix` is its end.
    """
    request_id: RequestId | None = None
    names = set()
    for name, value in _members(prefix):
        if value != b"null" and (name != b'"method"' or value[:1] in b'"'):
            names.add(name)
        if name == b'"id"':
            request_id = _read_id(value)
    if request_id is None and prefix.lstrip()[:1] == b"{" and (last := _ID_AT_THE_END.search(suffix)) is not None:
        request_id = _read_id(last[1])
    if names & {b'"method"', b'"params"'}:
        return Outline(request_id, is_answer=False)
    return Outline(request_id, is_answer=True if names & {b'"result"', b'"error"'} else None)


def _members(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the first token of the value of each top-level member in a truncated JSON object.

    A truncated token is yielded as an empty token. Names in nested objects and inside strings are not yielded.
    """
    depth, previous, name = 0, b"", b""
    for match in _TOKEN.finditer(prefix):
        token = match[0]
        if match.end() == len(prefix) and token[:1] not in b"{}[]:,":
            break  # the name or its value may be truncated
        if name and token != b":":
            yield name, token
            name = b""
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and previous in (b"{", b","):
            name = token
        previous = token
    if name and previous == b":":
        yield name, b""


def _read_id(token: bytes) -> RequestId | None:
    try:
        return decode_lenient(_id_decoder, token)
    except msgspec.DecodeError:
        return None
