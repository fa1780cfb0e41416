"""The ids of server-sent events. An event id contains the positions that the client has reached, and is signed.

Because an event id contains the positions, the server does not have to store positions for clients that may
reconnect. A client sends the event id in a header, whose length is limited. Therefore, an event id identifies each
conversation stream by its number, and not by the id of the request that opened the stream: the client chooses this
request id, which could be long. The signature covers the session id, so an event id of one session is invalid in
all other sessions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from parley.server.positions import Position
from parley.server.signing import Signer
from parley.wire.jsonrpc import RequestId, encode

__all__ = ["CallCursor", "EventIds", "SessionCursors"]


class CallCursor(Struct, frozen=True, array_like=True):
    """The position that the client has reached in the events of a `codex` or `codex-reply` call."""

    request: RequestId
    conversation: str
    event_id: str
    position: Position


class SessionCursors(Struct, frozen=True, array_like=True):
    """The positions that the client has reached on one HTTP stream.

    For the stream of a call, `call` is the position in the events of this call, and `streams` is empty. For a GET
    stream, `call` is None, and `streams` maps the id of each conversation that the client streams to the position
    in this conversation.
    """

    call: CallCursor | None = None
    streams: dict[str, Position] = {}


_UUID, _TEXT = b"u", b"t"
"""The first byte of the short form of a conversation id. After `_UUID`, the 16 bytes of a UUID follow. After
`_TEXT`, the id follows in UTF-8.
"""


class _Call(Struct, frozen=True, array_like=True):
    """The encoded form of a `CallCursor` in an event id. The request id is encoded as JSON, because MessagePack has
    no integers with more than 64 bits.
    """

    request: bytes
    conversation: bytes
    event_id: str
    position: Position


class _Content(Struct, frozen=True, array_like=True):
    """The content of an event id before it is signed. Conversation ids are shortened: a UUID takes 17 bytes."""

    call: _Call | None
    streams: dict[bytes, Position]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Content)
_request_decoder: Final[msgspec.json.Decoder[RequestId]] = msgspec.json.Decoder(RequestId)


@lru_cache(maxsize=4096)  # the form is short, because each event id names all streams of a session
def _packed(conversation: str) -> bytes:
    """Return the short form of the conversation id: `_UUID` and 16 bytes if the id is a UUID, otherwise `_TEXT` and
    the id in UTF-8.
    """
    try:
        uuid = UUID(conversation)
    except ValueError:
        return _TEXT + conversation.encode()
    return _UUID + uuid.bytes if str(uuid) == conversation else _TEXT + conversation.encode()


def _unpacked(packed: bytes) -> str:
    kind, content = packed[:1], packed[1:]
    return str(UUID(bytes=content)) if kind == _UUID else content.decode()


def _packed_call(call: CallCursor) -> _Call:
    return _Call(encode(call.request), _packed(call.conversation), call.event_id, call.position)


def _unpacked_call(call: _Call) -> CallCursor:
    request = _request_decoder.decode(call.request)
    return CallCursor(request, _unpacked(call.conversation), call.event_id, call.position)


class EventIds:
    """Creates event ids that are signed with one key, and reads them."""

    def __init__(self, key: bytes) -> None:
        self._signer = Signer(key, b"event id")

    def encode(self, session: str, cursors: SessionCursors) -> str:
        streams = {_packed(conversation): position for conversation, position in cursors.streams.items()}
        call = None if cursors.call is None else _packed_call(cursors.call)
        return self._signer.sign(_encoder.encode(_Content(call, streams)), context=session)

    def decode(self, session: str, event_id: str) -> SessionCursors | None:
        """Return the cursors in `event_id`; None if the event id was not created with this key for the session with
        the id `session`.
        """
        content = self._signer.verify(event_id, context=session)
        if content is None:
            return None
        try:
            decoded = _decoder.decode(content)
            streams = {_unpacked(conversation): position for conversation, position in decoded.streams.items()}
            call = None if decoded.call is None else _unpacked_call(decoded.call)
        except (msgspec.DecodeError, ValueError):
            return None
        return SessionCursors(call, streams)
