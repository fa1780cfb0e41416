"""The opaque cursors with which a client gets the next page of a list."""

from __future__ import annotations

import base64
from typing import Final, TypeVar

import msgspec

from parley.ports.store import PageCursor
from parley.server.errors import BadCursor

__all__ = ["CONVERSATIONS", "decode_cursor", "encode_cursor"]

T = TypeVar("T")

CONVERSATIONS: Final[msgspec.json.Decoder[PageCursor]] = msgspec.json.Decoder(PageCursor)
"""The decoder for cursors of lists of conversations, in which the conversation with the latest activity is first.
"""


def encode_cursor(place: object) -> str:
    """Encode a position in a list as a cursor: an opaque string that the client sends to get the next page."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def decode_cursor(cursor: str, positions: msgspec.json.Decoder[T]) -> T:
    """Return the position that a cursor encodes.

    Raises:
        BadCursor: the cursor was not issued by this server, or was issued for another list.
    """
    try:
        return positions.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        raise BadCursor(cursor) from None
