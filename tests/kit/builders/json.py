"""Our structs as the plain JSON values that a client would read, and back."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from parley.wire.jsonrpc import decode_lenient, encode

__all__ = ["as_json", "from_json"]

T = TypeVar("T")


def as_json(value: Any) -> Any:
    """What another JSON library makes of the value as we encode it."""
    return json.loads(encode(value))


def from_json(kind: type[T], value: Any) -> T:
    """`value`, written by another JSON library, as the server decodes it."""
    return decode_lenient(msgspec.json.Decoder(kind), json.dumps(value).encode())
