"""Stores the output of a command: the whole output or, if it is long, its beginning and its end.

A command may write gigabytes, so the memory for its output is limited. The bytes of the omitted middle are only
counted.
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
"""The maximum number of bytes that are stored from each end of an output."""
CHUNK_BYTES: Final = 8192
"""The maximum number of bytes of output in one event."""
PREVIEW_BYTES: Final = 8192
"""The maximum number of bytes that a snapshot shows from each end of an output."""


class OpenOutput:
    """The output of a running command on one stream. Only the beginning and the end of the output are stored."""

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
        """Create the output of the tool call `call_id` from `kept`, its stored form in a `CommandOutput` record."""
        item = cls(kept.item, call_id, kept.stream)
        item.length, item.lines = kept.size, kept.lines
        item._head, item._tail = bytearray(kept.head), bytearray(kept.tail)
        return item

    def extend(self, data: bytes) -> OutputDelta:
        """Append `data`, and return `data` as a delta."""
        delta = OutputDelta(self, self.length, data)
        self.length += len(data)
        self.lines += data.count(b"\n")
        if (room := KEPT_BYTES - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data[-KEPT_BYTES:]
            if len(self._tail) > 2 * KEPT_BYTES:  # trimming to 64 KiB after each line would take longer
                del self._tail[:-KEPT_BYTES]
        return delta

    def skip_to(self, offset: int) -> None:
        """Set the length of the output to `offset`, in bytes, because the output up to this offset was not
        received. In the stored beginning, zero bytes replace the missing output. Elsewhere, the missing output
        counts as omitted.
        """
        self.length = offset
        self._head.extend(bytes(max(0, min(KEPT_BYTES, offset) - len(self._head))))
        self._tail.clear()

    def to_record(self) -> StreamOutput:
        """Return the output as a `CommandOutput` record stores it."""
        return StreamOutput(
            item=self.id,
            stream=self.stream,
            head=bytes(self._head),
            tail=bytes(self._tail[-KEPT_BYTES:]),
            size=self.length,
            lines=self.lines,
        )

    def pieces(self, offset: int = 0) -> Iterator[OutputDelta]:
        """Yield the stored output from the offset `offset` on, in pieces of at most `CHUNK_BYTES`.

        A gap between the offsets of two pieces means that output was omitted.
        """
        yield from self._cut(offset, self._head, 0, end=len(self._head))
        tail = self._tail[-KEPT_BYTES:]
        yield from self._cut(offset, tail, self.length - len(tail), end=self.length)

    def kept_ranges(self) -> list[tuple[int, bytes]]:
        """Return the stored ranges of the output with their offsets: one range, or two if the middle was
        omitted.
        """
        head, tail = bytes(self._head), bytes(self._tail[-KEPT_BYTES:])
        begin = self.length - len(tail)
        if not tail or begin == len(head):
            return [(0, head + tail)]
        return [(0, head), (begin, tail)]

    def preview(self) -> Iterator[OutputDelta]:
        """Yield the output for a snapshot: at most `PREVIEW_BYTES` from the beginning and at most `PREVIEW_BYTES`
        from the end.
        """
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
    """A piece of a command's output."""

    item: OpenOutput
    offset: int
    """The position of the piece in the output of the stream, in bytes."""
    data: bytes


def encode_output_delta(delta: OutputDelta) -> bytes:
    """Encode a delta of command output as the event that clients get."""
    item = delta.item
    return b'{"type":"%b","call_id":%b,"stream":"%b","chunk":%b}' % (
        item.type.encode(),
        encode(item.call_id),
        item.stream.encode(),
        encode(list(delta.data)),
    )
