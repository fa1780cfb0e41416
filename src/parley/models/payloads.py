"""The data of server-sent events as structs, read as leniently as the protocol asks."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from parley.wire.jsonrpc import decode_lenient

__all__ = ["read_payload", "text_or_json"]

T = TypeVar("T")


def read_payload(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """The payload, with U+FFFD for what is no character; None when it does not fit, and is to be skipped."""
    try:
        return decode_lenient(decoder, payload.decode(errors="replace").encode())
    except msgspec.DecodeError:
        return None


def text_or_json(raw: Raw | UnsetType) -> tuple[str, bool]:
    """The arguments of a call as text, and whether they came as text: some models send the object itself."""
    if raw is UNSET:
        return "", False
    data = bytes(raw).decode(errors="replace").encode()
    value = read_payload(_ANYTHING, data)
    if isinstance(value, str):
        return value, True
    return ("" if data == b"null" else data.decode()), False


_ANYTHING: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
