"""Encodes the parts of a message in the body of a request. A message may have a million small items, so its parts
are created and encoded in slices. Only the body and one slice are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode

__all__ = ["encode_body", "parts_of"]

SLICE_ITEMS: Final = 1000
"""The maximum number of items whose parts are in memory at the same time."""


class _Slice:
    """A slice of the items of a message. `encode_body` replaces the slice with the encoded parts of its items."""

    def __init__(self, content: tuple[InputItem, ...], first: int, part: Callable[[InputItem], Any]) -> None:
        self._content, self._first, self._part = content, first, part

    def encode(self) -> Raw:
        """Return the JSON of the parts in this slice, separated by commas."""
        items = self._content[self._first : self._first + SLICE_ITEMS]
        return Raw(memoryview(encode([self._part(item) for item in items]))[1:-1])


def parts_of(content: tuple[InputItem, ...], part: Callable[[InputItem], Any]) -> list[Any]:
    """Return the parts of the items in `content`. `part` is a function that returns the part of one item.

    If there are many items, the list contains slices of them instead, which `encode_body` converts to parts one
    after the other.
    """
    if len(content) <= SLICE_ITEMS:
        return [part(item) for item in content]
    return [_Slice(content, first, part) for first in range(0, len(content), SLICE_ITEMS)]


encode_body: Final = msgspec.json.Encoder(enc_hook=_Slice.encode).encode
"""A function that encodes the body of a request. The body can contain lists that `parts_of` has returned."""
