"""Defines the part of an HTTP session that is stored, so that the session survives a restart of the server.

The positions of the client in its streams are not stored, because the client sends them in `Last-Event-ID`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from parley.server.session import StreamState
from parley.wire.ids import ConversationId
from parley.wire.mcp import InitializeParams, LogLevel

__all__ = ["MAX_STATE_BYTES", "SessionState", "decode_state", "encode_state", "merge_states", "session_digest"]

MAX_STATE_BYTES: Final = 1024 * 1024
"""The maximum size of a stored state, in bytes. A larger state, for example one with a very long client name, is
not stored.
"""


class SessionState(Struct, frozen=True, kw_only=True):
    """The negotiated parameters of a session, its streams, and its subscriptions."""

    initialize: InitializeParams
    log_level: LogLevel = "info"
    streams: tuple[StreamState, ...] = ()
    last_stream: int = 0
    """The number of the stream that was opened last. No number is used twice, so an event id of an ended stream
    never contains the number of a later stream.
    """
    resources: tuple[str, ...] = ()
    """The URIs of the resources to which the client has subscribed."""
    has_listed_resources: bool = False
    """True if the client is notified when the list of resources changes."""


_decoder: Final = msgspec.json.Decoder(SessionState)


def encode_state(state: SessionState) -> bytes | None:
    """Return the encoded form of a state; None if this form is too large to be stored."""
    data = msgspec.json.encode(state)
    return data if len(data) <= MAX_STATE_BYTES else None


def decode_state(data: bytes) -> SessionState | None:
    """Return the state that the bytes of a stored session contain; None if another version of Parley has stored the
    session in another format.
    """
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def merge_states(
    own: SessionState, *, base: SessionState, stored: SessionState, own_streams: Collection[ConversationId] = ()
) -> SessionState | None:
    """Combine the changes that this process has made to a session with `stored`, the state that another process has
    stored, and return the result.

    `own` is the current state in this process, and `base` is the state that this process last stored. `own_streams`
    contains the conversations whose streams this process may have stored. Return None if both processes have given
    the same number to different streams, because event ids contain these numbers.
    """
    before, now = _by_conversation(base), _by_conversation(own)
    streams = {
        one: stream
        for one, stream in _by_conversation(stored).items()
        if one in now or (one not in before and one not in own_streams)
    }
    added = {one: stream for one, stream in now.items() if before.get(one) != stream}
    taken = {stream.number: one for one, stream in streams.items() if one not in added}
    if any(taken.get(stream.number, one) != one for one, stream in added.items()):
        return None
    left = [uri for uri in stored.resources if uri in own.resources or uri not in base.resources]
    new = [uri for uri in own.resources if uri not in base.resources and uri not in left]
    return SessionState(
        initialize=own.initialize,
        log_level=own.log_level if own.log_level != base.log_level else stored.log_level,
        streams=tuple((streams | added).values()),
        last_stream=max(own.last_stream, stored.last_stream),
        resources=(*left, *new),
        has_listed_resources=own.has_listed_resources or stored.has_listed_resources,
    )


def _by_conversation(state: SessionState) -> dict[ConversationId, StreamState]:
    return {stream.conversation: stream for stream in state.streams}


def session_digest(session_id: str) -> bytes:
    """Return the digest of a session id, which is the key of the stored session. The id itself is not stored,
    because it is a secret of the client.
    """
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).digest()
