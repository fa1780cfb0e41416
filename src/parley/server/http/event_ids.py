"""The ids of server-sent events. An id contains the positions that the client has reached, and is signed with the
key of the home directory.

An id contains everything that is needed to continue a stream, so the server stores nothing for clients that may
reconnect.
The signature covers the session, so an id of one session is invalid in another.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from parley.server.positions import Position
from parley.server.sealing import Sealer
from parley.wire.jsonrpc import RequestId

__all__ = ["CallCursor", "EventIds", "SessionCursors"]


class CallCursor(Struct, frozen=True, array_like=True):
    """The position up to which the client has received the events of a `codex` or `codex-reply` call."""

    request: RequestId
    conversation: str
    event_id: str
    position: Position


class SessionCursors(Struct, frozen=True, array_like=True):
    """The positions that the client has reached on one HTTP stream.

    An object contains either the cursor of a call, or the position in each conversation that the client streams.
    """

    call: CallCursor | None = None
    streams: dict[str, Position] = {}


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SessionCursors)


class EventIds:
    """Creates and reads the event ids of one home directory."""

    def __init__(self, key: bytes) -> None:
        self._sealer = Sealer(key, b"event id")

    def seal(self, session: str, cursors: SessionCursors) -> str:
        return self._sealer.seal(_encoder.encode(cursors), context=session)

    def open(self, session: str, event_id: str) -> SessionCursors | None:
        """Return the cursors in an event id; None if the id was not created with this key for the session."""
        content = self._sealer.open(event_id, context=session)
        try:
            return None if content is None else _decoder.decode(content)
        except msgspec.DecodeError:
            return None
