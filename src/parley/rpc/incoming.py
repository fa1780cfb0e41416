"""Decodes the messages from an untrusted server. The size of a message is checked before the message is decoded.

The number of values is limited as well as the number of bytes, because a small message can need much memory: the
two bytes `{}` become a dictionary of 64 bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from parley.rpc.depth import cut_nesting
from parley.rpc.errors import TooLarge, UnreadableAnswer
from parley.wire.jsonrpc import Message, NestedTooDeeply, decode_lenient, decode_message, max_values

__all__ = ["MAX_VALUES", "check_size", "decode", "decode_object"]

MAX_VALUES: Final = 2_000_000
"""The maximum number of JSON values that a message may contain. Each value takes at most about 150 bytes of memory
in addition to its text.
"""

_object_decoder: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


def decode(frame: bytes, max_bytes: int | None) -> Message:
    """Decode a message of at most `max_bytes` bytes. If `max_bytes` is None, neither the bytes nor the JSON values
    are limited. The params and the result of the message stay encoded. Values that are nested too deeply become
    null.

    Raises:
        TooLarge: the message has more than `max_bytes` bytes or more than `MAX_VALUES` values.
        UnreadableAnswer: the frame is not a JSON-RPC message.
    """
    check_size(frame, max_bytes)
    try:
        try:
            return decode_message(frame)
        except NestedTooDeeply:
            return decode_message(cut_nesting(frame))
    except msgspec.DecodeError:
        raise UnreadableAnswer from None


def check_size(frame: bytes, max_bytes: int | None) -> None:
    """Check the number of bytes and of JSON values in the encoded message `frame`, unless `max_bytes` is None.

    Raises:
        TooLarge: the message has more than `max_bytes` bytes or more than `MAX_VALUES` values.
    """
    if max_bytes is None:
        return
    if len(frame) > max_bytes:
        raise TooLarge(max_bytes, "bytes")
    if max_values(frame) > MAX_VALUES:
        raise TooLarge(MAX_VALUES, "values")


def decode_object(encoded: bytes | msgspec.Raw) -> dict[str, Any]:
    """Decode the given params or result of a message.

    Raises:
        UnreadableAnswer: the value is not a JSON object.
    """
    try:
        return decode_lenient(_object_decoder, encoded)
    except msgspec.DecodeError:
        raise UnreadableAnswer from None
