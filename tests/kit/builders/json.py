"""Converts structs to the JSON values that a client reads, and back."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from parley.wire.jsonrpc import decode_lenient, encode

__all__ = ["as_json", "from_json"]

T = TypeVar("T")


def as_json(value: Any) -> Any:
    """Encode a value like the server, and decode it with the standard library."""
    return json.loads(encode(value))


def from_json(kind: type[T], value: Any) -> T:
    """Encode a value with the standard library, and decode it like the server."""
    return decode_lenient(msgspec.json.Decoder(kind), json.dumps(value).encode())
