"""JSON-RPC 2.0 envelopes: what a frame says before anybody looks at its method.

Reading is lenient where the protocol asks for it (a missing `jsonrpc`, unknown members, half a
surrogate pair); writing is bytes around bytes, because a body is often encoded already.
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
    """JSON, as far as one can tell, with more levels than anybody means."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


class ErrorObject(Struct, frozen=True):
    """Read leniently: an error that says nothing is still the answer."""

    code: int = INTERNAL_ERROR
    message: str = ""
    data: Raw | UnsetType = UNSET

    @property
    def name(self) -> str | None:
        """`data.code`: the stable name of the error, if the server sent one."""
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
    """Never None: one that is null is not there."""
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    """As it came: `error_of` reads it."""

    def __post_init__(self) -> None:
        if self.method is None:
            msgspec.structs.force_setattr(self, "method", UNSET)


_decoder: Final = msgspec.json.Decoder(Message)
_error_decoder: Final = msgspec.json.Decoder(ErrorObject)
_named_decoder: Final = msgspec.json.Decoder(_Named)
_raw_decoder: Final = msgspec.json.Decoder(Raw)
_id_decoder: Final[msgspec.json.Decoder[RequestId]] = msgspec.json.Decoder(int | str)

_LONE_SURROGATE: Final = re.compile(
    rb"""(?<!\\)((?:\\\\)*)             # an escape begins behind an even number of backslashes
         (?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})  # a pair: fine
           |\\u[dD][89a-fA-F][0-9a-fA-F]{2})                            # half a pair""",
    re.VERBOSE,
)


def _replacement_character(half: int) -> str:
    return "\ufffd"


def decode_lenient(
    decoder: msgspec.json.Decoder[T], data: bytes | Raw, *, half_as: Callable[[int], str] = _replacement_character
) -> T:
    """Decode `data`; read each half of a surrogate pair as `half_as` says.

    Raises:
        msgspec.DecodeError: this is not JSON, or not of the decoder's type, or nested beyond reason.
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
    """Whether a text is one whole JSON value."""
    try:
        _raw_decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def decode_message(line: bytes) -> Message:
    """The message on one line.

    Raises:
        msgspec.DecodeError: the line is not a JSON object with the members of a message.
    """
    return decode_lenient(_decoder, line)


def is_null(raw: Raw) -> bool:
    """Whether this is `null`, found out without copying it."""
    return len(memoryview(raw)) == len(b"null") and bytes(raw) == b"null"


def error_of(answer: Message) -> ErrorObject | None:
    """How a request failed; None: it did not. Whatever stands there is a failure, also where it says nothing."""
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
    rb"""[,{]\s*"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*  # not in a string: its quotes would be escaped
         (?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?
         \}\s*\Z                                       # closes the message, so this is a member of it""",
    re.VERBOSE | re.DOTALL,
)


class Outline(NamedTuple):
    """What the beginning and the end of a message say of the whole."""

    id: RequestId | None
    is_answer: bool | None
    """None: they do not say."""


def read_outline(prefix: bytes, suffix: bytes) -> Outline:
    """Whose message this is, of which only the beginning and the end were kept, or can be read."""
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
    """Each member of an object of which the beginning was kept: its name, and the first token of its value,
    which is empty where the cut goes through it.

    Reads tokens, not text: a name within a member or within a string is not one of the object's.
    """
    depth, previous, name = 0, b"", b""
    for match in _TOKEN.finditer(prefix):
        token = match[0]
        if match.end() == len(prefix) and token[:1] not in b"{}[]:,":
            break  # cut off in the middle, perhaps
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
