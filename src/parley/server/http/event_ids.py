"""The ids of server-sent events. An id encodes what the client has received, signed with the key of the home.

An id contains all that is needed to continue, so the server keeps nothing for clients that may reconnect. The
signature covers the session: an id of one session is worthless in another.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from parley.server.positions import Position
from parley.wire.jsonrpc import RequestId

__all__ = ["CallCursor", "EventIds", "SessionCursors"]

_MAC_BYTES: Final = 16


class CallCursor(Struct, frozen=True, array_like=True):
    """What the client has received of a `codex` or `codex-reply` call."""

    request: RequestId
    conversation: str
    event_id: str
    position: Position


class SessionCursors(Struct, frozen=True, array_like=True):
    """What the client has received on one stream: of a call, or of the conversations that it streams."""

    call: CallCursor | None = None
    streams: dict[str, Position] = {}


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SessionCursors)


class EventIds:
    """Makes and reads the ids of one home."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, session: str, cursors: SessionCursors) -> str:
        content = _encoder.encode(cursors)
        return _encoded(self._mac(session, content) + content)

    def open(self, session: str, event_id: str) -> SessionCursors | None:
        """Return the cursors; None if this home has not made the id for the session."""
        try:
            sealed = base64.b64decode(event_id + "=" * (-len(event_id) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if _encoded(sealed) != event_id or not hmac.compare_digest(mac, self._mac(session, content)):
            return None
        try:
            return _decoder.decode(content)
        except msgspec.DecodeError:
            return None

    def _mac(self, session: str, content: bytes) -> bytes:
        return hmac.digest(self._key, b"%d:%b%b" % (len(session), session.encode(), content), "sha256")[:_MAC_BYTES]


def _encoded(sealed: bytes) -> str:
    """Encode an id. Base64 decoding accepts several spellings, so a received id is compared with this one."""
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()
