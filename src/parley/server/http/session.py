"""The session of one HTTP client. A session lasts longer than each of its connections."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from parley.errors import ParleyError
from parley.ports.http import MessageStream
from parley.server.context import Principal
from parley.server.http.cursors import StreamCursors
from parley.server.http.event_ids import CallCursor, EventIds
from parley.server.http.push import PushOutbox
from parley.server.http.replies import StreamReply
from parley.server.http.session_state import (
    SessionState,
    session_digest,
)
from parley.server.positions import Position
from parley.server.serve import ClientConnection
from parley.server.session import StreamState
from parley.wire.framing import Overlong
from parley.wire.ids import ConversationId, EventId
from parley.wire.jsonrpc import RequestId

__all__ = ["HttpSession"]

log = logging.getLogger(__name__)


class HttpSession:
    """The session of one HTTP client. `ServerCore` treats the session as one connection."""

    def __init__(self, principal: Principal, ids: EventIds, session_id: str | None = None) -> None:
        """Create the session. `session_id` is the id of a session of an earlier server process; None for a new
        session.
        """
        self.id: Final = session_id or secrets.token_urlsafe(32)
        self.digest: Final = session_digest(self.id)
        self.ids: Final = ids
        self.principal: Final = principal
        self.idle_since = 0.0
        self._requests = 0
        self._client: ClientConnection | None = None
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._all_answered = asyncio.Event()
        self.is_cut_off = False
        """True if the session has ended because its principal is no longer authorized."""
        self._had_stream = session_id is not None
        self.stored_at = 0.0
        """The time of last use that is stored for the session, in seconds since the epoch."""
        self.is_changed = False
        """True if the state of the session has changed since it was last stored."""
        self.is_restoring = False
        """True while the streams of a session from an earlier server process are being opened one after another.

        The session is not stored during this time. If the session were stored and the process then killed, the
        stored session would lack the streams that are not open yet.
        """
        self.opening: list[StreamState] = []
        """The streams that the client has requested and that are not open yet. They are stored with the session
        before they are opened.
        """
        self.saved_state: SessionState | None = None
        """The state of the session in this process when it was last stored or restored; None before that, and after
        a write has failed.
        """
        self.base_state: SessionState | None = None
        """The state of the session in this process when it was last stored or restored; None before that. Unlike
        `saved_state`, this state is kept after a write has failed.
        """
        self.stored_state: SessionState | None = None
        """The stored state of the session when this process last read or wrote it; None if the session is not
        stored. This state may contain streams that the client has opened on other nodes.
        """
        self.stored_data: bytes | None = None
        """The encoded form of `stored_state`, byte for byte as in the store; None if the session is not stored."""
        self.adopted_data: bytes | None = None
        """The encoded stored state whose streams and subscriptions are all open in this process; None if the
        session is not stored. If another node has changed the session and its changes are not adopted yet, this
        state differs from `stored_data`.
        """
        self.stored_streams: set[ConversationId] = set()
        """The conversations whose streams the stored session may contain."""
        self.saving: asyncio.Task[None] | None = None
        self.save_lock: Final = asyncio.Lock()
        """A lock that is held while the session is written to the store or removed from the store."""
        self._calls: dict[RequestId, MessageStream] = {}
        """The HTTP streams of the calls in progress, by request id. If such a stream is lost, the client can resume
        its call.
        """
        self.outbox: Final = PushOutbox(on_lost=self._send_requests_again)
        self._cursors: Final = StreamCursors(self.outbox, ids, self.id)

    @property
    def client(self) -> ClientConnection:
        assert self._client is not None
        return self._client

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress and no stream is open."""
        return not self._requests and not self.outbox.streams

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Return a context manager. While it is active, the session is in use and does not expire."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def attach(self, stream: MessageStream, positions: Mapping[str, Position] | None) -> None:
        """Send messages that belong to no request on the GET stream `stream`.

        `positions` contains the positions from the `Last-Event-ID` of the GET request; None if the request has no
        such header.
        """
        had_stream, self._had_stream = self._had_stream, True
        kept = self.outbox.attach(stream)
        if positions is not None or had_stream:  # the server may not have noticed that an earlier stream was lost
            self.client.session.requests.send_again(self.outbox, self.outbox, but_not=kept)
            positions = positions or {}
            # Event ids need not contain the streams that are not open, because the client gets notices about these
            # streams first.
            self._cursors.restart({one: at for one, at in positions.items() if self.client.has_stream(one)})
            self.client.restart_streams(positions, received=kept)

    def stream_reply(self, stream: MessageStream, requests: Sequence[RequestId]) -> StreamReply:
        """Return the reply that sends the responses to the requests with the ids `requests` on `stream`.

        The session is in use until the stream closes.
        """
        reply = StreamReply(stream, len(requests), self.outbox, ids=self.ids, session=self.id)
        self._requests += 1
        self._calls.update(dict.fromkeys(requests, stream))

        def closed() -> None:
            self._requests -= 1
            for request_id in requests:
                if self._calls.get(request_id) is stream:
                    del self._calls[request_id]
            self.client.session.requests.send_again(reply.server_requests, self.outbox)

        stream.on_closed(closed)
        return reply

    async def resume_call(self, cursor: CallCursor, stream: MessageStream) -> None:
        """Send the remaining messages of a call on `stream`. `cursor` names the call and the position that the
        client has reached.
        """
        if (lost := self._calls.get(cursor.request)) is not None:
            lost.close()
        reply = self.stream_reply(stream, [cursor.request])
        conversation, event_id = ConversationId(cursor.conversation), EventId(cursor.event_id)
        if not self.outbox.streams:  # the client has no other stream for its approval requests
            self.client.session.requests.send_again(self.outbox, reply.server_requests)
        try:
            await self.client.resume_call(cursor.request, conversation, event_id, cursor.position, reply)
        except ParleyError as error:
            log.warning("a call cannot be resumed: %s", error)
            stream.end()

    async def saved(self) -> None:
        """Wait until all changes that were made to the session before this call are stored."""
        if self.saving is not None:
            await asyncio.shield(self.saving)

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Wait until the session ends. `take` is never called, because messages arrive in POST requests."""
        await self._ended.wait()

    def connected(self, client: ClientConnection) -> None:
        client.session.may_reconnect = True
        client.session.stream_outboxes = self._cursors
        self._client = client
        self._connected.set()

    @property
    def is_connected(self) -> bool:
        """True if `ServerCore` has begun to serve the session. The value stays True after the session has ended."""
        return self._connected.is_set()

    async def wait_connected(self) -> None:
        await self._connected.wait()

    def end(self) -> None:
        self._ended.set()

    def cut_off(self) -> None:
        """End the session immediately. No further messages are sent to its client."""
        if self._client is not None:
            self._client.remove()
        for stream in tuple(self._calls.values()):
            stream.close()
        self.is_cut_off = True
        self.end()
        self.stop_answering()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def stop_answering(self) -> None:
        """Record that the requests in progress get no further responses."""
        self._all_answered.set()

    async def wait_all_answered(self) -> None:
        """Wait until the session has ended and the requests in progress get no further responses."""
        await self._all_answered.wait()

    def _send_requests_again(self) -> None:
        if self._client is not None:
            self._client.session.requests.send_again(self.outbox, self.outbox)
