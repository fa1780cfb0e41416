"""JSON-RPC 2.0 envelopes.

Decoding accepts a missing `jsonrpc`, unknown members and lone surrogates, as the protocol asks. Encoding
concatenates bytes, because a body is often already encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

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
    "Outline",
    "RequestId",
    "decode_lenient",
    "decode_message",
    "encode",
    "error_of",
    "error_response",
    "is_null",
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

encode: Final = msgspec.json.Encoder().encode
"""The one encoder: compact JSON as bytes."""


class NestedTooDeeply(msgspec.DecodeError):
    """The JSON has too many levels."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


class ErrorObject(Struct, frozen=True):
    """The error of an answer. Missing fields have defaults: an empty error is still an error."""

    code: int = INTERNAL_ERROR
    message: str = ""
    data: Raw | UnsetType = UNSET

    @property
    def name(self) -> str | None:
        """The stable name of the error, from `data.code`, if the server sent one."""
        try:
            return None if self.data is UNSET else _named_decoder.decode(self.data).code
        except msgspec.DecodeError:
            return None


class _Named(Struct):
    code: str | None = None


class Message(Struct, frozen=True):
    """Any message: a request has id and method, a notification only a method, an answer only an id."""

    id: int | str | UnsetType = UNSET
    method: str | UnsetType | None = UNSET
    """Never None: `null` counts as missing."""
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    """Encoded; `error_of` decodes it."""

    def __post_init__(self) -> None:
        if self.method is None:
            msgspec.structs.force_setattr(self, "method", UNSET)


_decoder: Final = msgspec.json.Decoder(Message)
_error_decoder: Final = msgspec.json.Decoder(ErrorObject)
_named_decoder: Final = msgspec.json.Decoder(_Named)
_raw_decoder: Final = msgspec.json.Decoder(Raw)
_id_decoder: Final[msgspec.json.Decoder[RequestId]] = msgspec.json.Decoder(int | str)

_LONE_SURROGATE: Final = re.compile(
    rb"""(?<!\\)((?:\\\\)*)             # an escape begins after an even number of backslashes
         (?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})  # a pair stays
           |\\u[dD][89a-fA-F][0-9a-fA-F]{2})                            # a lone surrogate""",
    re.VERBOSE,
)


def _replacement_character(half: int) -> str:
    return "\ufffd"


def decode_lenient(
    decoder: msgspec.json.Decoder[T], data: bytes | Raw, *, half_as: Callable[[int], str] = _replacement_character
) -> T:
    """Decode `data`, with each lone surrogate replaced by the result of `half_as`.

    Raises:
        msgspec.DecodeError: `data` is not JSON, does not have the type of the decoder, or has too many levels.
    """
    try:
        try:
            return decoder.decode(data)
        except msgspec.DecodeError:
            copied = bytes(data)
            mended = _LONE_SURROGATE.sub(
                lambda match: (
                    match[0] if match[2] else match[1] + half_as(int(match[0][len(match[1]) + 2 :], 16)).encode()
                ),
                copied,
            )
            if mended == copied:
                raise
            return decoder.decode(mended)
    except RecursionError:
        raise NestedTooDeeply from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error}") from None


def is_json(text: str) -> bool:
    """Return whether a text is one complete JSON value."""
    try:
        _raw_decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def decode_message(line: bytes) -> Message:
    """Decode the message on one line.

    Raises:
        msgspec.DecodeError: the line is not a JSON object with the members of a message.
    """
    return decode_lenient(_decoder, line)


def is_null(raw: Raw) -> bool:
    """Return whether this is `null`, without copying it."""
    return len(memoryview(raw)) == len(b"null") and bytes(raw) == b"null"


def error_of(answer: Message) -> ErrorObject | None:
    """Return the error of an answer, or None. Any `error` that is not null counts, even if it cannot be decoded."""
    if isinstance(answer.error, UnsetType) or is_null(answer.error):
        return None
    try:
        return decode_lenient(_error_decoder, answer.error)
    except msgspec.DecodeError:
        return ErrorObject()


def response(request_id: RequestId, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode(request_id), result)


def error_response(request_id: RequestId, number: int, message: str, *, code: str | None = None) -> bytes:
    """Encode an error; `number` is the code of JSON-RPC, `code` the name of the error, sent as `data.code`."""
    data = UNSET if code is None else Raw(encode({"code": code}))
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
    """The id and the kind of a message that was not decoded, from its beginning and its end."""

    id: RequestId | None
    is_answer: bool | None
    """None if unknown."""


def read_outline(prefix: bytes, suffix: bytes) -> Outline:
    """Find the id and the kind of a message from its beginning and its end."""
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
    """Yield the name and the first token of the value of each member of a truncated object.

    The token is empty if the truncation splits it. Reads tokens, so names inside members and strings do not count.
    """
    depth, previous, name = 0, b"", b""
    for match in _TOKEN.finditer(prefix):
        token = match[0]
        if match.end() == len(prefix) and token[:1] not in b"{}[]:,":
            break  # perhaps truncated
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
