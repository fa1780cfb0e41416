"""Outboxes that give an event id to each message. A client that reconnects sends the event id of the last message
that it has received, and gets all later messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parley.ports.http import MessageStream
from parley.ports.outbox import OpenFrame
from parley.server.http.event_ids import CallCursor, EventIds, SessionCursors
from parley.server.http.push import PushOutbox
from parley.server.positions import Position
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId

__all__ = ["CallOutbox", "StreamCursors"]


class StreamCursors:
    """The position that the client has reached in each conversation that it streams. The event ids of messages
    contain these positions.
    """

    def __init__(self, push: PushOutbox, ids: EventIds, session: str) -> None:
        self._push, self._ids, self._session = push, ids, session
        self._positions: dict[str, Position] = {}

    def outbox(self, conversation: ConversationId, number: int) -> _StreamOutbox:
        """Return the outbox for a new stream of `conversation`. `number` is the number of the stream in its
        session.
        """
        self._positions.pop(conversation, None)
        return _StreamOutbox(self._push, lambda position: self._moved(conversation, number, position))

    def restart(self, positions: Mapping[str, Position]) -> None:
        """Replace the positions with `positions`, which the client sent when it reconnected.

        This method must be called before messages are sent again. Otherwise, the event ids of repeated messages
        would contain positions that the client has not reached.
        """
        self._positions = dict(positions)

    def ended(self, conversation: ConversationId) -> None:
        """Remove the position of `conversation`, because its stream has ended."""
        self._positions.pop(conversation, None)

    def _moved(self, conversation: ConversationId, number: int, position: Position) -> str:
        self._positions[conversation] = Position(position.seq, position.messages, number)
        return self._ids.encode(self._session, SessionCursors(streams=self._positions))


class _StreamOutbox:
    """The outbox of one stream. Adds an event id to each message that has a position."""

    def __init__(self, push: PushOutbox, moved: Callable[[Position], str]) -> None:
        """Create the outbox.

        Messages are sent to `push`. `moved` is called with the position that the client reaches with a message.
        `moved` records this position, and returns the event id of the message.
        """
        self._push, self._moved = push, moved
        self.send, self.when_writable = push.send, push.when_writable

    @property
    def writable(self) -> bool:
        return self._push.writable

    def begin_frame(self) -> OpenFrame:
        return self._push.begin_frame()

    def send_at(self, frame: bytes, position: Position) -> None:
        self._push.send(frame, self._moved(position))

    def begin_frame_at(self, position: Position) -> OpenFrame:
        return self._push.begin_frame(self._moved(position))


class CallOutbox:
    """The outbox for the events of one `codex` or `codex-reply` call. Adds an event id to each message that has a
    position.
    """

    def __init__(
        self,
        stream: MessageStream,
        ids: EventIds,
        session: str,
        *,
        request: RequestId,
        conversation: ConversationId,
        event_id: Callable[[], str],
    ) -> None:
        self._stream, self._ids, self._session = stream, ids, session
        self._request, self._conversation, self._event_id = request, conversation, event_id
        self.send, self.when_writable = stream.send, stream.when_writable

    @property
    def writable(self) -> bool:
        return self._stream.writable

    def begin_frame(self) -> OpenFrame:
        return self._stream.begin_frame()

    def send_at(self, frame: bytes, position: Position) -> None:
        self._stream.send(frame, self._event_id_at(position))

    def begin_frame_at(self, position: Position) -> OpenFrame:
        return self._stream.begin_frame(self._event_id_at(position))

    def _event_id_at(self, position: Position) -> str:
        cursor = CallCursor(self._request, self._conversation, self._event_id(), position)
        return self._ids.encode(self._session, SessionCursors(call=cursor))
