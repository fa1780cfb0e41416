"""What is kept of the output of a command: all of it, or its beginning and its end.

Bytes in, bytes out. A command may say gigabytes; what stays in memory is bounded, and the middle
that is gone is at least counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from parley.conversation.records import StreamOutput
from parley.wire.events import ExecCommandOutputDelta, OutputStream, event_type
from parley.wire.ids import CallId, ItemId
from parley.wire.jsonrpc import encode

__all__ = ["CHUNK_BYTES", "KEPT_BYTES", "PREVIEW_BYTES", "OpenOutput", "OutputDelta", "encode_output_delta"]

KEPT_BYTES: Final = 64 * 1024
"""So much of the beginning and so much of the end."""
CHUNK_BYTES: Final = 8192
"""One event never has more."""
PREVIEW_BYTES: Final = 8192
"""So much of the beginning and of the end stands in a snapshot."""


class OpenOutput:
    """One stream of one command: an open item that is made of bytes."""

    __slots__ = ("_head", "_tail", "call_id", "id", "length", "lines", "stream", "type")

    def __init__(self, item_id: ItemId, call_id: CallId, stream: OutputStream) -> None:
        self.id, self.call_id, self.stream = item_id, call_id, stream
        self.type: str = event_type(ExecCommandOutputDelta)
        self.length = 0
        self.lines = 0
        self._head = bytearray()
        self._tail = bytearray()

    @classmethod
    def from_record(cls, call_id: CallId, kept: StreamOutput) -> OpenOutput:
        """The item that a record was made of."""
        item = cls(kept.item, call_id, kept.stream)
        item.length, item.lines = kept.size, kept.lines
        item._head, item._tail = bytearray(kept.head), bytearray(kept.tail)
        return item

    def extend(self, data: bytes) -> OutputDelta:
        """Take in what came next."""
        delta = OutputDelta(self, self.length, data)
        self.length += len(data)
        self.lines += data.count(b"\n")
        if (room := KEPT_BYTES - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data[-KEPT_BYTES:]
            if len(self._tail) > 2 * KEPT_BYTES:  # not each time: moving 64 KiB for each line costs more
                del self._tail[:-KEPT_BYTES]
        return delta

    def skip_to(self, offset: int) -> None:
        """What came in between is not known here."""
        self.length = offset
        self._head.extend(bytes(max(0, min(KEPT_BYTES, offset) - len(self._head))))
        self._tail.clear()

    def to_record(self) -> StreamOutput:
        """What goes into the log."""
        return StreamOutput(
            item=self.id,
            stream=self.stream,
            head=bytes(self._head),
            tail=bytes(self._tail[-KEPT_BYTES:]),
            size=self.length,
            lines=self.lines,
        )

    def pieces(self, offset: int = 0) -> Iterator[OutputDelta]:
        """All that is kept from `offset` on, cut into events; a jump in the offset is what is gone."""
        yield from self._cut(offset, self._head, 0, end=len(self._head))
        tail = self._tail[-KEPT_BYTES:]
        yield from self._cut(offset, tail, self.length - len(tail), end=self.length)

    def kept_ranges(self) -> list[tuple[int, bytes]]:
        """All that is kept, in one piece, or in two where the middle is gone; each with where it begins."""
        head, tail = bytes(self._head), bytes(self._tail[-KEPT_BYTES:])
        begin = self.length - len(tail)
        if not tail or begin == len(head):
            return [(0, head + tail)]
        return [(0, head), (begin, tail)]

    def preview(self) -> Iterator[OutputDelta]:
        """The beginning and the end, for a snapshot."""
        if self.length <= 2 * PREVIEW_BYTES:
            yield from self.pieces()
            return
        yield OutputDelta(self, 0, bytes(self._head[:PREVIEW_BYTES]))
        end = (self._head + self._tail if self.length <= len(self._head) + len(self._tail) else self._tail)[
            -PREVIEW_BYTES:
        ]
        yield OutputDelta(self, self.length - len(end), bytes(end))

    def _cut(self, offset: int, data: bytearray, begin: int, *, end: int) -> Iterator[OutputDelta]:
        for at in range(max(offset, begin), end, CHUNK_BYTES):
            yield OutputDelta(self, at, bytes(data[at - begin : at - begin + CHUNK_BYTES]))


class OutputDelta(Struct, frozen=True, gc=False):
    """What a command said next, or the part of it that one reader lacks."""

    item: OpenOutput
    offset: int
    """Where in the stream it begins, in bytes."""
    data: bytes


def encode_output_delta(delta: OutputDelta) -> bytes:
    """The delta as the event that clients read."""
    item = delta.item
    return b'{"type":"%b","call_id":%b,"stream":"%b","chunk":%b}' % (
        item.type.encode(),
        encode(item.call_id),
        item.stream.encode(),
        encode(list(delta.data)),
    )
