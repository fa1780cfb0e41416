"""Decodes the data of server-sent events, and recognises errors in them. Invalid data is skipped or repaired where
possible.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.models.surrogates import stand_in
from parley.wire.jsonrpc import decode_lenient
from parley.wire.sse import ErrorData

__all__ = [
    "MAX_ERROR_BYTES",
    "NO_REASON",
    "error_in",
    "failure_in",
    "message_of",
    "read_json",
    "read_payload",
    "read_piece",
    "text_or_json",
]

T = TypeVar("T")

MAX_ERROR_BYTES: Final = 64 * 1024
"""The maximum size, in bytes, of an error that is decoded. The content of a larger error is ignored."""

SHOWN_ERROR_BYTES: Final = 4096
"""The maximum number of bytes that are shown of an error with an unknown shape."""

NO_REASON: Final = "the provider gave no reason"

_TEXT: Final = msgspec.json.Decoder(str)
_ANYTHING: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()


def read_payload(decoder: msgspec.json.Decoder[T], payload: bytes | Raw) -> T | None:
    """Decode a payload, and replace invalid UTF-8 with U+FFFD. Return None if the payload is invalid or has the
    wrong shape, so that the caller can skip it.
    """
    try:
        return decoder.decode(payload)  # this call nearly always succeeds, and makes no copy
    except (ValueError, RecursionError):
        pass
    try:
        return decode_lenient(decoder, bytes(payload).decode(errors="replace").encode())
    except msgspec.DecodeError:
        return None


def read_piece(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """Decode a payload that may contain single halves of surrogate pairs, which become stand-ins (`surrogates.py`).
    Return None if the payload is invalid or has the wrong shape.
    """
    try:
        return decode_lenient(decoder, payload.decode(errors="replace").encode(), half_as=stand_in)
    except msgspec.DecodeError:
        return None


def text_or_json(raw: Raw | UnsetType) -> tuple[str, bool]:
    """Return a member of a tool call as text, and whether the provider sent it as a JSON string.

    A missing member and null become an empty string. Any other value becomes JSON text, because some models send
    the arguments as an object.
    """
    if raw is UNSET:
        return "", False
    if (text := read_payload(_TEXT, raw)) is not None:
        return text, True
    data = bytes(raw).decode(errors="replace")
    return ("" if data == "null" else data), False


def read_json(raw: Raw | bytes) -> Any:
    """Decode a JSON value of any type; return None if it is invalid."""
    return read_payload(_ANYTHING, raw)


def message_of(error: Any) -> str:
    """Return the message that describes an error. The error may have any shape."""
    match error:
        case str() if error:
            return error
        case {"message": str(message)} if message:
            return message
        case {"status_msg": str(message)} if message:
            return message
        case {"error": inner}:
            return message_of(inner)
        case {"code": str() | int() as code}:
            return f"{NO_REASON} (code {code})"
        case _:
            return NO_REASON


def error_in(payload: bytes) -> Any:
    """Return the error in an event; None if the event is not an error. The error may have any shape.

    An error is an event whose name is `error`, an event with a member `error`, an object whose type is `error`, or
    an object with a `base_resp` whose status is not 0 (MiniMax). Older versions of vLLM send the type in the member
    `object`.
    """
    event = read_json(payload) if len(payload) <= MAX_ERROR_BYTES else None
    match event:
        case {"error": error} if error is not None:
            return error
        case {"object": "error"} | {"type": "error"}:
            return event
        case {"base_resp": {"status_code": int(code)} as status} if code:
            return {"code": code, **status}
        case _ if not isinstance(payload, ErrorData):
            return None
        case None:
            return payload[:SHOWN_ERROR_BYTES].decode(errors="replace").strip() or NO_REASON
        case _:
            return event


def failure_in(payload: bytes) -> str | None:
    """Return the message of the error in an event; None if the event is not an error."""
    error = error_in(payload)
    return None if error is None else message_of(error)
