"""The sessions of HTTP clients.

A session lasts from `initialize` until the client deletes it or is away too long.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
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
from parley.server.positions import Position
from parley.server.serve import ClientConnection, ServerCore
from parley.wire.framing import Overlong
from parley.wire.ids import ConversationId, EventId
from parley.wire.jsonrpc import RequestId

__all__ = ["HttpSession", "HttpSessions", "TooManySessions"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
"""How often the server looks for expired sessions."""


class TooManySessions(Exception):
    """No more sessions can be created."""


class HttpSession:
    """One client. To the server core it is a connection that ends with the session."""

    def __init__(self, principal: Principal, ids: EventIds) -> None:
        self.id: Final = secrets.token_urlsafe(32)
        self.ids: Final = ids
        self.principal: Final = principal
        self.outbox: Final = PushOutbox(on_lost=self._send_questions_again)
        self._cursors: Final = StreamCursors(self.outbox, ids, self.id)
        self.idle_since = 0.0
        self._requests = 0
        self._client: ClientConnection | None = None
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._had_stream = False
        self._calls: dict[RequestId, MessageStream] = {}
        """The streams of calls that can be resumed."""

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
        """Keep the session during the block."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def attach(self, stream: MessageStream, positions: Mapping[str, Position] | None) -> None:
        """Send the messages that belong to no request to a GET stream. `positions` say what the client has
        received before, if it names them.
        """
        had_stream, self._had_stream = self._had_stream, True
        kept = self.outbox.attach(stream)
        if positions is not None or had_stream:  # an earlier stream may be lost without a sign of it
            self.client.session.requests.send_again(self.outbox, self.outbox, but_not=kept)
            self._cursors.restart(positions or {})
            self.client.restart_streams(positions or {})

    def stream_reply(self, stream: MessageStream, requests: Sequence[RequestId]) -> StreamReply:
        """Return the reply to requests that are answered on a stream. The session is in use until the stream
        closes.
        """
        reply = StreamReply(stream, len(requests), self.outbox, ids=self.ids, session=self.id)
        self._requests += 1
        self._calls.update(dict.fromkeys(requests, stream))

        def closed() -> None:
            self._requests -= 1
            for request_id in requests:
                if self._calls.get(request_id) is stream:
                    del self._calls[request_id]
            self.client.session.requests.send_again(reply.questions, self.outbox)

        stream.on_closed(closed)
        return reply

    async def resume_call(self, cursor: CallCursor, stream: MessageStream) -> None:
        """Continue a call on another stream."""
        if (lost := self._calls.get(cursor.request)) is not None:
            lost.close()
        reply = self.stream_reply(stream, [cursor.request])
        conversation, event_id = ConversationId(cursor.conversation), EventId(cursor.event_id)
        if not self.outbox.streams:  # the client has no other stream for its questions
            self.client.session.requests.send_again(self.outbox, reply.questions)
        try:
            await self.client.resume_call(cursor.request, conversation, event_id, cursor.position, reply)
        except ParleyError as error:
            log.warning("a call cannot be resumed: %s", error)
            stream.end()

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Wait until the session ends. Its messages arrive with POST requests, so nothing is read here."""
        await self._ended.wait()

    def connected(self, client: ClientConnection) -> None:
        client.session.always_sends_positions = True
        client.session.stream_outboxes = self._cursors
        self._client = client
        self._connected.set()

    async def wait_connected(self) -> None:
        await self._connected.wait()

    def end(self) -> None:
        self._ended.set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def _send_questions_again(self) -> None:
        if self._client is not None:
            self._client.session.requests.send_again(self.outbox, self.outbox)


class HttpSessions:
    """All sessions of the server."""

    def __init__(
        self,
        core: ServerCore,
        *,
        key: bytes,
        most: int,
        idle_seconds: float,
        on_connected: Callable[[ClientConnection], None] = lambda client: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty set of sessions. `key` signs event ids. `idle_seconds` is how long a session without
        requests and streams is kept. `on_connected` is called when a session begins.
        """
        self._core, self._most, self._idle_seconds = core, most, idle_seconds
        self._ids = EventIds(key)
        self._on_connected, self._now = on_connected, now
        self._sessions: dict[str, HttpSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def create(self, principal: Principal) -> HttpSession:
        """Begin a session.

        Raises:
            TooManySessions: all are in use.
        """
        self.expire()
        if len(self._sessions) >= self._most:
            self._end_longest_idle(principal)
        session = HttpSession(principal, self._ids)
        session.idle_since = self._now()
        self._sessions[session.id] = session
        task = asyncio.get_running_loop().create_task(self._serve(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)
        await session.wait_connected()
        return session

    def find(self, session_id: str, principal: Principal) -> HttpSession | None:
        """Return a session of a principal."""
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            return None
        session.idle_since = self._now()
        return session

    def delete(self, session: HttpSession) -> None:
        """End a session. Its turns go on."""
        self._sessions.pop(session.id, None)
        session.end()

    def expire(self) -> None:
        """End the sessions whose clients have been away too long."""
        now = self._now()
        for session in tuple(self._sessions.values()):
            if not session.is_idle:
                session.idle_since = now
            elif now - session.idle_since >= self._idle_seconds:
                self.delete(session)

    async def close(self) -> None:
        """End all sessions, after the server core has shut down."""
        if self._look is not None:
            self._look.cancel()
        for session in tuple(self._sessions.values()):
            self.delete(session)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, session: HttpSession) -> None:
        def connected(client: ClientConnection) -> None:
            self._on_connected(client)
            session.connected(client)

        try:
            await self._core.serve_client(session, session.principal, connected=connected)
        except Exception:
            log.exception("an HTTP session failed")
        finally:
            self.delete(session)

    def _end_longest_idle(self, principal: Principal) -> None:
        idle = [one for one in self._sessions.values() if one.is_idle and one.principal == principal]
        if not idle:
            raise TooManySessions
        self.delete(min(idle, key=lambda one: one.idle_since))

    def _look_again(self) -> None:
        self.expire()
        waits = bool(self._sessions)
        self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again) if waits else None
