"""Decodes the data of server-sent events leniently."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.models.surrogates import stand_in
from parley.wire.jsonrpc import decode_lenient

__all__ = ["read_json", "read_payload", "read_piece", "text_or_json"]

T = TypeVar("T")


def read_payload(decoder: msgspec.json.Decoder[T], payload: bytes | Raw) -> T | None:
    """Decode a payload, and replace invalid UTF-8 with U+FFFD. Return None if the payload is invalid or has the
    wrong shape, so that the caller can skip it.
    """
    try:
        return decoder.decode(payload)  # succeeds nearly always, and makes no copy
    except (ValueError, RecursionError):
        pass
    try:
        return decode_lenient(decoder, bytes(payload).decode(errors="replace").encode())
    except msgspec.DecodeError:
        return None


def read_piece(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """Decode a payload that may contain halves of surrogate pairs, and replace the halves with stand-ins
    (`surrogates.py`). Return None if the payload is invalid or has the wrong shape.
    """
    try:
        return decode_lenient(decoder, payload.decode(errors="replace").encode(), half_as=stand_in)
    except msgspec.DecodeError:
        return None


def text_or_json(raw: Raw | UnsetType) -> tuple[str, bool]:
    """Return a member of a call as text, and whether the provider sent it as a JSON string.

    A missing member and null become an empty text. Any other value becomes JSON text, because some models send the
    arguments as an object.
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


_TEXT: Final = msgspec.json.Decoder(str)
_ANYTHING: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
