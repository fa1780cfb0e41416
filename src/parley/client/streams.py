"""Which stream an event belongs to.

A connection has at most one stream of a conversation. Opening another takes over: the answer to
it stands between the last event of the old stream and the notice that the old one has ended.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.client.errors import Disconnected
from parley.client.stream import Event, Seen, Stream
from parley.wire.events import EventMsg, decode_event
from parley.wire.ids import ConversationId, EventId
from parley.wire.jsonrpc import decode_lenient
from parley.wire.notifications import EventMeta, InitialState, StreamDisconnected

__all__ = ["Streams"]


class _KnownEvent(Struct, frozen=True, kw_only=True):
    """Params of a live event, decoded in one go."""

    meta: EventMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")
    id: EventId | UnsetType = UNSET
    """Set only in the second half of a `codex/event` pair, which is no stream's."""
    msg: EventMsg


class _AnyEvent(Struct, frozen=True, kw_only=True):
    """The same for an event type of a newer server."""

    meta: EventMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")
    id: EventId | UnsetType = UNSET
    msg: Raw


_known_events: Final = msgspec.json.Decoder(_KnownEvent)
_any_events: Final = msgspec.json.Decoder(_AnyEvent)
_initial_states: Final = msgspec.json.Decoder(InitialState)
_disconnects: Final = msgspec.json.Decoder(StreamDisconnected)


class Streams:
    """The open streams of one connection."""

    def __init__(self) -> None:
        self._current: dict[ConversationId, Stream] = {}
        self._displaced: dict[ConversationId, Stream] = {}

    def open(self, stream: Stream) -> None:
        """The server has accepted this stream; an earlier one of the conversation will be told."""
        if (old := self._current.pop(stream.conversation_id, None)) is not None:
            self._displaced[stream.conversation_id] = old
        if not stream.closed:
            self._current[stream.conversation_id] = stream

    def close(self, stream: Stream) -> None:
        for streams in (self._current, self._displaced):
            if streams.get(stream.conversation_id) is stream:
                del streams[stream.conversation_id]

    def lose_all(self, exit_code: int | None) -> None:
        """The server is gone."""
        for stream in (*self._displaced.values(), *self._current.values()):
            stream.take_loss(Disconnected(exit_code))
        self._displaced.clear()
        self._current.clear()

    def take_initial_state(self, params: Raw) -> None:
        state = decode_lenient(_initial_states, params)
        if (stream := self._of(state.meta)) is not None:
            stream.take_snapshot(state)

    def take_disconnect(self, params: Raw) -> None:
        notice = decode_lenient(_disconnects, params)
        conversation_id = notice.meta.conversation_id
        if isinstance(conversation_id, UnsetType):
            return
        stream = self._displaced.pop(conversation_id, None)
        # A take-over that displaced nobody here concerns a stream that was closed meanwhile.
        if stream is None and notice.reason != StreamDisconnected.TAKEN_OVER:
            stream = self._current.pop(conversation_id, None)
        if stream is not None:
            stream.take_end(notice.reason)

    def take_event(self, params: Raw) -> None:
        """Hand a live event to its stream.

        Raises:
            msgspec.DecodeError: these are not the params of an event.
        """
        event: Event
        try:
            known = decode_lenient(_known_events, params)
            meta, of_call, event = known.meta, known.id, known.msg
        except msgspec.ValidationError:
            unknown = decode_lenient(_any_events, params)
            meta, of_call, event = unknown.meta, unknown.id, decode_event(unknown.msg)
        if isinstance(of_call, UnsetType) and (stream := self._of(meta)) is not None:
            stream.take(Seen(event, None if isinstance(meta, UnsetType) else meta, live=True))

    def _of(self, meta: EventMeta | UnsetType) -> Stream | None:
        if not isinstance(meta, UnsetType) and not isinstance(meta.conversation_id, UnsetType):
            return self._current.get(meta.conversation_id)
        return next(iter(self._current.values())) if len(self._current) == 1 else None
