"""Defines the part of an HTTP session that is stored so that the session can continue after a restart of the
server.

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

__all__ = [
    "MAX_STATE_BYTES",
    "SessionState",
    "decode_state",
    "encode_state",
    "is_same_state",
    "merge_states",
    "session_digest",
]

MAX_STATE_BYTES: Final = 1024 * 1024
"""The maximum size of an encoded state, in bytes. A larger state is not stored."""


class SessionState(Struct, frozen=True, kw_only=True):
    """The state of a session that is stored: its negotiated parameters, its streams, and its subscriptions."""

    initialize: InitializeParams
    log_level: LogLevel = "info"
    streams: tuple[StreamState, ...] = ()
    last_stream: int = 0
    """The number of the stream that was opened last. No two streams of a session have the same number, so an event
    id of an ended stream never matches a later stream.
    """
    resources: tuple[str, ...] = ()
    """The URIs of the resources to which the client has subscribed."""
    has_listed_resources: bool = False
    """True if the client has listed the resources, and is therefore notified when the list changes."""


_decoder: Final = msgspec.json.Decoder(SessionState)


def encode_state(state: SessionState) -> bytes | None:
    """Return the encoded state; None if it is larger than `MAX_STATE_BYTES`."""
    data = msgspec.json.encode(state)
    return data if len(data) <= MAX_STATE_BYTES else None


def decode_state(data: bytes) -> SessionState | None:
    """Return the state that is encoded in `data`; None if another version of Parley has encoded the state in a
    different format.
    """
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def merge_states(
    own: SessionState, *, base: SessionState, stored: SessionState, own_streams: Collection[ConversationId] = ()
) -> SessionState | None:
    """Combine `stored`, the state that another process has stored, with the changes that this process has made to
    the session. Return the combined state.

    `own` is the current state in this process, and `base` is the state in this process when it last stored the
    session. `own_streams` contains the conversations whose streams this process may have stored. Return None if
    both processes have given the same number to different streams. Streams must have different numbers, because
    event ids contain the numbers.
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


def is_same_state(one: SessionState, other: SessionState) -> bool:
    """Return whether both states have the same streams, subscribed resources, log level and `has_listed_resources`.
    The order of the streams and resources does not matter. The other fields are not compared.
    """

    def key(state: SessionState) -> object:
        streams = _by_conversation(state)
        return streams, set(state.resources), state.log_level, state.has_listed_resources

    return key(one) == key(other)


def _by_conversation(state: SessionState) -> dict[ConversationId, StreamState]:
    return {stream.conversation: stream for stream in state.streams}


def session_digest(session_id: str) -> bytes:
    """Return the digest of the session id. The digest is the key of the session in the store. The session id is not
    stored, because it is a secret.
    """
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).digest()
