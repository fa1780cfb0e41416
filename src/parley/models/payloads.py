"""Lenient decoding of the data of server-sent events."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.models.surrogates import stand_in
from parley.wire.jsonrpc import decode_lenient

__all__ = ["read_json", "read_payload", "read_piece", "text_or_json"]

T = TypeVar("T")


def read_payload(decoder: msgspec.json.Decoder[T], payload: bytes | Raw) -> T | None:
    """Decode a payload, with U+FFFD for invalid UTF-8; return None if it has the wrong shape, so that the caller
    skips it.
    """
    try:
        return decoder.decode(payload)  # nearly always, and without a copy
    except (ValueError, RecursionError):
        pass
    try:
        return decode_lenient(decoder, bytes(payload).decode(errors="replace").encode())
    except msgspec.DecodeError:
        return None


def read_piece(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """Decode a payload as `read_payload` does, but replace halves of surrogate pairs by stand-ins
    (`surrogates.py`).
    """
    try:
        return decode_lenient(decoder, payload.decode(errors="replace").encode(), half_as=stand_in)
    except msgspec.DecodeError:
        return None


def text_or_json(raw: Raw | UnsetType) -> tuple[str, bool]:
    """Return the arguments of a call as text, and whether they were sent as text: some models send an object."""
    if raw is UNSET:
        return "", False
    if (text := read_payload(_TEXT, raw)) is not None:
        return text, True
    data = bytes(raw).decode(errors="replace")
    return ("" if data == "null" else data), False


def read_json(raw: Raw | bytes) -> Any:
    """Decode any JSON value; None if it is invalid."""
    return read_payload(_ANYTHING, raw)


_TEXT: Final = msgspec.json.Decoder(str)
_ANYTHING: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
