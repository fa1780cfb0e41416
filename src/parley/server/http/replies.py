"""Sends the responses to the JSON-RPC requests of one POST, as JSON or as a stream of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from parley.ports.http import MessageStream
from parley.ports.outbox import Outbox
from parley.server.http.cursors import CallOutbox
from parley.server.http.event_ids import EventIds
from parley.server.session import SILENT
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId

__all__ = ["JsonReply", "StreamReply", "first_of"]


class JsonReply:
    """Collects the responses to the requests of one POST, so that they can be sent as one JSON body. Notifications
    that belong to the requests are discarded.
    """

    notifications: Outbox = SILENT

    def __init__(self, requests: int, server_requests: Outbox) -> None:
        """Create the reply.

        `requests` is the number of requests in the POST. Requests from the server to the client are sent to
        `server_requests`.
        """
        self.server_requests = server_requests
        self.answers: list[bytes] = []
        self._left = requests
        self._done = asyncio.Event()

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        return SILENT

    def on_closed(self, do: Callable[[], None]) -> None:
        pass  # nothing is sent before the response, so the client has nothing to resume

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self.answers.append(frame)
        self._left -= 1
        if self._left <= 0:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """True if every request has its response, or was cancelled and gets no response."""
        return self._done.is_set()

    async def done(self) -> None:
        """Wait until every request has its response, or was cancelled and gets no response."""
        await self._done.wait()


class _WhileOpen:
    """An outbox that sends to a stream until the stream closes, and to another outbox after that."""

    def __init__(self, stream: MessageStream, then: Outbox) -> None:
        self._stream, self._then = stream, then

    @property
    def _out(self) -> Outbox:
        return self._then if self._stream.closed else self._stream

    @property
    def writable(self) -> bool:
        return self._out.writable

    def send(self, frame: bytes) -> None:
        self._out.send(frame)

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._out.when_writable(wake)


class StreamReply:
    """Sends the responses to the requests of one POST, and all other messages that belong to these requests, on one
    stream. The stream ends after the last response.
    """

    def __init__(
        self, stream: MessageStream, requests: int, server_requests: Outbox, *, ids: EventIds, session: str
    ) -> None:
        """Create the reply.

        `requests` is the number of requests in the POST. After the client has closed the stream, requests from the
        server to the client are sent to `server_requests`. `ids` creates the event ids for the session with the id
        `session`.
        """
        self._ids, self._session = ids, session
        self.notifications: Outbox = stream
        self.server_requests: Outbox = _WhileOpen(stream, server_requests)
        self._stream, self._left = stream, requests

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        return CallOutbox(
            self._stream,
            self._ids,
            self._session,
            request=request,
            conversation=conversation,
            event_id=event_id,
        )

    def on_closed(self, do: Callable[[], None]) -> None:
        self._stream.on_closed(do)

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self._stream.send(frame)
        self._left -= 1
        if self._left <= 0:
            self._stream.end()


async def first_of(*waits: Coroutine[None, None, None]) -> None:
    """Run coroutines concurrently until one of them ends, and cancel the other coroutines."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
