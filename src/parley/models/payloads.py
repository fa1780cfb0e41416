"""The data of server-sent events as structs, read as leniently as the protocol asks."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from parley.wire.jsonrpc import decode_lenient

__all__ = ["read_payload"]

T = TypeVar("T")


def read_payload(decoder: msgspec.json.Decoder[T], payload: bytes) -> T | None:
    """The payload, with U+FFFD for what is no character; None when it does not fit, and is to be skipped."""
    try:
        return decode_lenient(decoder, payload.decode(errors="replace").encode())
    except msgspec.DecodeError:
        return None
