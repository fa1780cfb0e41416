"""Adds positions to messages. A client that reconnects can then name the last message that it has received.

A position contains the `seq` of the last entry that a client has received completely. An entry may be sent as
several messages. If the client has received only some of the messages of the next entry, the position also contains
their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from parley.conversation.log import Delta, Entry
from parley.conversation.output import OutputDelta
from parley.ports.outbox import FrameOutbox, OpenFrame, Outbox
from parley.runtime.readers import EventEncoder

__all__ = ["Position", "PositionEncoder", "PositionedOutbox", "begin_frame_at", "send_at", "with_positions"]


class Position(Struct, frozen=True, array_like=True):
    """The position up to which a client has received a conversation."""

    seq: int
    """The `seq` of the last entry that the client has received completely."""
    messages: int = 0
    """The number of messages that the client has received of the entry after `seq`. If the value is above 0, the
    client has received only a part of this entry.
    """
    stream: int | None = None
    """The number of the stream in its session; None if the message does not belong to a stream."""


@runtime_checkable
class PositionedOutbox(FrameOutbox, Protocol):
    """An outbox for the messages of one conversation, with their positions, to a client that can reconnect."""

    def send_at(self, frame: bytes, position: Position) -> None:
        """Send a message. `position` is the position that the client has reached after it has received this
        message.
        """
        ...

    def begin_frame_at(self, position: Position) -> OpenFrame:
        """Begin a message that is sent in parts. `position` is the position that the client has reached after it
        has received the whole message.
        """
        ...


class PositionEncoder:
    """Encodes entries with `encoder`, and sends the messages to an outbox with their positions. Deltas have no
    position.
    """

    def __init__(self, encoder: EventEncoder, out: PositionedOutbox, skipped: int) -> None:
        """Create the encoder. The client already has the first `skipped` messages of the first entry."""
        self.hidden, self.sends_records = encoder.hidden, encoder.sends_records
        self._encoder, self._out, self._skipped = encoder, out, skipped
        self.delta: Callable[[Delta | OutputDelta, bytes, Callable[[bytes], None]], None] = encoder.delta

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        frames: list[bytes] = []
        self._encoder.entry(entry, frames.append)
        for number, frame in enumerate(frames, start=1):
            if number > self._skipped:
                is_last = number == len(frames)
                self._out.send_at(frame, Position(entry.seq) if is_last else Position(entry.seq - 1, number))
        self._skipped = 0


def with_positions(encoder: EventEncoder, out: Outbox, skipped: int = 0) -> EventEncoder:
    """Return an encoder that sends positions if `out` supports positions; otherwise return `encoder`. The client
    already has the first `skipped` messages of the first entry.
    """
    return PositionEncoder(encoder, out, skipped) if isinstance(out, PositionedOutbox) else encoder


def send_at(out: Outbox, frame: bytes, position: Position) -> None:
    """Send a message to `out`, with its position if `out` supports positions."""
    if isinstance(out, PositionedOutbox):
        out.send_at(frame, position)
    else:
        out.send(frame)


def begin_frame_at(out: FrameOutbox, position: Position) -> OpenFrame:
    """Begin a message that is sent to `out` in parts, with its position if `out` supports positions."""
    return out.begin_frame_at(position) if isinstance(out, PositionedOutbox) else out.begin_frame()
