"""Encodes and decodes page cursors: the opaque strings that a client sends to get the next page of a list."""

from __future__ import annotations

import base64
from typing import Final, TypeVar

import msgspec

from parley.ports.store import PageCursor
from parley.server.errors import BadCursor

__all__ = ["CONVERSATIONS", "decode_cursor", "encode_cursor"]

T = TypeVar("T")

CONVERSATIONS: Final[msgspec.json.Decoder[PageCursor]] = msgspec.json.Decoder(PageCursor)
"""The decoder for cursors of lists that are sorted by the time of the latest activity."""


def encode_cursor(place: object) -> str:
    """Encode `place`, the position in a list at which the next page begins, as a page cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def decode_cursor(cursor: str, positions: msgspec.json.Decoder[T]) -> T:
    """Return the position that `cursor` encodes. `positions` decodes the positions of the requested list.

    Raises:
        BadCursor: the cursor does not encode a position of the requested list.
    """
    try:
        return positions.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        raise BadCursor(cursor) from None
