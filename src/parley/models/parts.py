"""The parts of a message in the body of a request.

A message may have a million small items. Its parts are made and encoded slice by slice: at any time only one slice
is in memory besides the body.
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
"""The most items whose parts are in memory at once."""


class _Slice:
    """Some of the items of a message. `encode_body` replaces it by their parts."""

    def __init__(self, content: tuple[InputItem, ...], first: int, part: Callable[[InputItem], Any]) -> None:
        self._content, self._first, self._part = content, first, part

    def encode(self) -> Raw:
        """Return the parts as JSON, separated by commas."""
        items = self._content[self._first : self._first + SLICE_ITEMS]
        return Raw(memoryview(encode([self._part(item) for item in items]))[1:-1])


def parts_of(content: tuple[InputItem, ...], part: Callable[[InputItem], Any]) -> list[Any]:
    """Return a list that `encode_body` encodes as the parts of all items."""
    if len(content) <= SLICE_ITEMS:
        return [part(item) for item in content]
    return [_Slice(content, first, part) for first in range(0, len(content), SLICE_ITEMS)]


encode_body: Final = msgspec.json.Encoder(enc_hook=_Slice.encode).encode
"""The encoder for the body of a request, in which there may be lists from `parts_of`."""
