"""Reads the body of a reply: splits it into events, or collects it if it is a single JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.config.types import ReplyLimits
from parley.errors import ReplyTooLarge
from parley.models.errors import NoResponse
from parley.models.reply_size import check_values
from parley.wire.sse import BYTE_ORDER_MARK, DataFramer

__all__ = ["ReplyBody"]

BEGINNING_BYTES: Final = 4096
"""The number of bytes that are kept from the beginning of a body, for the error message about a body that contains
no response.
"""


class ReplyBody:
    """The body of a reply, which consists of server-sent events or, from a provider that does not stream, of one
    JSON object.
    """

    def __init__(self, limits: ReplyLimits) -> None:
        self.has_events = False
        self._framer = DataFramer(limits.max_event_bytes, check_large=check_values)
        self._limit = limits.max_event_bytes
        self._is_kept = True
        """True until a complete event and `BEGINNING_BYTES` bytes have been received. While it is True, received
        bytes are kept.
        """
        self._beginning = b""
        self._is_json: bool | None = None
        """True if the body is JSON, False if it is not. None until the first byte that is not whitespace has been
        received.
        """
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Add the next bytes of the body, and return the data of the events that these bytes complete.

        Raises:
            ReplyTooLarge: an event, or a body that is JSON, exceeds the size limit in the settings of the
                provider.
        """
        payloads = self._framer.feed(data)
        if self._is_kept:
            self._is_kept = self._keep(data, has_events=bool(payloads))
        return payloads

    def _keep(self, data: bytes, *, has_events: bool) -> bool:
        """Store the bytes that `take_json` or `no_response` may need.

        Return whether later bytes must be kept as well. `has_events` is True if the bytes complete an event, which
        shows that the body is not JSON.
        """
        if self._is_json is None:
            data, self._beginning = (self._beginning + data).removeprefix(BYTE_ORDER_MARK).lstrip(), b""
            if BYTE_ORDER_MARK.startswith(data):  # the condition is also true if there are no bytes
                self._beginning = data
                return True
            self._is_json = data.startswith(b"{")
        if len(self._beginning) < BEGINNING_BYTES:
            self._beginning = (self._beginning + data[:BEGINNING_BYTES])[:BEGINNING_BYTES]
        if has_events:
            self.has_events, self._is_json = True, False
            self._parts.clear()
        if self._is_json:
            self._parts.append(data)
            self._size += len(data)
            if self._size > self._limit:
                raise ReplyTooLarge("bytes in one event of the stream", self._limit, setting="max_event_bytes")
        return not self.has_events or len(self._beginning) < BEGINNING_BYTES

    def take_json(self) -> bytes | None:
        """Return the whole body on one line, and remove it from this object; return None if the body is not
        JSON.

        Raises:
            TooManyValues: the body contains too many JSON values.
        """
        if not self._is_json:
            return None
        body = b"".join(self._parts)
        self._is_json = False
        self._parts.clear()
        check_values((body,))
        return body.replace(b"\r", b" ").replace(b"\n", b" ")  # line ends are white space in JSON

    def no_response(self) -> NoResponse:
        """Return the error for a body that contains no response."""
        is_cut = len(self._beginning) == BEGINNING_BYTES
        return NoResponse(self._beginning.decode(errors="replace").rstrip(), is_cut=is_cut)
